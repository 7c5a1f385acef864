"""The child side of reward scoring: a nursery that holds the functions and forks one worker after another.

The nursery is a small process without threads that never calls a reward: it forks a worker on request (a few
milliseconds, everything imported already) and kills one on request, with all processes that its rewards have started: on
Linux these become children of the nursery when theirs ends, whatever session they put themselves in. A worker answers calls
over its own socket until it is closed. Calls arrive pickled from the parent, which is trusted; answers go back as JSON, since
what made them is not.

Left out: deadlines. The parent keeps them and asks the nursery to kill; see `tasks.pool`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from partita.tasks.functions import ReturnedError, error_text, load_object
from partita.tasks.reward_call import Call
from partita.tasks.reward_readings import run

if sys.platform != "win32":
    import resource

FORK, END = b"F", b"E"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def send(channel: socket.socket, data: bytes) -> None:
    """One frame: eight bytes of length, then the data."""
    channel.sendall(struct.pack("!Q", len(data)) + data)


def receive(channel: socket.socket) -> bytes | None:
    """One frame, or None when the other side is gone."""
    header = _exactly(channel, 8)
    return None if header is None else _exactly(channel, struct.unpack("!Q", header)[0])


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        try:
            part = channel.recv(min(count, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def run_imported(control_fd: int) -> None:
    """Entry of a nursery that was started afresh: import what the first frame names, then serve."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    setup = receive(control)
    if setup is None:
        return
    names: list[str] = json.loads(setup)["functions"]
    try:
        functions = [load_object(name) for name in names]
    except BaseException as error:  # the parent must hear of anything, a sys.exit() at import included
        send(control, json.dumps({"error": error_text(error)}).encode())
        return
    serve(control, functions)


def run_forked(control: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """Entry of a nursery that was forked from the parent because its functions cannot be imported by name."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    # The parent's files, sockets and devices must not stay open through us.
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 65536)
    serve(control, functions)


def serve(control: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """Fork and kill workers as the parent asks, until it is gone; then end them all."""
    gc.freeze()  # keeps collections in workers from touching, and so copying, the pages they share with us
    # Loaded once: a worker then asks the kernel to be killed with us.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    imported = children()  # what importing the functions has started is none of a worker's
    send(control, json.dumps({"ready": os.getpid()}).encode())
    living: set[int] = set()
    try:
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1 + 8, 1)
            if len(message) < 9:
                return
            number = struct.unpack("!q", message[1:])[0]
            if message[:1] == FORK:
                pid = _fork(control, fds[0], functions, libc)
                living.add(pid)
                control.sendall(struct.pack("!q", pid))
            elif number in living:
                living.discard(number)
                code = end(number)
                end_orphans(living | imported)
                control.sendall(struct.pack("!q", code))
    except ConnectionError:
        return
    finally:
        for pid in living:
            end(pid)
        end_orphans(set())


def end(pid: int) -> int:
    """Kill a worker with everything in its process group and reap it: its exit code, negative for a signal."""
    # Not reaped before this, so the number is still ours and cannot mean another process.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children() -> set[int]:
    """The child processes of this process; none where the system does not list them."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, listed.read_text().split())) if listed.exists() else set()


def end_orphans(kept: set[int]) -> None:
    """Kill all children but those that are kept, and what these leave behind, until there is none."""
    while left := children() - kept:
        for pid in left:
            end(pid)


def _fork(control: socket.socket, fd: int, functions: Sequence[Callable[..., Any]], libc: ctypes.CDLL | None) -> int:
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    try:
        os.setsid()
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        control.close()
        os.dup2(2, 1)  # what a reward prints must not mix with the run's own output
        answer_calls(socket.socket(fileno=fd), functions)
    finally:
        os._exit(0)


class Memory:
    """What a call may add to the data that the worker began with, of which it may use again what the process that it was forked
    from had freed; nothing is limited where the system does not say what that is.
    """

    def __init__(self) -> None:
        usage = Path("/proc/self/statm")
        known = sys.platform != "win32" and usage.exists()
        self._begun = int(usage.read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE") if known else None
        self._extra = 0

    def allow(self, extra: int) -> None:
        """So many bytes from now on; 0 for no limit."""
        if self._begun is None or extra == self._extra:
            return
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = self._begun + extra if extra else hard
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
        self._extra = extra


def answer_calls(channel: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """Call functions until the parent closes the channel; one call at a time."""
    me, memory = os.getpid(), Memory()
    while (frame := receive(channel)) is not None:
        answer = json.dumps(_call(functions, frame, memory)).encode()
        if os.getpid() != me:  # the reward forked, and this is the copy: it must not answer as well
            os._exit(0)
        send(channel, answer)


def _call(functions: Sequence[Callable[..., Any]], frame: bytes, memory: Memory) -> dict[str, Any]:
    try:
        extra, *values = pickle.loads(frame)
        memory.allow(extra)
        call = Call(*values)
        outcomes = run(functions[call.which], call)
    except BaseException as error:  # SystemExit and MemoryError included: all of them are this call's error
        full = isinstance(error, MemoryError)
        return {"error": error_text(error), "memory": full, "raised": not isinstance(error, ReturnedError)}
    return {"outcomes": [(one.reward, one.parts, one.notes, one.steps) for one in outcomes]}
