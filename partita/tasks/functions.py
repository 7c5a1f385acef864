"""Finds a Python object by the name a config gives it, and turns what a reward function returns into numbers.

Left out: everything but the standard library. Reward workers import this module, and a worker must start quickly.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
import traceback
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, SupportsFloat

# Names under reward/ that the report uses itself.
RESERVED = ("mean", "min", "max", "nan_count", "error_share")


class LoadError(ValueError):
    """A name in the config does not lead to a usable Python object; the message says which and why."""


class ReturnedError(ValueError):
    """A reward function returned something that is not a reward."""


def load_object(name: str) -> Any:
    """The object called `name`: `file.py:object`, `package.module:object` or `package.module.object`.

    Raises LoadError when the file, module or attribute does not exist; whatever the module raises at import travels.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon:
        where, _, attribute = name.rpartition(".")
    if not where or not attribute:
        raise LoadError(f"{name!r}: not a name of a Python object; write package.module:object or path/file.py:object")
    found: Any = _file_module(Path(where)) if where.endswith(".py") else _named_module(where, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(sorted(key for key in vars(found) if not key.startswith("_"))[:20])
            raise LoadError(f"{name!r}: {where} has no {attribute!r}; it has: {known or 'nothing public'}")
        found = getattr(found, part)
    return found


def _named_module(where: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise  # the module exists; something that it imports does not
        raise LoadError(f"{name!r}: no module named {error.name!r} on the Python path") from error


def _file_module(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise LoadError(f"{path}: no such file")
    # A name of its own: a reward file called math.py must not replace the standard module.
    name = f"_partita_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # neighbours of the file can be imported, as when it is run as a script
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def read_reward(value: object) -> tuple[float, dict[str, float]]:
    """The reward and its other numeric parts from what a reward function returned: a number, or a dict with `score`.

    Text values of a dict are left out. Raises ReturnedError for None, text, lists, NaN, infinities and dicts without
    `score`: none of them may silently become a number; and for a part whose name another metric has.
    """
    if inspect.isawaitable(value):
        raise ReturnedError("returned an awaitable: declare the function with `async def` so that it is awaited")
    if not isinstance(value, Mapping):
        return _finite(value, "returned"), {}
    if "score" not in value:
        raise ReturnedError(f"returned a dict without 'score'; its keys: {', '.join(map(str, value)) or 'none'}")
    parts = {
        str(key): _finite(part, f"part {key!r} is")
        for key, part in value.items()
        if key != "score" and not isinstance(part, str | bytes)
    }
    if taken := [name for name in parts if name.rpartition("/")[2] in RESERVED]:
        raise ReturnedError(
            f"returned a part named {taken[0]!r}: the report has a metric of its own by that name; rename the part"
        )
    return _finite(value["score"], "'score' is"), parts


def _finite(value: object, what: str) -> float:
    if not isinstance(value, SupportsFloat):
        raise ReturnedError(f"{what} {_short(value)} ({type(value).__name__}); expected one finite number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ReturnedError(f"{what} {_short(value)} ({type(value).__name__}); expected one finite number") from error
    if not math.isfinite(number):
        raise ReturnedError(f"{what} {number}; expected a finite number")
    return number


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def error_text(error: BaseException, limit: int = 4000) -> str:
    """A one-line summary, then the traceback; the middle of a very long one is left out."""
    summary = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
    if isinstance(error, ReturnedError):
        return summary.removeprefix("ReturnedError: ")
    trace = "".join(traceback.format_exception(error)).rstrip()
    if len(trace) > limit:
        trace = f"{trace[: limit // 2]}\n...\n{trace[-limit // 2 :]}"
    return f"{summary}\n{trace}"
