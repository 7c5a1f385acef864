"""A hostile program that tells how far it got: what a new sandbox must withstand before it judges anything.

Left out: what only takes time or memory (endless loops, huge outputs); the tests have these.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

PROBE = """
import json, os, signal, sys

at = json.load(sys.stdin)

def fork():
    if os.fork() == 0:
        os._exit(0)

def socket_of(family):
    import socket
    socket.socket(getattr(socket, family))

def environment():
    if not os.environ:
        raise PermissionError

def raised():
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def traced():
    import ctypes
    if ctypes.CDLL(None).ptrace(0x4206, at["pid"], None, None):  # PTRACE_SEIZE: does not stop the process
        raise PermissionError

attempts = {
    "read a file of yours": lambda: open(at["secret"]).read(),
    "list a folder of yours": lambda: os.listdir(at["folder"]),
    "read the environment of your process": lambda: open(f"/proc/{at['pid']}/environ", "rb").read(),
    "have an environment": environment,
    "write into a folder of yours": lambda: open(at["folder"] + "/new", "w"),
    "delete a file of yours": lambda: os.remove(at["secret"]),
    "change the mode of a file of yours": lambda: os.chmod(at["secret"], 0o777),
    "start a process": fork,
    "signal your process": lambda: os.kill(at["pid"], 0),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "trace your process": traced,
    "open an internet socket": lambda: socket_of("AF_INET"),
    "open a local socket": lambda: socket_of("AF_UNIX"),
    "leave its session": os.setsid,
    "change its groups": lambda: os.setgroups([]),
    "raise its own limits": raised,
    "use more memory than it may": lambda: bytearray(at["memory"]),
}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
    except (OSError, ValueError, MemoryError):
        continue
    done.append(name)
print(json.dumps({"tried": list(attempts), "done": done}), flush=True)
os.execv(sys.executable, ["python", "-c", "print('a program of its own')"])
"""


def probe_input(folder: str, memory: int) -> bytes:
    """What the probe is to attack: files in this folder, and the calling process. memory: bytes that it may not get."""
    secret = Path(folder, "secret")
    secret.write_text("a secret")
    return json.dumps({"folder": folder, "secret": str(secret), "pid": os.getpid(), "memory": memory}).encode()


def read_report(output: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the probe tried, and what of it worked; nothing at all where it did not get to its end."""
    lines = output.decode(errors="replace").splitlines()
    if not lines:
        return (), ()
    report = json.loads(lines[0])
    # Its last attempt replaces it, and only then is there a second line.
    return tuple(report["tried"]), (*report["done"], *["start a program of its own"] * (len(lines) > 1))


def folder_of_secrets() -> tempfile.TemporaryDirectory[str]:
    """A folder that a program must not see."""
    return tempfile.TemporaryDirectory(prefix="partita-secret-")
