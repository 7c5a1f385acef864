"""The side of the sandbox that asks: makes the files, sends orders to a keeper, reads what came out.

Left out: which programs and tests there are; see `graders.code`. Only Linux, on x86_64 and aarch64.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any

from partita.tasks.graders.sandbox.orders import LAYERS, NOT_CONFINED, Limits
from partita.tasks.graders.sandbox.probe import PROBE, folder_of_secrets, probe_input, read_report
from partita.tasks.graders.sandbox.wire import from_wire

_START = (
    "import sys; sys.path.append(sys.argv[1]); from partita.tasks.graders.sandbox.keeper import serve; "
    "sys.path.pop(); serve(int(sys.argv[2]), sys.argv[3:])"
)
# As isolated as -I, but the environment is ours: the order of sets, and so what programs print, is the same in every run.
_PYTHON = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c", _START)
_ROOT = str(Path(__file__).resolve().parents[4])
_GRACE_SECONDS = 20.0  # beyond a run's own limit, before its keeper is taken for dead
_LONGEST_REPORT = 1 << 16
_LONGEST_VALUE = 4 << 20  # as objects it takes some thirty times this
HOW_TO_ALLOW = (
    "It needs Linux (x86_64 or aarch64) with seccomp filters, and Landlock or unprivileged user namespaces. In a container: "
    "allow the system calls `seccomp` and `landlock_*`, or unshare and mount (docker run --security-opt seccomp=unconfined). "
    "On a machine: a kernel from 5.13 on with landlock in `lsm=`, or sysctl user.max_user_namespaces above 0 (Ubuntu: "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)


class SandboxError(RuntimeError):
    """Programs cannot be contained here, or the process that does it is gone: nothing was judged."""


@dataclass(frozen=True)
class Ran:
    """How a process ended. code: 0 for a good end, negative for a signal, None for one that was killed because time was up.

    result: what it wrote, see the method that ran it.
    """

    code: int | None
    result: bytes = b""

    @property
    def timed_out(self) -> bool:
        """Whether it was ended for the time it took: by the clock, or by the signals XCPU and KILL of the processor limit."""
        return self.code is None or self.code in (-24, -9)


@dataclass(frozen=True)
class Source:
    """A program, and code that is run before it among the same names."""

    code: str
    before: str = ""

    def order(self, **more: Any) -> bytes:
        """What a process is told to load, and what else."""
        return json.dumps({"code": self.code, "before": self.before, **more}).encode()


class Sandbox:
    """One keeper. For one thread at a time; `borrow` gives one out.

    layers: which of LAYERS to use where the kernel has them. holds: for each layer "", or why it is not in force. refused:
    what a hostile program just tried in it and could not do.
    Raises SandboxError where what is left would not contain a program.
    """

    def __init__(self, layers: Sequence[str] = LAYERS, start_seconds: float = 30.0) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"programs cannot be contained on {sys.platform}. {HOW_TO_ALLOW}")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Where an interpreter finds its own library only through this, it could not start without.
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        command = [sys.executable, *_PYTHON, _ROOT, str(theirs.fileno()), *layers]
        with theirs:
            self._process = _started(command, {"PYTHONHASHSEED": "0", **kept}, theirs.fileno())
        try:
            self.holds: dict[str, str] = self._receive(start_seconds)
            self._check()
            self.refused = self._probe()
        except SandboxError:
            self.close()
            raise

    def _check(self) -> None:
        missing = {layer: why for layer, why in self.holds.items() if why}
        if "seccomp" in missing or len(missing) > 1:
            told = "; ".join(f"{layer}: {why}" for layer, why in missing.items())
            raise SandboxError(f"programs cannot be contained on this machine ({told}). {HOW_TO_ALLOW}")

    def _probe(self) -> tuple[str, ...]:
        limits = Limits()
        with folder_of_secrets() as folder:
            ran = self.program(Source(PROBE), probe_input(folder, limits.memory_mb << 21), limits)
        tried, done = read_report(ran.result)
        if not tried:
            raise SandboxError(f"the program that attacks a new sandbox ended with {ran.code} before it was done")
        if done:
            raise SandboxError(f"a program that is contained here could still {', '.join(done)}. {HOW_TO_ALLOW}")
        return tried

    def program(self, source: Source, stdin: bytes, limits: Limits) -> Ran:
        """Run a whole program; result: its standard output."""
        with _files(source.order(), stdin, b"") as (order, given, written):
            self._send([("program", [given, written, order])], limits)
            return Ran(self._code(limits), _read(written))

    def call(self, source: Source, name: str, arguments: Sequence[Any], limits: Limits) -> tuple[Ran, Any]:
        """Call one function, or method of a class Solution, of a program with plain JSON values; what it returned, too.

        Raises ValueError, TypeError, ArithmeticError or RecursionError where that is no plain data: the program's fault.
        """
        with _files(source.order(name=name, arguments=arguments), b"", b"") as (order, none, written):
            self._send([("call", [none, none, order, written])], limits)
            ran = Ran(self._code(limits), _read(written))
        if len(ran.result) > _LONGEST_VALUE:
            raise ValueError(f"the program returned {len(ran.result)} bytes; {_LONGEST_VALUE} are read")
        return ran, from_wire(json.loads(ran.result)) if ran.code == 0 else None

    def tests(self, source: Source, tests: str, limits: Limits) -> Ran:
        """Run tests that are code against a program; result: their verdict as JSON, see `program.run_tests`."""
        ours, theirs = socket.socketpair()
        with (
            ours,
            theirs,
            _files(source.order(), json.dumps({"tests": tests}).encode(), b"", b"") as (program, order, none, written),
        ):
            judge = ("tests", [none, none, order, ours.fileno(), written])
            served = ("served", [none, none, program, theirs.fileno()])
            self._send([judge, served], limits)
            ours.close()  # each side sees the end of the other only if nobody else holds the socket
            theirs.close()
            return Ran(self._code(limits), _read(written))

    def _send(self, processes: Sequence[tuple[str, list[int]]], limits: Limits) -> None:
        order = limits.order([(kind, len(files)) for kind, files in processes])
        files = [file for _, mine in processes for file in mine]
        try:
            socket.send_fds(self._channel, [json.dumps(order).encode()], files)
        except OSError as error:
            raise SandboxError("the process that contains programs is gone") from error

    def _code(self, limits: Limits) -> int | None:
        report = self._receive(limits.wall_seconds + _GRACE_SECONDS)
        if NOT_CONFINED in report:
            raise SandboxError(f"a program could not be contained and was not run: {report[NOT_CONFINED]}")
        return report["code"]

    def _receive(self, seconds: float) -> Any:
        self._channel.settimeout(seconds)
        try:
            data = self._channel.recv(_LONGEST_REPORT)
        except OSError as error:
            raise SandboxError(f"no word from the process that contains programs: {error}") from error
        if not data:
            raise SandboxError(
                f"the process that contains programs ended with {self._process.wait()}; see above for why"
            )
        return json.loads(data)

    def close(self) -> None:
        """End the keeper, a running program included."""
        self._channel.close()
        self._process.kill()  # what it forked dies with it
        self._process.wait()


def _started(command: Sequence[str], environment: dict[str, str], channel: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            pass_fds=[channel],
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"the process that contains programs cannot be started: {error}") from error


@contextmanager
def _files(*contents: bytes) -> Iterator[list[int]]:
    """Files in memory that hold these bytes, at their start."""
    with ExitStack() as opened:
        files: list[int] = []
        for content in contents:
            file = opened.enter_context(os.fdopen(os.memfd_create("order"), "w+b"))
            file.write(content)
            file.seek(0)
            files.append(file.fileno())
        yield files


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def at_a_time() -> int:
    """How many programs run at a time: as many as there are processors for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _idle(process: int) -> LifoQueue[Sandbox | None]:
    """The keepers of this process, made when needed; a forked child must not talk to its parent's."""
    idle: LifoQueue[Sandbox | None] = LifoQueue()
    for _ in range(at_a_time()):
        idle.put(None)
    return idle


_lock = Lock()


@contextmanager
def borrow() -> Iterator[Sandbox]:
    """A sandbox of this process, waiting for one if all are in use. One that failed is replaced. Raises SandboxError."""
    with _lock:
        idle = _idle(os.getpid())
    mine = idle.get()
    try:
        mine = mine or Sandbox()
        yield mine
    except BaseException as error:
        # A wait that was interrupted leaves a report behind, which the next order would take for its own.
        if mine is not None and (isinstance(error, SandboxError) or not isinstance(error, Exception)):
            with suppress(OSError):
                mine.close()
            mine = None
        raise
    finally:
        idle.put(mine)


def what_is_limited() -> dict[str, str]:
    """What contains programs on this machine, layer by layer: "in force", or why not; and what a hostile program tried in
    vain. Raises SandboxError where programs cannot be contained.
    """
    with borrow() as sandbox:
        held = {layer: why or "in force" for layer, why in sandbox.holds.items()}
        return {**held, "refused": ", ".join(sandbox.refused)}
