"""Countdown: two functions written for TRL, a prompt that ends in an opened `<think>`, and columns that are lists."""

from pathlib import Path

import pytest
from scoring import score_groups

from partita.records import Prompt
from partita.tasks.reward import RewardConfig, RewardRuntime

REWARDS = r"""
import re


def tags_ok(completions, **kwargs):
    return [1.0 if re.search(r"^[^<]*</think>\s*<answer>[^<]+</answer>\s*$", c) else 0.0 for c in completions]


def hits_target(completions, nums, target, **kwargs):
    out = []
    for c, have, goal in zip(completions, nums, target):
        found = re.findall(r"<answer>([^<]+)</answer>", c)
        expr = found[-1] if found else ""
        used = sorted(int(n) for n in re.findall(r"\d+", expr))
        legal = used == sorted(have) and re.fullmatch(r"[\d+\-*/() ]+", expr)
        try:
            out.append(float(bool(legal) and abs(eval(expr) - goal) < 1e-6))
        except (SyntaxError, ZeroDivisionError):
            out.append(0.0)
    return out
"""
ROWS = [
    {"target": 33, "nums": [3, 7, 12]},
    {"target": 12, "nums": [20, 4, 2, 6]},
    {"target": 24, "nums": [5, 5, 5, 1]},
]
RESPONSES = [
    {
        "7*3=21, plus 12.</think>\n<answer>12 + 7 * 3</answer>": (1, 1),
        "ok</think>\n<answer>12 + 7 * 3 = 33</answer>": (1, 0),
        "ok</think>\n<answer>33</answer>": (1, 0),
        "<answer>12+7*3</answer>": (0, 1),
        "ok</think>\n<answer>12 + 7 * (3</answer>": (1, 0),
        "": (0, 0),
    },
    {"x</think><answer>20/(6-4)+2</answer>": (1, 1)},
    {"x</think><answer>(5-1/5)*5</answer>": (1, 1)},
]


@pytest.fixture
def runtime(tmp_path: Path):
    (tmp_path / "countdown.py").write_text(REWARDS)
    names = [f"{tmp_path}/countdown.py:{name}" for name in ("tags_ok", "hits_target")]
    made = RewardRuntime(RewardConfig(functions=names, processes=2))
    yield made
    made.close()


def test_every_response_gets_what_it_is_worth(runtime: RewardRuntime) -> None:
    prompts = [
        Prompt(
            str(i), (1,), f"<user>{row}<assistant>Let me see.\n<think>", row, ({"role": "user", "content": str(row)},)
        )
        for i, row in enumerate(ROWS)
    ]
    found = score_groups(runtime, [(p, list(given)) for p, given in zip(prompts, RESPONSES, strict=True)])
    for scored, given in zip(found, RESPONSES, strict=True):
        for one, (tags, hits) in zip(scored, given.values(), strict=True):
            assert one.parts == {"tags_ok": tags, "hits_target": hits}
            assert one.reward == tags + hits


def test_an_expression_that_does_not_come_back_is_an_error_and_the_next_group_is_scored(tmp_path: Path) -> None:
    (tmp_path / "countdown.py").write_text(REWARDS)
    config = RewardConfig(functions=[f"{tmp_path}/countdown.py:hits_target"], processes=1, timeout_seconds=1.0)
    runtime = RewardRuntime(config)
    try:
        endless, next_one = (
            Prompt(str(i), (1,), "", row) for i, row in enumerate([{"target": 1, "nums": [9, 9, 9]}, ROWS[0]])
        )
        ((hung,),) = score_groups(runtime, [(endless, ["<answer>9**9**9</answer>"])])
        assert (hung.reward, hung.status) == (None, "reward_error")
        assert hung.error == "hits_target: no result within 1 seconds (reward.timeout_seconds)"
        ((right,),) = score_groups(runtime, [(next_one, ["<answer>12+7*3</answer>"])])  # by a worker in its place
        assert right.reward == 1.0
    finally:
        runtime.close()
