"""What an agent may return."""

from typing import Any

import pytest

from partita.rollout.served.child import read
from partita.tasks.functions import ReturnedError


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (1, {"reward": 1.0}),
        (True, {"reward": 1.0}),
        ("words", {"text": "words"}),
        ("", {"text": ""}),
        ({"reward": 0.5, "steps": 3, "why": "so"}, {"reward": 0.5, "parts": {"steps": 3.0}, "notes": {"why": "so"}}),
        ({"text": "words", "steps": 3}, {"text": "words", "parts": {"steps": 3.0}}),
        ({"reward": 0, "text": "words"}, {"reward": 0.0, "text": "words"}),
    ],
)
def test_what_is_read(returned: Any, expected: dict[str, Any]) -> None:
    assert read(returned) == {"reward": None, "text": None, "parts": {}, "notes": {}} | expected


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "returned None; expected the reward"),
        (float("nan"), "returned nan; expected a finite number"),
        ({"score": 1.0}, "its keys: score"),
        ({}, "its keys: none"),
        ({"reward": "1"}, "'reward' is '1'"),
        ({"text": 1}, "'text' is a int"),
        ({"reward": 1.0, "mean": 2.0}, "by that name"),
        ([1.0], "expected one finite number"),
    ],
)
def test_what_is_refused(returned: Any, why: str) -> None:
    with pytest.raises(ReturnedError, match=why):
        read(returned)
