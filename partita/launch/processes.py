"""What the operating system does for a launch: nothing outlives its parent, and what is left over can be found.

On Linux by `prctl` and /proc; elsewhere processes are ended by their group alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PROC = Path("/proc")
PORTS = range(20_000, 32_000)
"""Below those that the system hands out, so that no connection takes a port that was just found."""
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def dying_with_parent(number: int) -> Callable[[], None]:
    """For `preexec_fn`: the new process gets a signal when the thread that starts it ends, also when that is killed."""
    parent = os.getpid()

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)
            if os.getppid() != parent:  # it ended before the line above
                os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """From now on whatever this process' descendants leave behind becomes its own child, and can be found."""
    if _LIBC is not None:
        _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The processes below `pid` that are not over, wherever they stand."""
    children = dict[int, list[int]]()
    for one in _pids():
        with suppress(OSError, ValueError):
            fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(one)
    found, open_ = list[int](), [pid]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def marked(name: str, value: str) -> list[int]:
    """Processes of this machine, beside this one, that were started with an environment variable."""
    mark = f"{name}={value}".encode()
    found = list[int]()
    for pid in _pids():
        with suppress(OSError):  # it has ended, or is another user's
            if pid != os.getpid() and mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end_all(find: Callable[[], Iterable[int]], grace: float) -> None:
    """End the processes that `find` finds: SIGTERM, and SIGKILL after `grace` seconds, until it finds none."""
    until, told = time.monotonic() + grace, set[int]()
    while left := set(find()):
        late = time.monotonic() >= until
        for pid in left if late else left - told:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        told |= left
        if time.monotonic() >= until + 10:  # nothing more can be done than to kill it: it hangs in the system
            return
        time.sleep(0.05)


def locked(file: IO[Any]) -> bool:
    """Whether this process holds the lock on an open file from now on, until it closes it or ends. Always true where the file
    system has no locks, as some of clusters.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    return True


def free_port(host: str) -> int:
    """A port of this machine that nobody listens at."""
    for _ in range(1000):
        port = random.choice(PORTS)
        with socket.socket() as tried, suppress(OSError):
            tried.bind((host, port))
            return port
    raise OSError(f"no free port at {host} between {PORTS.start} and {PORTS.stop}")


def own_address() -> str:
    """Where other machines reach this one."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # nothing is sent; the system says which address it would send from
        return str(asked.getsockname()[0])
    return socket.gethostname()


def _pids() -> list[int]:
    if not PROC.is_dir():
        return []
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
