import json
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction

import pytest

from partita.tasks.graders.sandbox.wire import NotPlainError, from_wire, to_wire


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -5, 2**200, 1.5, float("inf"), "", "ü\n\ud800", [], [1, [2, []]], (), (1, (2,)), {}, {1: {"a": (2, 3)}},
        {None: 1, (1, 2): []}, set(), {1, 2}, frozenset({"a"}), b"\x00x", 1 + 2j, Decimal("1.50"), Fraction(-2, 3), range(2, 9, 3),
    ],
)  # fmt: skip
def test_plain_values_come_back_as_they_were(value):
    back = from_wire(json.loads(json.dumps(to_wire(value))))
    assert back == value and type(back) is type(value)


def test_kinds_of_plain_values_come_back_as_plain_values():
    assert from_wire(to_wire(Counter("aab"))) == {"a": 2, "b": 1}
    assert from_wire(to_wire(OrderedDict(x=1))) == {"x": 1}
    assert list(from_wire(to_wire(iter([1, 2])))) == [1, 2]
    assert list(from_wire(to_wire({1: 2}.items().__iter__()))) == [(1, 2)]


def test_objects_travel_as_numbers_where_that_is_allowed():
    kept = [deque([1])]
    assert to_wire([kept[0]], lambda value: kept.index(value)) == [{"object": 0}]
    assert from_wire([{"object": 0}], kept.__getitem__)[0] is kept[0]
    for wrong in (lambda: to_wire(object()), lambda: from_wire({"object": 0})):
        with pytest.raises(NotPlainError):
            wrong()


@pytest.mark.parametrize("data", [{"unknown": 1}, {"set": [1], "dict": []}, {}, {"bytes": "zz"}])
def test_what_was_never_written_is_an_error(data):
    with pytest.raises(ValueError):
        from_wire(data)
