"""Reads what a reward function returned, in the way of the tool that it was written for, and never makes up a number.

Every reader takes what was returned and the number of responses that the call was about, and gives one outcome for each.
None, NaN, text, and lists of another length are errors; only where a tool says so is None "not applicable".

Left out: everything but the standard library. Reward workers import this module, and a worker must start quickly.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsFloat, cast

from partita.tasks.functions import ReturnedError
from partita.tasks.reward_call import Call, Log, Outcome, counted, finite, part_name, short

Reader = Callable[[Any, int], list[Outcome]]


class NotApplicable:
    """What a reward function returns for a response that it has nothing to say about; there is one, NOT_APPLICABLE."""

    def __repr__(self) -> str:
        return "NOT_APPLICABLE"


NOT_APPLICABLE = NotApplicable()


def run(function: Callable[..., Any], call: Call) -> list[Outcome]:
    """Call a function here and read what it returned. Raises ReturnedError, and whatever the function raises."""
    log = Log(call.count)
    return _read(call, log, function(*call.args, **call.keywords, **log.given(call.asked)))


async def run_awaited(function: Callable[..., Awaitable[Any]], call: Call) -> list[Outcome]:
    """`run` for a function that is awaited."""
    log = Log(call.count)
    return _read(call, log, await function(*call.args, **call.keywords, **log.given(call.asked)))


def _read(call: Call, log: Log, returned: object) -> list[Outcome]:
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns of each that it was never awaited
        raise ReturnedError("returned an awaitable: declare the function with `async def` so that it is awaited")
    return log.added_to(READERS[call.reader](returned, call.count))


def read_reward(value: object) -> Outcome:
    """One value in Partita's own style: a finite number, NOT_APPLICABLE, or a dict with `score`.

    Other numbers of a dict are parts, texts are notes, `steps` is a list of [token of the response, reward]. Raises
    ReturnedError for everything else, None among it: a forgotten `return` must not be silent.
    """
    if isinstance(value, NotApplicable):
        return Outcome(None)
    if not isinstance(value, Mapping):
        return Outcome(finite(value, "returned"))
    given = cast("Mapping[Any, Any]", value)
    steps = given["steps"] if isinstance(given.get("steps"), list | tuple) else None
    parts, notes = dict[str, float](), dict[str, str]()
    for name, part in _beside(given, "score"):
        if isinstance(part, str | bytes):
            notes[str(name)] = str(part)
        elif not (name == "steps" and steps is not None):
            parts[part_name(name)] = finite(part, f"part {name!r} is")
    return Outcome(finite(given["score"], "'score' is"), parts, notes=notes, steps=_steps(steps or ()))


def _beside(given: Mapping[Any, Any], score: str) -> list[tuple[Any, Any]]:
    """What a dict says beside its value. Raises ReturnedError where that is not there, naming the keys that are."""
    if score not in given:
        raise ReturnedError(f"returned a dict without {score!r}; its keys: {', '.join(map(str, given)) or 'none'}")
    return [(name, value) for name, value in given.items() if name != score]


def _steps(given: Sequence[Any]) -> tuple[tuple[int, float], ...]:
    """Raises ReturnedError for what is not a pair of a whole number and a finite one."""
    found: list[tuple[int, float]] = []
    for one in given:
        if not isinstance(one, list | tuple) or len(one) != 2 or not hasattr(one[0], "__index__"):
            raise ReturnedError(f"'steps' has {short(one)}; expected pairs [token of the response, reward]")
        found.append((one[0].__index__(), finite(one[1], "the reward of a step is")))
    return tuple(found)


def _own(value: Any, count: int) -> list[Outcome]:
    return [read_reward(value)]


def read_verl(value: object) -> Outcome:
    """One value as verl takes it: a number, or a dict with `score`. Other numbers are parts; None is left out, like a key that
    is not there; everything else is a note. Raises ReturnedError.
    """
    if not isinstance(value, Mapping):
        return Outcome(finite(value, "returned"))
    given = cast("Mapping[Any, Any]", value)
    parts, notes = dict[str, float](), dict[str, str]()
    for name, part in _beside(given, "score"):
        if _is_number(part):
            parts[part_name(name)] = finite(part, f"part {name!r} is")
        elif part is not None:
            notes[str(name)] = str(part)
    return Outcome(finite(given["score"], "'score' is"), parts, notes=notes)


def _is_number(value: object) -> bool:
    """Arrays and tensors of one value count; texts, lists, and what has several values, do not."""
    number = isinstance(value, SupportsFloat) and not isinstance(value, str | bytes)
    return number and getattr(value, "shape", ()) in ((), (1,))


def _verl(value: Any, count: int) -> list[Outcome]:
    return [read_verl(value)]


def read_trl(value: Any, count: int) -> list[Outcome]:
    """A list with one value for each response, None where the function does not apply. Raises ReturnedError."""
    return [
        Outcome(None if one is None else finite(one, f"value {i + 1} of {count} is"))
        for i, one in enumerate(_listed(value, count))
    ]


def read_openrlhf(value: Any, count: int) -> list[Outcome]:
    """One value for each response, alone or as `rewards` of a dict. `scores` and `extra_logs` are parts: of each response by
    itself, or one number for all of them. Raises ReturnedError.
    """
    if not isinstance(value, Mapping):
        return [Outcome(finite(one, f"value {i + 1} of {count} is")) for i, one in enumerate(_listed(value, count))]
    given = cast("Mapping[str, Any]", value)
    beside = dict(_beside(given, "rewards"))
    logs = {"scores": beside["scores"]} if beside.get("scores") is not None else {}
    logs |= dict(beside.get("extra_logs") or {})
    columns = {part_name(name): _column(name, values, count) for name, values in logs.items()}
    return [
        Outcome(finite(one, f"reward {i + 1} of {count} is"), {name: values[i] for name, values in columns.items()})
        for i, one in enumerate(_listed(given["rewards"], count))
    ]


def _column(name: str, value: Any, count: int) -> list[float]:
    one = _single(value)
    if one is not None:
        return [finite(one, f"{name!r} is")] * count
    return [finite(number, f"{name!r} is") for number in _listed(value, count, f"{name!r} has")]


def _single(value: Any) -> Any:
    """The value itself where it is one number, also as a tensor without dimensions; else None."""
    return value if isinstance(value, SupportsFloat) and getattr(value, "shape", ()) == () else None


def _listed(value: Any, count: int, what: str = "returned") -> list[Any]:
    """Its `count` values; a bare number stands for one. Raises ReturnedError with what was expected and what came."""
    one = _single(value)
    if one is not None and count == 1:
        return [one]
    if one is not None or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ReturnedError(
            f"{what} {short(value)} ({type(value).__name__}); expected a list of {counted(count, 'value')}, "
            "one for each response"
        )
    values = list(value)
    if len(values) != count:
        raise ReturnedError(f"{what} {counted(len(values), 'value')} for {counted(count, 'response')}")
    return values


READERS: dict[str, Reader] = {
    "partita": _own,
    "areal": _own,
    "verl": _verl,
    "trl": read_trl,
    "openrlhf": read_openrlhf,
}
"""By the name of a style."""
