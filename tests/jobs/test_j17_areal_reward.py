"""An AReaL reward function, named by a dotted path, with several accepted answers in a column of the row."""

import sys
from pathlib import Path

import pytest
from scoring import score_groups

from partita.records import Prompt
from partita.tasks.dataset import TaskRow
from partita.tasks.reward import RewardConfig, RewardRuntime

REWARDS = r"""
import re


def boxes(text):
    return [b.strip() for b in re.findall(r"\\boxed\{([^{}]*)\}", text)]


def rope_reward(prompt, completions, prompt_ids, completion_ids, solutions, **kwargs):
    found, gold = boxes(completions), [b for s in solutions for b in boxes(s)]
    if not found:
        return 0.0
    return float(found[-1] in gold) + (0.1 if len(completion_ids) <= 8 else 0.0)
"""
ROW = {
    "query_id": "q-17",
    "task": "math",
    "prompt": "<｜User｜>A rope of 36 m is cut in 3 equal parts. How long is one?\n"
    "Put the final answer in \\boxed{}.<｜Assistant｜><think>\n",
    "solutions": ["\\boxed{12}", "\\boxed{12.0}"],
}


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ropes.py").write_text(REWARDS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    made = RewardRuntime(RewardConfig(functions=["ropes.rope_reward"]))
    yield made
    made.close()
    sys.modules.pop("ropes", None)


@pytest.mark.parametrize(
    ("response", "tokens", "reward"),
    [
        ("\\boxed{12}", 6, 1.1),
        ("\\boxed{12}", 20, 1.0),
        ("maybe \\boxed{10}</think> \\boxed{12.0}", 20, 1.0),
        ("\\boxed{13}", 6, 0.1),
        ("12", 6, 0.0),
    ],
)
def test_any_of_the_solutions_is_right_and_short_answers_get_more(
    runtime: RewardRuntime, response: str, tokens: int, reward: float
) -> None:
    (note,) = runtime.check(TaskRow("1", (), None, ROW))
    assert note.startswith("reward function 'rope_reward' is called as AReaL does")
    ((found,),) = score_groups(runtime, [(Prompt("1", (1, 2), ROW["prompt"], ROW), [response])], tokens)
    assert found.reward == pytest.approx(reward)
