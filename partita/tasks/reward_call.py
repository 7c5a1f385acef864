"""One call of a reward function: what goes in, what comes out, and what the function tells on the side.

Left out: everything but the standard library. Reward workers import this module, and a worker must start quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsFloat, cast

from partita.tasks.functions import ReturnedError

# Names under reward/ that the report uses itself.
RESERVED = ("mean", "min", "max", "nan_count", "error_share", "not_applicable")
TOLD = ("log_metric", "log_extra")
"""What a function may ask for to tell more than its value, in TRL's words."""


@dataclass(frozen=True)
class Outcome:
    """What a call came to for one response: `reward`, or else `error`; neither where the function does not apply to it.

    parts: other numbers by name. notes: texts by name. steps: (place, reward) of single steps, the place counting the
    tokens of the response from 0. timed_out tells a deadline from other errors, `again` those that another try may not meet.
    """

    reward: float | None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    error: str = ""
    timed_out: bool = False
    notes: dict[str, str] = field(default_factory=dict[str, str])
    steps: tuple[tuple[int, float], ...] = ()
    again: bool = False

    @property
    def failed(self) -> bool:
        """Whether the response has no value of this function because something went wrong."""
        return bool(self.error)


@dataclass(frozen=True)
class Call:
    """Function number `which` with what it is called with. reader: the style in which its answer is read. count: responses
    that the call is about. asked: which of `TOLD` the function names; they are made where it runs.
    """

    which: int
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reader: str = "partita"
    count: int = 1
    asked: tuple[str, ...] = ()

    def as_tuple(self) -> tuple[Any, ...]:
        """Its values: what travels, as a tuple is pickled in half the time."""
        return (self.which, self.args, self.keywords, self.reader, self.count, self.asked)


@dataclass(frozen=True)
class TrainerState:
    """How far the training is, in the words of transformers' TrainerState: train steps that were taken, and of the whole run;
    both 0 outside of a run.
    """

    global_step: int = 0
    max_steps: int = 0


class Log:
    """What one call told on the side: a metric counts for each response of the call, a column has one text for each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._metrics: dict[str, list[float]] = {}
        self._columns: dict[str, list[str]] = {}

    def given(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of `TOLD` that are asked for, by name."""
        return {name: getattr(self, name) for name in names}

    def log_metric(self, name: str, value: float) -> None:
        """Note a number about the whole call; several of one name are averaged."""
        self._metrics.setdefault(part_name(name), []).append(finite(value, f"log_metric({name!r}) got"))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Note a value for each response. Raises ReturnedError for another number of values."""
        listed = list(values)
        if len(listed) != self._count:
            raise ReturnedError(
                f"log_extra({column!r}) got {counted(len(listed), 'value')} for {counted(self._count, 'response')}"
            )
        self._columns[str(column)] = [str(value) for value in listed]

    def added_to(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of the call with what was noted."""
        if not self._metrics and not self._columns:
            return list(outcomes)
        parts = {name: math.fsum(values) / len(values) for name, values in self._metrics.items()}
        notes = [{name: values[i] for name, values in self._columns.items()} for i in range(len(outcomes))]
        return [
            replace(one, parts=one.parts | parts, notes=one.notes | more)
            for one, more in zip(outcomes, notes, strict=True)
        ]


def part_name(name: object) -> str:
    """The name of a number beside a value. Raises ReturnedError for one that a metric of the report has."""
    if str(name).rpartition("/")[2] in RESERVED:
        raise ReturnedError(
            f"returned a part named {str(name)!r}: the report has a metric of its own by that name; rename the part"
        )
    return str(name)


def finite(value: object, what: str) -> float:
    """The value as a float. Raises ReturnedError, which begins with `what`, for anything but one finite number."""
    if getattr(value, "shape", None) == (1,):  # an array or tensor of one number
        value = cast("Any", value)[0]
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):  # numpy's texts have __float__
        raise ReturnedError(f"{what} {short(value)} ({type(value).__name__}); expected one finite number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: a tensor of several values
        raise ReturnedError(f"{what} {short(value)} ({type(value).__name__}); expected one finite number") from error
    if not math.isfinite(number):
        raise ReturnedError(f"{what} {number}; expected a finite number")
    return number


def short(value: object) -> str:
    """How a message shows a value."""
    try:
        text = repr(value)
    except Exception:  # an object of the user's own kind, whose __repr__ fails
        text = "what cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def counted(number: int, what: str) -> str:
    """`1 value`, `2 values`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
