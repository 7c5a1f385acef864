"""What reward functions return, in the way of each tool: numbers stay numbers, and nothing else becomes one."""

import asyncio
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from partita.tasks.functions import ReturnedError
from partita.tasks.reward_call import Call, Outcome
from partita.tasks.reward_readings import (
    NOT_APPLICABLE,
    read_openrlhf,
    read_reward,
    read_trl,
    read_verl,
    run,
    run_awaited,
)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (torch.tensor(2.0), 2.0),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 4), 0.25),
    ],
)
def test_numbers_of_all_kinds_are_rewards(value, number):
    assert read_reward(value) == Outcome(number)


def test_a_dict_gives_its_score_and_numeric_parts_and_texts():
    found = read_reward({"score": 1, "acc": True, "pred": "12", "len": 3})
    assert found == Outcome(1.0, {"acc": 1.0, "len": 3.0}, notes={"pred": "12"})


def test_a_function_can_say_that_it_does_not_apply():
    assert read_reward(NOT_APPLICABLE) == Outcome(None)
    assert not read_reward(NOT_APPLICABLE).failed


def test_steps_are_pairs_of_a_token_and_a_reward():
    steps = [[0, 0.5], (np.int64(3), True)]
    assert read_reward({"score": 1, "steps": steps}).steps == ((0, 0.5), (3, 1.0))
    assert read_reward({"score": 1, "steps": 3}) == Outcome(1.0, {"steps": 3.0})  # a count by that name is a part
    for wrong in ([1, 2], [[1]], [[1.5, 1.0]], [["a", 1.0]]):
        with pytest.raises(ReturnedError, match=r"'steps' has .*expected pairs \[token of the response, reward\]"):
            read_reward({"score": 1, "steps": wrong})
    with pytest.raises(ReturnedError, match="the reward of a step is nan"):
        read_reward({"score": 1, "steps": [[1, float("nan")]]})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned None"),
        ("1.0", "returned '1.0'"),
        ([1.0], r"returned \[1.0\] \(list\)"),
        (np.array([1.0, 2.0]), "ndarray"),
        ({"score": 1.0, "mean": 2.0}, "a part named 'mean': the report has a metric"),
        ({"score": 1.0, "length/max": 2.0}, "a part named 'length/max'"),
        (float("nan"), "returned nan"),
        (float("inf"), "returned inf"),
        (10**400, "expected one finite number"),
        ({"acc": 1.0, "pred": "x"}, "without 'score'; its keys: acc, pred"),
        ({"score": None}, "'score' is None"),
        ({"score": 1.0, "acc": float("nan")}, "part 'acc' is nan"),
    ],
)
def test_what_is_not_a_finite_number_is_no_reward(value, words):
    with pytest.raises(ReturnedError, match=words):
        read_reward(value)


def test_a_coroutine_that_nobody_awaits_is_named():
    async def late():
        return 1.0

    waiting = late()
    with pytest.raises(ReturnedError, match="async def"):
        run(lambda: waiting, Call(0))
    assert waiting.cr_frame is None  # closed, so that Python does not warn of it
    assert asyncio.run(run_awaited(late, Call(0))) == [Outcome(1.0)]


def test_verl_takes_a_number_or_a_dict_with_a_score():
    assert read_verl(True) == Outcome(1.0)
    given = {"score": -0.5, "acc": False, "pred": None, "why": "no unit", "tried": [1, 2], "size": np.array([3.0])}
    assert read_verl(given) == Outcome(-0.5, {"acc": 0.0, "size": 3.0}, notes={"why": "no unit", "tried": "[1, 2]"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"acc": 1.0, "pred": "x"}, "without 'score'; its keys: acc, pred"),
        ({"score": None}, "'score' is None"),
        (None, "returned None"),
        ([1.0], r"returned \[1.0\]"),
        ({"score": 1.0, "acc": float("nan")}, "part 'acc' is nan"),
    ],
)
def test_what_verl_could_not_use_is_no_reward(value, words):
    with pytest.raises(ReturnedError, match=words):
        read_verl(value)


def test_trl_takes_one_value_for_each_response():
    assert read_trl([1, None, True, np.float32(0.5)], 4) == [Outcome(1.0), Outcome(None), Outcome(1.0), Outcome(0.5)]
    assert read_trl(torch.tensor([1.0, 2.0]), 2) == [Outcome(1.0), Outcome(2.0)]
    assert read_trl((x for x in (1.0, 2.0)), 2) == [Outcome(1.0), Outcome(2.0)]


