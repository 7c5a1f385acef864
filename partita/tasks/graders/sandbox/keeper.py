"""The process that forks contained ones: started afresh with an empty environment, it knows nothing worth stealing.

It never reads what it hands on. Programs, inputs and answers lie in files in memory that the asking side made and reads
itself; the keeper gets their descriptors and gives them to the processes. One order at a time: fork, wait, kill, report.

Left out: what is right or wrong; see `graders.code`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from partita.tasks.graders.sandbox import kernel
from partita.tasks.graders.sandbox.orders import LAYERS, NOT_CONFINED
from partita.tasks.graders.sandbox.program import KINDS

_LONGEST_ORDER = 1 << 16
_MOST_FILES = 16
# Imported before the first fork, so that no program waits for them.
_OFTEN_USED = """
bisect collections copy datetime decimal fractions functools heapq itertools math operator queue random re string typing
"""


def serve(channel_number: int, layers: Sequence[str]) -> None:
    """Confine what can be confined once, say what that is, then carry out orders until the other side is gone."""
    channel = socket.socket(fileno=channel_number)
    channel.set_inheritable(False)
    for name in _OFTEN_USED.split():
        importlib.import_module(name)
    keeper = _Keeper(layers)
    os.environ.clear()
    channel.send(json.dumps(keeper.holds).encode())
    while True:
        order, files, _, _ = socket.recv_fds(channel, _LONGEST_ORDER, _MOST_FILES)
        if not order:
            return
        try:
            report = keeper.carry_out(json.loads(order), files)
        except OSError as error:  # no process, no folder: the asking side must hear of it
            report = {NOT_CONFINED: f"{type(error).__name__}: {error}"}
        channel.send(json.dumps(report).encode())


class _Keeper:
    """What was found out at the start, and the one order that is being carried out.

    holds: for each of LAYERS "" where it is in force, else why it is not.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        self._readable = kernel.readable_paths()
        self._memory = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        self._landlock = 0
        self.holds = {layer: self._try(layer) if layer in layers else "left out" for layer in LAYERS}
        self._null = os.open("/dev/null", os.O_RDWR)
        # Blocked, so that the end of a child is waited for with a deadline.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])

    def _try(self, layer: str) -> str:
        if layer == "namespaces":
            why = kernel.why_not(lambda: kernel.enter_own_root(self._readable))
            if not why:
                kernel.enter_own_root(self._readable)
            return why
        if layer == "seccomp":
            return kernel.why_not(kernel.restrict_calls)
        try:
            self._landlock = kernel.landlock_version()
        except OSError as error:
            return str(error)
        return kernel.why_not(lambda: kernel.restrict_files(self._readable, [], self._landlock))

    def carry_out(self, order: Mapping[str, Any], files: Sequence[int]) -> dict[str, Any]:
        """Run the processes of an order until the first of them ends or time is up: {code, late}, or NOT_CONFINED and why.

        code: of the first, negative for a signal, None where it was still running and was killed.
        """
        own_root = not self.holds["namespaces"]
        if own_root:
            kernel.mount_work(order["work"])
        codes: dict[int, int | None] = {}
        try:
            self._start_all(order, files, codes)
            return _wait(codes, order["seconds"])
        except _NotConfined as error:
            return {NOT_CONFINED: str(error)}
        finally:
            for pid in [pid for pid, code in codes.items() if code is None]:
                os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number cannot mean another process
                os.waitpid(pid, 0)
            if own_root:
                kernel.unmount_work()

    def _start_all(self, order: Mapping[str, Any], files: Sequence[int], codes: dict[int, int | None]) -> None:
        left = list(files)
        try:
            for kind, count in order["processes"]:
                mine, left = left[:count], left[count:]
                codes[self._start(kind, mine, order)] = None
        finally:
            for file in files:
                os.close(file)

    def _start(self, kind: str, files: Sequence[int], order: Mapping[str, Any]) -> int:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become(kind, files, order, theirs)
        os.close(theirs)
        with open(ours, "rb") as told:
            what = told.read()
        if what != b"confined":
            os.waitpid(pid, 0)
            raise _NotConfined(what.decode() or "the process ended before it was confined")
        return pid

    def _become(self, kind: str, files: Sequence[int], order: Mapping[str, Any], told: int) -> NoReturn:
        try:
            try:
                kernel.die_with_parent()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
                _take_over(files[:2], self._null)
                kept = _only(files[2:], told)
                self._confine(order)
            except BaseException as error:
                os.write(told, f"{type(error).__name__}: {error}".encode()[:1000])
                raise
            os.write(told, b"confined")
            os.close(told)
            KINDS[kind](kept)
        finally:
            os._exit(1)

    def _confine(self, order: Mapping[str, Any]) -> None:
        own_root = not self.holds["namespaces"]
        os.chdir(kernel.WORK if own_root else "/")
        kernel.limit_resources(order["cpu"], self._memory + order["memory"], order["file"])
        if not self.holds["landlock"]:
            kernel.restrict_files(self._readable, [kernel.WORK] if own_root else [], self._landlock)
        kernel.drop_privileges()
        if not self.holds["seccomp"]:
            kernel.restrict_calls()


class _NotConfined(RuntimeError):
    """A process that could not be contained, and so ran nothing."""


def _take_over(standard: Sequence[int], null: int) -> None:
    """Make two files standard input and output, for Python as well; errors go nowhere."""
    for file, number in ((standard[0], 0), (standard[1], 1), (null, 2)):
        os.dup2(file, number)
    sys.stdin = sys.__stdin__ = _stream(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = _stream(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")


def _stream(number: int, mode: str, errors: str) -> Any:
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


def _only(files: Sequence[int], told: int) -> Sequence[int]:
    """Close whatever else is open; the files keep their numbers."""
    start = 3
    for file in sorted((*files, told)):
        os.closerange(start, file)
        start = file + 1
    os.closerange(start, 4096)
    return files


def _wait(codes: dict[int, int | None], seconds: float) -> dict[str, Any]:
    """Wait for the first of the processes, note in `codes` which have ended."""
    deadline, first = time.monotonic() + seconds, next(iter(codes))
    while True:
        for pid in [pid for pid, code in codes.items() if code is None]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        left = deadline - time.monotonic()
        if codes[first] is not None or left <= 0:
            return {"code": codes[first], "late": codes[first] is None}
        signal.sigtimedwait([signal.SIGCHLD], left)
