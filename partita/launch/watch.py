"""Watching a launch, whatever started it: what the first learner says is shown, who ends is heard of, nothing is left over.

A learner's end ends the run. A server's is answered by starting it again, so many times.
Left out: how roles are started (`Launcher`), and what the end of a run means for its user (`start`).
"""

from __future__ import annotations

import codecs
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from partita.launch import processes
from partita.launch.ended import EARLY, LaunchError, LaunchRefused, Status, how, last_lines, read_status
from partita.launch.roles import ID, MARK, Launch, Launcher, Role, Say

TICK = 0.1
SETTLE = 5.0
"""After a learner's end the others lose their connections: whose end came first is known when all have ended."""
RESTART_PAUSE = 1.0


class Ask:
    """What the launcher was told by signals. early: SIGUSR1, the run is to end after its step."""

    def __init__(self) -> None:
        self.early = False


class Terminated(SystemExit):
    """SIGTERM or SIGHUP: everything ends."""


@contextmanager
def heard() -> Iterator[Ask]:
    """Hear signals while the block runs; only the main thread can."""
    ask = Ask()

    def early(number: int, frame: FrameType | None) -> None:
        ask.early = True

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield ask
        return
    handlers: dict[int, Any] = {signal.SIGUSR1: early, signal.SIGTERM: end, signal.SIGHUP: end}
    ignored = [number for number in handlers if signal.getsignal(number) == signal.SIG_IGN]  # as nohup has it
    before = {number: signal.signal(number, handlers[number]) for number in handlers if number not in ignored}
    try:
        yield ask
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Tail:
    """What is written to a log from now on, on the terminal."""

    log: Path
    at: int = field(init=False)
    _text: codecs.IncrementalDecoder = field(init=False)  # a read may end within a character

    def __post_init__(self) -> None:
        self.at = self.log.stat().st_size if self.log.exists() else 0
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self) -> None:
        """Everything that is new."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self.at)
            new = file.read()
            self.at += len(new)
            if new:
                sys.stdout.write(self._text.decode(new))
                sys.stdout.flush()


@dataclass
class Watched:
    """The roles that run, by name, and how often each server was started again."""

    launch: Launch
    launcher: Launcher
    say: Say
    running: dict[str, Any] = field(default_factory=dict[str, Any])
    restarts: dict[str, int] = field(default_factory=dict[str, int])

    def start(self, role: Role) -> None:
        """Start a role."""
        self.launch.status(role).unlink(missing_ok=True)
        self.running[role.name] = self.launcher.start(role)

    def ended(self) -> dict[str, Status]:
        """The roles that have ended since the last call, and how."""
        found = dict[str, Status]()
        for name, handle in list(self.running.items()):
            code = self.launcher.poll(handle)
            if code is not None:
                del self.running[name]
                found[name] = self._status(self.launch.role(name), code)
        return found

    def again(self, role: Role, status: Status) -> None:
        """Start a server that died once more. Raises LaunchError where that has been done often enough."""
        used, limit = self.restarts.get(role.name, 0), self.launch.server_restarts
        what = f"{role.name} ended {how(status.code)}"
        if used >= limit:
            tried = f" after {used} restarts (allocation.server_restarts)" if used else ""
            raise LaunchError(self.told(role, status, f"{what}{tried}"))
        self.restarts[role.name] = used + 1
        self.say(f"{what}; it is started again ({used + 1} of {limit}). Its log: {self.launch.log(role)}")
        self._sweep(role)
        time.sleep(RESTART_PAUSE)
        self.start(role)

    def told(self, role: Role, status: Status, what: str) -> str:
        """What is said of a role whose end ends the run."""
        lines = "".join(f"\n  | {line}" for line in status.lines) or " (it printed nothing)"
        return f"{what}; its last lines ({self.launch.log(role)}):{lines}"

    def end(self) -> None:
        """End everything that runs, and what it left over on this machine."""
        grace = self.launch.scheduler.grace_seconds
        self._signal(signal.SIGTERM)
        until = time.monotonic() + grace + 5.0  # a role gives its command the grace, and then has to clear up
        try:
            while self.running and time.monotonic() < until:
                self.ended()
                time.sleep(TICK)
        except BaseException:  # told once more
            until = 0.0
            raise
        finally:
            self._signal(signal.SIGKILL)
            self.launcher.close()
            processes.end_all(lambda: processes.marked(ID, self.launch.id), 1.0 if until else 0.0)

    def _signal(self, number: int) -> None:
        for handle in self.running.values():
            self.launcher.signal(handle, number)

    def _sweep(self, role: Role) -> None:
        """What a role whose own process was killed has left over on this machine."""
        mark = f"{self.launch.id}:{role.name}"
        processes.end_all(lambda: processes.marked(MARK, mark), 1.0)

    def _status(self, role: Role, code: int) -> Status:
        written = read_status(self.launch.status(role), self.launch.id)
        return written or Status(self.launch.id, code, time.time(), last_lines(self.launch.log(role)))


def watch(launch: Launch, launcher: Launcher, say: Say) -> int:
    """Start every role and stay until the first learner has ended: 0, or EARLY.

    Raises LaunchError and LaunchRefused with what the role said that ended first. No process is left in any case.
    """
    watched, tail = Watched(launch, launcher, say), Tail(launch.log(launch.learners[0]))
    with heard() as ask:
        try:
            for role in launch.roles:
                watched.start(role)
            return _until_end(watched, tail, ask)
        finally:
            watched.end()
            tail.show()


def _until_end(watched: Watched, tail: Tail, ask: Ask) -> int:
    launch, first, passed = watched.launch, watched.launch.learners[0], False
    while True:
        tail.show()
        if ask.early and not passed and first.name in watched.running:
            passed = True
            watched.say("told to end: the step is finished, a checkpoint saved, and the run ends")
            watched.launcher.signal(watched.running[first.name], signal.SIGUSR1)
        ended = watched.ended()
        learners = {name: status for name, status in ended.items() if launch.role(name).kind == "learner"}
        leader = learners.get(first.name)
        if leader is not None and (leader.code in (0, EARLY) or (passed and leader.code == -signal.SIGUSR1)):
            # a signal before the first step ends the process: nothing is lost, and it is said the same way
            _let_go(watched)
            return EARLY if leader.code else 0
        if any(status.code for status in learners.values()):
            _fail(watched, learners)
        for name in ended.keys() - learners.keys():
            watched.again(launch.role(name), ended[name])
        time.sleep(TICK)


def _let_go(watched: Watched) -> None:
    """The other learners were told of the end; they have a moment for it."""
    until = time.monotonic() + min(SETTLE, watched.launch.scheduler.grace_seconds)
    while time.monotonic() < until and any(name.startswith("learner") for name in watched.running):
        watched.ended()
        time.sleep(TICK)


def _fail(watched: Watched, learners: dict[str, Status]) -> None:
    """Raise with the learner whose end brought the others down: not one that only lost its connection to another."""
    until = time.monotonic() + min(SETTLE, watched.launch.scheduler.grace_seconds)
    while time.monotonic() < until and any(name.startswith("learner") for name in watched.running):
        learners |= {name: status for name, status in watched.ended().items() if name.startswith("learner")}
        time.sleep(TICK)
    failed = {name: status for name, status in learners.items() if status.code}
    name = min(failed, key=lambda one: (failed[one].by_another, failed[one].at))
    status = failed[name]
    told = watched.told(watched.launch.role(name), status, f"{name} ended {how(status.code)}")
    raise LaunchRefused(told) if status.code == 2 else LaunchError(told)
