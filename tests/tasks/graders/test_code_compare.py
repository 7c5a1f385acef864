import math

import pytest

from partita.tasks.graders.code_compare import same_output, same_value


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("6\n", "6\n", True),
        ("6\n", "6", True),
        ("6", "6 \n\n", True),
        ("1 2\n3\n", "1  2 \n3\n", True),
        ("1 2\n3\n", "1 2 3\n", False),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("a\n\nb", "a\nb", False),
        ("6", "Sum: 6", False),
        ("YES", "Yes", False),
        ("6", "6.0", False),  # a whole number is expected as one
        ("6", "06", False),
        ("0.5", "0.50", True),
        ("0.5", ".5", True),
        ("0.333333333", "0.3333333333333333", True),
        ("1000000.0", "1000000.5", True),  # relative
        ("0.5", "0.50001", False),
        ("1e3", "1000", True),
        ("0.5", "half", False),
        ("0.5 x", "0.5", False),
        ("", "", True),
        ("", "x", False),
        ("x", "", False),
        ("1.0", "1" * 500, False),
        ("1\n" * 100, "1\n" * 101, False),
        ("ab", "ab" * 10_000, False),
    ],
)
def test_outputs(expected, printed, same):
    assert same_output(expected, printed, 1e-6) is same


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ([4, 4, 2], [4, 4, 2], True),
        ([4, 4, 2], (4, 4, 2), True),
        ([[1], [2]], [(1,), [2]], True),
        ([], (), True),
        ([1], {1}, False),
        ([1, 2], [2, 1], False),
        ([1], None, False),
        (None, None, True),
        (None, 0, False),
        (True, True, True),
        (True, 1, True),
        ("1", 1, False),
        (1, "1", False),
        (2, 2.0, True),
        (0.3, 0.1 + 0.2, True),
        (0.3, 0.31, False),
        (0.5, "0.5", False),
        (1.5, 10**400, False),
        (1.5, math.nan, False),
        ({"1": [2], "a": 3}, {1: (2,), "a": 3}, True),
        ({"true": 1}, {True: 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, [("a", 1)], False),
        ("ab", ["a", "b"], False),
    ],
)
def test_values(expected, given, same):
    assert same_value(expected, given, 1e-6) is same
