"""What a contained process does: run a program, call one of its functions, serve it to tests, or be those tests.

A program and what is expected of it never meet in one process. Tests that are code run in a process of their own and
reach the program's functions through `Remote`, over a socket; so a program that looks for the expected values, or says
that it passed, finds and reaches nothing.

Left out: equality of objects of the program's own classes (two are the same only if they are one), operators on them.
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import socket
import symtable
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from partita.tasks.graders.sandbox.wire import from_wire, to_wire

_SUBMITTED = "solution"
"""The module that a program is for tests."""


def run_program(files: Sequence[int]) -> NoReturn:
    """Run a whole program. files: the order {before, code}."""
    _finish(lambda: _load(read_all(files[0]), "__main__"))


def run_call(files: Sequence[int]) -> NoReturn:
    """Call one function. files: the order {before, code, name, arguments}, and where the value goes."""
    order = read_all(files[0])

    def call() -> None:
        function = _function(_load(order, _SUBMITTED), order["name"])
        write_all(files[1], to_wire(function(*order["arguments"])))

    _finish(call)


def run_served(files: Sequence[int]) -> NoReturn:
    """Do with a program what the tests ask for. files: the order {before, code}, and the socket that they ask through."""
    channel = socket.socket(fileno=files[1])

    def serve() -> None:
        module = _load(read_all(files[0]), _SUBMITTED)
        with channel.makefile("rwb") as wire:
            _Served(module).answer(wire)

    _finish(serve)


def run_tests(files: Sequence[int]) -> NoReturn:
    """Run tests that are code. files: the order {tests}, the socket to the program, and where the verdict goes.

    The verdict is {"passed": true}, {"failed": why}, or {"broken": why} for tests that cannot be run at all.
    """
    tests, channel = read_all(files[0])["tests"], socket.socket(fileno=files[1])

    def judge() -> None:
        with channel.makefile("rwb") as wire:
            write_all(files[2], _verdict(tests, _Wire(wire)))

    _finish(judge)


KINDS: Mapping[str, Callable[[Sequence[int]], NoReturn]] = {
    "program": run_program,
    "call": run_call,
    "served": run_served,
    "tests": run_tests,
}


def read_all(file: int) -> Any:
    """The JSON that a file holds from its start on; closes it."""
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb") as stream:
        return json.load(stream)


def write_all(file: int, value: Any) -> None:
    """Write a value as JSON."""
    with open(file, "wb", closefd=False) as stream:
        stream.write(json.dumps(value).encode())


def _load(order: Mapping[str, Any], name: str) -> ModuleType:
    """Run what was ordered as a module of this name, with what the `site` module would have put among the built-in names."""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    module = ModuleType(name)
    sys.modules[name] = module
    sys.argv[:] = ["program.py"]
    for part in (order["before"], order["code"]):
        exec(compile(part, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    return getattr(module.Solution(), name) if found is None else found


def _finish(action: Callable[[], object]) -> NoReturn:
    """Do it, then what Python does at the end of a program; the exit code is 0 only if nothing was raised."""
    code = 1
    try:
        code = _exit_code(action)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:  # as an output beyond its limit
        code = code or 1
    finally:
        os._exit(code & 255)


def _exit_code(action: Callable[[], object]) -> int:
    try:
        action()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # a wrong program, whatever it raised
        return 1
    return 0


class _Served:
    """The program's side of a socket: looks up names, calls, and reads and sets attributes."""

    def __init__(self, module: ModuleType) -> None:
        self._objects: list[Any] = [module]

    def answer(self, wire: Any) -> None:
        """Answer until the tests are done."""
        for line in wire:
            wire.write(json.dumps(self._answered(json.loads(line))).encode() + b"\n")
            wire.flush()

    def _answered(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            target = self._objects[asked["of"]]
            arguments = [from_wire(value, self._objects.__getitem__) for value in asked["arguments"]]
            named = {name: from_wire(value, self._objects.__getitem__) for name, value in asked["named"].items()}
            value = (
                target(*arguments, **named) if asked["do"] == "call" else _ATTRIBUTE[asked["do"]](target, *arguments)
            )
            return {
                "value": to_wire(value, self._stay),
                "arguments": [to_wire(value, self._stay) for value in arguments],
            }
        except Exception as error:
            return {"error": [type(error).__name__, str(error)]}

    def _stay(self, value: Any) -> int:
        for number, known in enumerate(self._objects):
            if known is value:
                return number
        self._objects.append(value)
        return len(self._objects) - 1


_ATTRIBUTE: Mapping[str, Callable[..., Any]] = {"get": getattr, "set": setattr}


class _Wire:
    """The tests' side of that socket."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._remotes: dict[int, Remote] = {}

    def ask(self, do: str, of: int, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What the program answers. Raises what it raised: a built-in exception as itself, others as RuntimeError."""
        sent = [to_wire(value, _number_of) for value in arguments]
        order = {"do": do, "of": of, "arguments": sent, "named": {k: to_wire(v, _number_of) for k, v in named.items()}}
        self._wire.write(json.dumps(order).encode() + b"\n")
        self._wire.flush()
        line = self._wire.readline()
        if not line:
            raise ConnectionError("the program ended")
        answer = json.loads(line)
        if "error" in answer:
            raise _raised(*answer["error"])
        for mine, before, after in zip(arguments, sent, answer["arguments"], strict=True):
            if before != after:
                _become(mine, from_wire(after, self.remote))
        return from_wire(answer["value"], self.remote)

    def remote(self, number: int) -> Remote:
        """What stands for one of the program's objects; always the same for the same object."""
        return self._remotes.setdefault(number, Remote(self, number))


class Remote:
    """An object of the program: can be called, and has its attributes read and set."""

    __slots__ = ("_number", "_wire")

    def __init__(self, wire: _Wire, number: int) -> None:
        object.__setattr__(self, "_wire", wire)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._wire.ask("call", self._number, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return self._wire.ask("get", self._number, [name], {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._wire.ask("set", self._number, [name, value], {})


def _number_of(value: Any) -> int:
    if not isinstance(value, Remote):
        raise TypeError(f"{type(value).__name__} cannot be given to the program")
    return value._number


def _raised(name: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(message)
    return RuntimeError(f"{name}: {message}")


def _become(mine: Any, changed: Any) -> None:
    """Let a caller see what a function did to the list, dict or set that it was given."""
    if isinstance(mine, list):
        mine[:] = changed
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(changed)


def _verdict(tests: str, wire: _Wire) -> dict[str, Any]:
    try:
        code, names = compile(tests, "tests", "exec", dont_inherit=True), _free_names(tests)
    except SyntaxError as error:
        return {"broken": f"SyntaxError: {error}"}
    scope: dict[str, Any] = {"__name__": "tests"}
    submitted = ModuleType(_SUBMITTED)
    submitted.__getattr__ = lambda name: wire.ask("get", 0, [name], {})  # type: ignore[method-assign]
    sys.modules[_SUBMITTED] = submitted
    try:
        for name in names:
            try:
                scope[name] = wire.ask("get", 0, [name], {})
            except AttributeError:
                continue  # the program does not have it; the tests may not come to need it
        exec(code, scope)
        for name, test in list(scope.items()):
            if name.startswith("test") and callable(test) and not isinstance(test, Remote):
                test()
    except ImportError as error:
        # A name that the program lacks is the program's fault, a package that the tests lack is not.
        return {"failed" if error.name == _SUBMITTED else "broken": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"passed": True}


def _free_names(tests: str) -> list[str]:
    """Names that tests use and neither define nor find among the built-in ones."""
    top = symtable.symtable(tests, "tests", "exec")
    bound = {name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()}
    used: dict[str, None] = {}
    open_tables = [top]
    while open_tables:
        table = open_tables.pop()
        open_tables += table.get_children()
        used |= {name.get_name(): None for name in table.get_symbols() if name.is_global() and name.is_referenced()}
    return [name for name in used if name not in bound and not hasattr(builtins, name)]
