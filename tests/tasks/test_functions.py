import asyncio
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from partita.tasks.functions import LoadError, ReturnedError, error_text, load_object, read_reward


def test_a_name_leads_to_an_object_of_a_module_or_a_file(tmp_path):
    file = tmp_path / "math.py"  # a name that the standard library has too
    file.write_text("from helper import two\n\ndef right(response):\n    return two\n")
    (tmp_path / "helper.py").write_text("two = 2.0\n")
    assert load_object(f"{file}:right")("x") == 2.0
    assert load_object("os.path:join") is load_object("os.path.join")
    assert sys.modules["math"].sqrt(4) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("right", "not a name of a Python object"),
        ("no_such_module_here:right", "no module named 'no_such_module_here'"),
        ("os.path:jion", "has no 'jion'; it has:"),
        ("/no/such/file.py:right", "no such file"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, words):
    with pytest.raises(LoadError, match=words):
        load_object(name)


def test_an_import_that_fails_inside_the_users_file_is_not_hidden(tmp_path):
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_object(f"{tmp_path / 'needs.py'}:right")


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
    assert read_reward(value) == (number, {})


def test_a_dict_gives_its_score_and_numeric_parts():
    assert read_reward({"score": 1, "acc": True, "pred": "12", "len": 3}) == (1.0, {"acc": 1.0, "len": 3.0})


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
        read_reward(waiting)
    assert asyncio.run(waiting) == 1.0


def test_an_error_is_told_in_one_line_and_then_its_traceback():
    try:
        raise ValueError("bad\nrow")
    except ValueError as error:
        lines = error_text(error).split("\n")
    assert lines[0] == "ValueError: bad"
    assert lines[1].startswith("Traceback")
