"""Finds a Python object by the name a config gives it, and tells what went wrong with it.

Left out: everything but the standard library. Reward workers import this module, and a worker must start quickly.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import traceback
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any


class LoadError(ValueError):
    """A name in the config does not lead to a usable Python object; the message says which and why."""


class ReturnedError(ValueError):
    """A reward function returned something that is not a reward; another try would end the same way."""


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
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # as for a script: a console command has its own folder there instead
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise  # the module exists; something that it imports does not
        raise LoadError(f"{name!r}: no module named {error.name!r} on the Python path") from error


def _file_module(path: Path) -> ModuleType:
    path = Path(os.path.expanduser(path)).resolve()  # unlike Path's own, no error for a user that there is none of
    if not os.path.isfile(path):
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


def ending(code: int) -> str:
    """An exit code in words: `exit code 1`, `signal 9 (SIGKILL)`."""
    if code >= 0:
        return f"exit code {code}"
    names = {one.value: f" ({one.name})" for one in signal.Signals}  # not all numbers of signals have one
    return f"signal {-code}{names.get(-code, '')}"


def error_text(error: BaseException, limit: int = 4000) -> str:
    """A one-line summary, then the traceback; the middle of a very long one is left out."""
    summary = f"{type(error).__name__}: {_said(error)}".split("\n", 1)[0][:300]
    if isinstance(error, ReturnedError):
        return summary.removeprefix("ReturnedError: ")
    trace = "".join(traceback.format_exception(error)).rstrip()
    if len(trace) > limit:
        trace = f"{trace[: limit // 2]}\n...\n{trace[-limit // 2 :]}"
    return f"{summary}\n{trace}"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of the user's own kind, whose __str__ fails
        return "its message cannot be shown"
