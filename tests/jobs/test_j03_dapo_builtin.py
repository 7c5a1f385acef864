"""DAPO rows in verl's layout, judged by the built-in grader that their `data_source` names."""

import pytest
from scoring import metrics_of, score_groups

from partita.records import Prompt
from partita.tasks.reward import RewardConfig, RewardRuntime

ROW = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "What is $5+4^2$?"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "21", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "0d5c9f1e-77aa-4b1e-9c55-000000000001"},
}
RESPONSES = {
    "5+16=21\nAnswer: 21": 1.0,
    "Answer: 20\nNo.\nAnswer: 21": 1.0,
    "Answer: $21$": 1.0,
    "Answer: \\boxed{21}": 1.0,
    "answer: 21": 1.0,
    "Answer: 20": -1.0,
    "": -1.0,
    "So it is \\boxed{21}.": -1.0,
    "Answer: 21\n" + "chatter " * 63: 1.0,
}


@pytest.mark.parametrize("name", ["by_data_source", "dapo_answer"])
def test_plus_and_minus_one_with_accuracy_beside_them(name):
    runtime = RewardRuntime(RewardConfig(functions=[name]))
    (group,) = score_groups(runtime, [(Prompt("1", (1,), "x", ROW, tuple(ROW["prompt"]), "21"), list(RESPONSES))])
    runtime.close()
    assert [one.reward for one in group] == list(RESPONSES.values())
    found = metrics_of(group)
    assert found[f"reward/{name}/accuracy"] == 6 / 9 and found["reward/mean"] == 3 / 9
