"""Several functions written for TRL over chat completions, with weights, and None for the rows of other tasks."""

from pathlib import Path

import pytest
from scoring import metrics_of, prompt_of, score_groups

from partita.records import Sample
from partita.tasks.reward import RewardConfig, RewardErrors, RewardRuntime, Scored, guard_errors

REWARDS = """
def text(c):
    return c[-1]["content"] if isinstance(c, list) else c


def pick(t):
    return t.split("<answer>")[-1].split("</answer>")[0].strip()


def right(prompts, completions, answer, **kwargs):
    return [2.0 if pick(text(c)) == a else 0.0 for c, a in zip(completions, answer)]


def whole(completions, **kwargs):
    return [0.5 if pick(text(c)).isdigit() else 0.0 for c in completions]


def python_only(completions, task, **kwargs):
    return [None if t != "code" else float("def " in text(c)) for c, t in zip(completions, task)]
"""
MATH = {"prompt": [{"role": "user", "content": "6*7? Use <answer> tags."}], "answer": "42", "task": "math"}
CODE = {"prompt": [{"role": "user", "content": "Write add(a, b) in Python."}], "answer": "-", "task": "code"}
MATHS = ["<answer>42</answer>", "<answer>forty</answer>", "<answer>41</answer>"]
CODES = ["def add(a, b): return a + b", "print(1)"]


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    (tmp_path / "tasks.py").write_text(REWARDS)
    return [f"{tmp_path}/tasks.py:{name}" for name in ("right", "whole", "python_only")]


def scored(functions: list[str], weights: list[float] | None = None) -> list[list[Scored]]:
    runtime = RewardRuntime(RewardConfig(functions=functions, weights=weights, processes=2))
    try:
        return score_groups(runtime, [(prompt_of(MATH, uid="m"), MATHS), (prompt_of(CODE, uid="c"), CODES)])
    finally:
        runtime.close()


def test_functions_are_weighted_and_none_is_left_out(names: list[str]) -> None:
    maths, codes = scored(names, [1.0, 0.5, 1.0])
    assert [one.parts for one in maths] == [
        {"right": 2.0, "whole": 0.5},
        {"right": 0.0, "whole": 0.0},
        {"right": 0.0, "whole": 0.5},
    ]
    assert [one.reward for one in maths] == [2.25, 0.0, 0.25]
    assert [one.parts["python_only"] for one in codes] == [1.0, 0.0]
    assert [one.reward for one in codes] == [1.0, 0.0]
    found = metrics_of([*maths, *codes])
    assert found["reward/python_only"] == 0.5  # of the two that it applies to
    assert found["reward/mean"] == 3.5 / 5
    assert found["reward/error_share"] == 0.0


def test_a_sample_that_no_function_applies_to_has_no_reward(names: list[str]) -> None:
    maths, codes = scored(names[2:])
    assert [(one.reward, one.status) for one in maths] == [(None, "not_applicable")] * 3
    assert maths[0].error == "python_only: not applicable"
    assert [one.reward for one in codes] == [1.0, 0.0]
    given = [Sample([], "stop", "", one.reward, status=one.status, error=one.error) for one in (*maths, *codes)]
    assert guard_errors(given, 0.0) == 0.0  # no error
    with pytest.raises(RewardErrors, match=r"none of 3 samples has a reward, .*\(python_only: not applicable\)"):
        guard_errors(given[:3], 1.0)


def test_two_weights_for_three_functions_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="weights has 2 values for 3 functions"):
        RewardConfig(functions=names, weights=[1.0, 0.5])
