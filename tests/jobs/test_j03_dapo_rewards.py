"""DAPO rows in verl's layout with a reward of +1 and -1: what a function is given, and accuracy beside the reward."""

from pathlib import Path

from scoring import metrics_of, score_groups

from partita.records import Prompt
from partita.tasks.reward import RewardConfig, RewardRuntime

REWARDS = r"""
import re


def compute_score(data_source, solution_str, ground_truth, extra_info):
    assert data_source == "math_dapo" and extra_info["index"].startswith("0d5c9f1e")
    lines = re.findall(r"(?im)^answer:\s*(.+?)\s*$", solution_str)
    given = re.sub(r"^\\boxed\{(.*)\}$", r"\1", lines[-1].strip("$")) if lines else None
    right = given == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": given}
"""
QUESTION = "Solve step by step. The last line must be Answer: $Answer.\n\nWhat is $5+4^2$?"
ROW = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": QUESTION}],
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


def test_rows_are_judged_by_their_stored_gold_and_accuracy_is_told_beside_the_reward(tmp_path: Path) -> None:
    (tmp_path / "dapo.py").write_text(REWARDS)
    runtime = RewardRuntime(RewardConfig(functions=[f"{tmp_path}/dapo.py:compute_score"], processes=2))
    rows = [Prompt(uid, (1,), "x", ROW, tuple(ROW["prompt"]), "21") for uid in ("1", "2")]
    both = score_groups(runtime, [(row, list(RESPONSES)) for row in rows])  # equal rows are two groups
    runtime.close()
    for group in both:
        assert [one.reward for one in group] == list(RESPONSES.values())
    found = metrics_of(both[0])
    assert found["reward/compute_score/acc"] == 6 / 9
    assert found["reward/mean"] == 3 / 9
    assert "compute_score/pred" not in both[0][7].notes and both[0][5].notes == {"compute_score/pred": "20"}