@pytest.mark.parametrize("read", [read_trl, read_openrlhf])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0], "returned 1 value for 6 responses"),
        ([1.0] * 5, "returned 5 values for 6 responses"),
        (1.0, r"returned 1.0 \(float\); expected a list of 6 values, one for each response"),
        (torch.tensor(1.0), r"returned tensor\(1.\) \(Tensor\); expected a list of 6 values"),
        (torch.ones(1), "returned 1 value for 6 responses"),
        (None, r"returned None \(NoneType\); expected a list of 6"),
        ("aaaaaa", "returned 'aaaaaa'"),
        ([1.0] * 5 + [float("nan")], "value 6 of 6 is nan"),
        ([1.0] * 5 + ["1.0"], r"value 6 of 6 is '1.0' \(str\)"),
    ],
)
def test_a_list_of_another_length_is_never_spread_over_the_responses(read, value, words):
    with pytest.raises(ReturnedError, match=words):
        read(value, 6)


def test_openrlhf_takes_a_tensor_or_a_dict_of_them():
    assert read_openrlhf(torch.tensor([1.0, 0.0]), 2) == [Outcome(1.0), Outcome(0.0)]
    given = {
        "rewards": torch.tensor([1.1, 0.1]),
        "scores": torch.tensor([1.0, 0.0]),
        "extra_logs": {"format": [1, 0], "accuracy": torch.tensor(0.5)},
    }
    first, second = read_openrlhf(given, 2)
    assert first.reward == pytest.approx(1.1)
    assert first.parts == {"scores": 1.0, "format": 1.0, "accuracy": 0.5}
    assert second.parts == {"scores": 0.0, "format": 0.0, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"scores": [1.0, 2.0]}, "without 'rewards'; its keys: scores"),
        ({"rewards": [1.0]}, "returned 1 value for 2 responses"),
        ({"rewards": [1.0, 1.0], "extra_logs": {"x": [1.0]}}, "'x' has 1 value for 2 responses"),
        ([None, 1.0], "value 1 of 2 is None"),
    ],
)
def test_what_openrlhf_could_not_use_is_no_reward(value, words):
    with pytest.raises(ReturnedError, match=words):
        read_openrlhf(value, 2)


def test_a_bare_number_is_the_value_of_one_response():
    assert read_openrlhf(torch.tensor(0.5), 1) == read_trl(0.5, 1) == [Outcome(0.5)]
    assert read_openrlhf({"rewards": 0.5, "scores": 1}, 1) == [Outcome(0.5, {"scores": 1.0})]


def test_what_a_function_tells_on_the_side_belongs_to_its_call():
    def f(completions, log_metric, log_extra):
        log_metric("shouting", 1.0)
        log_metric("shouting", 0.5)
        log_extra("picked", [1, "b"])
        return [1.0, None]

    call = Call(0, keywords={"completions": ["A", "b"]}, reader="trl", count=2, asked=("log_metric", "log_extra"))
    assert run(f, call) == [
        Outcome(1.0, {"shouting": 0.75}, notes={"picked": "1"}),
        Outcome(None, {"shouting": 0.75}, notes={"picked": "b"}),
    ]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (lambda log_metric: log_metric("x/max", 1.0), "a part named 'x/max': the report has a metric"),
        (lambda log_metric: log_metric("x", float("inf")), r"log_metric\('x'\) got inf"),
        (lambda log_extra: log_extra("x", ["a"]), r"log_extra\('x'\) got 1 value for 2 responses"),
    ],
)
def test_what_cannot_be_told_is_an_error(told, words):
    asked = tuple(told.__code__.co_varnames)
    with pytest.raises(ReturnedError, match=words):
        run(told, Call(0, reader="trl", count=2, asked=asked))


class Shy:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.str_("1"), r"returned .*'1'.* \(str_\); expected one finite number"),
        (np.bytes_(b"1"), r"returned .*b'1'.* \(bytes_\)"),
        (Shy(), r"returned what cannot be shown \(Shy\); expected one finite number"),
        ({"score": Shy()}, r"'score' is what cannot be shown \(Shy\)"),
    ],
)
def test_texts_of_numpy_and_what_cannot_be_shown_are_no_numbers(value, words):
    with pytest.raises(ReturnedError, match=words):
        read_reward(value)
