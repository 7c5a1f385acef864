"""Runs functions in processes that can be killed: the parent side of reward scoring.

A thread cannot be stopped and a signal does not reach one, so every call runs in a worker process with a deadline. A
worker that overruns, dies or runs out of memory is replaced; the others do not notice. Functions that a config names
are imported by a fresh Python process, which loads nothing else and is safe beside threads and torch. Functions handed
over as objects (a notebook cell, a closure) cannot be imported again, so their process is forked from this one when
the pool is made: make the pool before models are loaded and threads run, and keep torch out of such functions.

Left out: coroutines. A call blocks its thread until the answer or the deadline; `tasks.reward` gives it a thread.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import LifoQueue
from threading import Lock
from typing import Any

from partita.tasks import worker
from partita.tasks.functions import ending
from partita.tasks.reward_call import Call, Outcome

_START = (
    "import json,sys; sys.path[:]=json.loads(sys.argv[1]); from partita.tasks.worker import run_imported; "
    "run_imported(int(sys.argv[2]))"
)


class PoolError(RuntimeError):
    """The worker processes cannot be started or are gone; a reward function that cannot be imported ends up here."""


class Nursery:
    """Handle on the process that forks workers; see `tasks.worker`. Safe to use from several threads."""

    def __init__(self, functions: Sequence[str] | Sequence[Callable[..., Any]]) -> None:
        self._lock = Lock()
        self._ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control, theirs = socket.socketpair()
        names = [function for function in functions if isinstance(function, str)]
        if len(names) == len(functions):
            argv = [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
            self._pid = self._process.pid
            with suppress(ConnectionError):
                worker.send(self._control, json.dumps({"functions": names}).encode())
        else:
            self._pid = _fork_nursery(self._control, theirs, [f for f in functions if not isinstance(f, str)])
        theirs.close()

    def wait_ready(self, seconds: float) -> None:
        """Wait until the functions are imported. Raises PoolError when that fails or takes too long."""
        with self._lock:
            if self._ready:
                return
            if not select.select([self._control], [], [], seconds)[0]:
                raise PoolError(f"importing the reward functions took more than reward.start_seconds={seconds:g}")
            frame = worker.receive(self._control)
            answer = json.loads(frame) if frame is not None else {"error": "the process ended while it was starting"}
            if "error" in answer:
                raise PoolError(f"reward functions cannot be loaded in a worker process: {answer['error']}")
            self._ready = True

    def fork(self) -> tuple[int, socket.socket]:
        """A new worker: its process id and the socket that it answers on."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._control, [worker.FORK + struct.pack("!q", 0)], [theirs.fileno()])
                return self._number(), ours
        except OSError as error:
            ours.close()
            raise PoolError("the process that starts reward workers is gone") from error
        finally:
            theirs.close()

    def end(self, pid: int) -> int:
        """Kill and reap a worker: its exit code, negative for the signal that ended it."""
        try:
            with self._lock:
                self._control.sendall(worker.END + struct.pack("!q", pid))
                return self._number()
        except OSError as error:
            raise PoolError("the process that starts reward workers is gone") from error

    def _number(self) -> int:
        data = self._control.recv(8, socket.MSG_WAITALL)
        if len(data) < 8:
            raise ConnectionError("nursery gone")
        return struct.unpack("!q", data)[0]

    def close(self) -> None:
        """End the process and all its workers."""
        with self._lock:
            self._control.close()  # the nursery ends its workers when it sees this
            if self._process is not None:
                if not self._ready:  # perhaps it hangs in an import
                    self._process.kill()
                self._process.wait()
            elif self._pid:
                _reap(self._pid)
                self._pid = 0


def _fork_nursery(ours: socket.socket, theirs: socket.socket, functions: Sequence[Callable[..., Any]]) -> int:
    if not hasattr(os, "fork"):
        raise PoolError("reward functions must be named (path/file.py:function) on a system without fork")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        ours.close()
        worker.run_forked(theirs, functions)
    finally:
        os._exit(0)


def _reap(pid: int, seconds: float = 2.0) -> None:
    deadline = time.monotonic() + seconds
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.005)


@dataclass(frozen=True)
class _Worker:
    pid: int
    channel: socket.socket


class Pool:
    """At most `processes` workers for a fixed list of functions, all names or all objects.

    memory_gb: what a call may add to what is loaded already; None for no limit. own_memory_gb: the same of single functions, by
    their number.
    """

    def __init__(
        self,
        functions: Sequence[str] | Sequence[Callable[..., Any]],
        *,
        processes: int,
        memory_gb: float | None,
        start_seconds: float = 60.0,
        own_memory_gb: Mapping[int, float] | None = None,
    ) -> None:
        self._nursery = Nursery(functions)
        self._own = dict(own_memory_gb or {})
        self._limits = [_bytes(self._own.get(which, memory_gb)) for which in range(len(functions))]
        self._start_seconds = start_seconds
        self._closed = False
        # Last in, first out, so that a few busy workers serve a light load; None is room for one that was not started.
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)

    def start(self) -> None:
        """Wait until the functions are imported. Raises PoolError when they cannot be."""
        self._nursery.wait_ready(self._start_seconds)

    def call(self, which: int, arguments: Mapping[str, Any], seconds: float) -> Outcome:
        """Call a function by keyword about one response; see `ask`."""
        return self.ask(Call(which, keywords=dict(arguments)), seconds)[0]

    def ask(self, call: Call, seconds: float) -> list[Outcome]:
        """Make a call in a worker: an outcome for each response that it is about, the same for all where the call fails.

        Waiting for a free worker does not count against `seconds`. Raises PoolError when there are no workers any more.
        """
        try:
            frame = pickle.dumps((self._limits[call.which], *call.as_tuple()))
        except Exception as error:
            why = f"arguments cannot be sent to a worker process: {type(error).__name__}: {error}"
            return [Outcome(None, error=why)] * call.count
        self.start()
        mine: _Worker | None = self._idle.get()
        try:
            if self._closed:
                raise PoolError("the reward workers are closed")
            mine = mine or _Worker(*self._nursery.fork())
            answer = _exchange(mine.channel, frame, seconds)
            if answer is not None and not answer.get("memory"):
                return _outcomes(answer, call.count)
            gone, mine = mine, None
            return [self._bury(gone, answer, seconds, call.which)] * call.count
        finally:
            self._idle.put(mine)

    def _bury(self, gone: _Worker, answer: Mapping[str, Any] | None, seconds: float, which: int) -> Outcome:
        """End a worker that is not fit for another call, and say why."""
        hung_up = answer is None and _hung_up(gone.channel)
        gone.channel.close()
        code = self._nursery.end(gone.pid)
        if answer is not None:  # out of memory: what is left of the worker cannot be trusted
            where = "its own memory_gb" if which in self._own else "reward.memory_gb"
            limit = f"memory beyond {where}={self._limits[which] / 2**30:g}\n"
            return Outcome(None, error=limit + str(answer["error"]))
        if not hung_up:
            why = f"no result within {seconds:g} seconds (reward.timeout_seconds)"
            return Outcome(None, error=why, timed_out=True, again=True)
        return Outcome(None, error=f"the worker process ended during the call: {ending(code)}", again=True)

    def close(self) -> None:
        """End all processes, running calls included."""
        self._closed = True
        while not self._idle.empty():
            with suppress(Exception):
                if (idle := self._idle.get_nowait()) is not None:
                    idle.channel.close()
        self._idle.put(None)  # wakes a waiting call, which sees that the pool is closed
        self._nursery.close()


def _bytes(gigabytes: float | None) -> int:
    return 0 if gigabytes is None else int(gigabytes * 2**30)


def _outcomes(answer: Mapping[str, Any], count: int) -> list[Outcome]:
    if "error" in answer:
        return [Outcome(None, error=str(answer["error"]), again=bool(answer["raised"]))] * count
    return [
        Outcome(
            None if reward is None else float(reward),
            {str(name): float(value) for name, value in parts.items()},
            notes={str(name): str(text) for name, text in notes.items()},
            steps=tuple((int(at), float(value)) for at, value in steps),
        )
        for reward, parts, notes, steps in answer["outcomes"]
    ]


def _exchange(channel: socket.socket, frame: bytes, seconds: float) -> Mapping[str, Any] | None:
    """Send a call and read its answer; None when the deadline passes or the worker goes away."""
    deadline = time.monotonic() + seconds
    channel.settimeout(max(seconds, 0.001))
    try:
        worker.send(channel, frame)
        data = bytearray()
        while len(data) < 8 or len(data) < 8 + struct.unpack_from("!Q", data)[0]:
            if data or len(frame) > 1 << 16:  # a short call is sent at once, and an answer mostly comes in one piece
                channel.settimeout(max(deadline - time.monotonic(), 0.001))
            part = channel.recv(1 << 16)
            if not part:
                return None
            data += part
        return json.loads(data[8:])
    except (TimeoutError, ConnectionError, ValueError):
        return None


def _hung_up(channel: socket.socket) -> bool:
    """Whether the worker's end of the channel is closed, which is how a dead worker shows."""
    channel.setblocking(False)
    try:
        return channel.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
