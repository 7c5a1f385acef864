"""What the kernel is told about a process that must be contained: namespaces, Landlock, seccomp, resource limits.

Left out: cgroups, which need a delegated group, and anything but Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from partita.tasks.graders.sandbox.syscalls import bpf_program

WORK = "/work"
"""The folder that a program starts in, where it has a root of its own."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
_ACCESS_TIMES = {1024: 1024, 2048: 2048, 4096: 1 << 21}  # flags of statvfs and the same ones of mount
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR, _WRITE_FILE = 4, 8, 2
_OF_FILES = (
    1 | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
)  # the rights that a rule for a file, not a folder, can give
_KNOWN_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # Landlock version: how many rights it knows
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 22, 38, 9

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *given), what)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    given = [None if text is None else text.encode() for text in (source, target, kind)]
    options_given = None if options is None else options.encode()
    _checked(_libc.mount(*given, ctypes.c_ulong(flags), options_given), f"mount {target}")


def _control(option: int, *values: int) -> None:
    _checked(_libc.prctl(option, *map(ctypes.c_ulong, (*values, *[0] * (4 - len(values))))), f"prctl {option}")


def why_not(action: Callable[[], object]) -> str:
    """Try something in a child process: "" if it works there, else what went wrong."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = b""
        try:
            action()
        except BaseException as error:  # the child ends here whatever happens
            told = f"{type(error).__name__}: {error}".encode()
        finally:
            os.write(theirs, told[:1000])
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answers:
        told = answers.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return told.decode() or (f"ended with {status}" if status else "")


def readable_paths() -> list[str]:
    """What a Python program has to read: the standard library, shared libraries, time zones. Nobody's own files."""
    libraries = [f"{sys.base_prefix}/lib", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"]
    libraries += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [*sys.path, *libraries, "/usr/share/zoneinfo", "/etc/localtime", "/etc/ld.so.cache"]
    return [path for path in dict.fromkeys(wanted) if path and os.path.exists(path)]


def enter_own_root(readable: Sequence[str]) -> None:
    """Leave the machine's files, network and shared memory behind: a root in memory with the given paths, read-only.

    Raises OSError where the kernel or its settings do not allow it, half done; try it with `why_not` first.
    """
    uid, gid = os.getuid(), os.getgid()
    sources = {path: os.path.realpath(path) for path in (*readable, *DEVICES) if os.path.exists(path)}
    _checked(_libc.unshare(_NEWUSER | _NEWNS | _NEWNET | _NEWIPC | _NEWUTS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(None, "/", None, _REC | _SLAVE)
    _mount("root", "/tmp", "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    _syscall("pivot_root", _PIVOT_ROOT[platform.machine()], b"/tmp", b"/tmp/old")
    os.chdir("/")
    for path, source in sources.items():
        _show("/old" + source, path)
    _checked(_libc.umount2(b"/old", _DETACH), "umount /old")
    os.rmdir("/old")
    os.mkdir(WORK)
    _mount(None, "/", None, _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _show(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, _BIND | _REC)
    has = os.statvfs(target).f_flag
    # Flags that the mount had must stay, or the kernel refuses the change.
    kept = has & (_NOSUID | _NODEV | _NOEXEC) | sum(flag for seen, flag in _ACCESS_TIMES.items() if has & seen)
    _mount(None, target, None, _REMOUNT | _BIND | _RDONLY | kept)


def mount_work(size: int) -> None:
    """A new empty folder in memory at WORK, for at most `size` bytes. Raises OSError."""
    _mount("work", WORK, "tmpfs", _NOSUID | _NODEV | _NOEXEC, f"size={size},nr_inodes=1000,mode=755")


def unmount_work() -> None:
    """Drop what is in WORK. Raises OSError."""
    _checked(_libc.umount2(WORK.encode(), _DETACH), "umount")


def landlock_version() -> int:
    """The version of Landlock that the kernel has. Raises OSError without one."""
    return _syscall("Landlock", _LANDLOCK_CREATE, None, 0, 1)


def restrict_files(readable: Sequence[str], writable: Sequence[str], version: int) -> None:
    """Allow this process and its children only these paths, no TCP, and no signals or sockets outside (Landlock).

    Raises OSError.
    """
    rights = (1 << _KNOWN_RIGHTS.get(version, 16)) - 1
    ruleset = struct.pack("=QQQ", rights, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    fd = _syscall("landlock_create_ruleset", _LANDLOCK_CREATE, ruleset, len(ruleset), 0)
    for paths, allowed in (
        (readable, _READ_FILE | _READ_DIR),
        (DEVICES, _READ_FILE | _WRITE_FILE),
        (writable, rights & ~1),
    ):
        for path in paths:
            with suppress(FileNotFoundError):  # not every machine has every path
                _allow(fd, path, allowed)
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _syscall("landlock_restrict_self", _LANDLOCK_RESTRICT, fd, 0)
    os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= _OF_FILES
    _syscall("landlock_add_rule", _LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def drop_privileges() -> None:
    """Give up all capabilities, for good. Raises OSError."""
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # version 3 of the call; this process; no sets
    _checked(_libc.capset(header, none), "capset")
    _control(_PR_SET_NO_NEW_PRIVS, 1)


def restrict_calls() -> None:
    """Allow this process only the system calls of `sandbox.syscalls`, for good. Raises OSError, or KeyError for a machine
    without a table.
    """
    program = bpf_program(platform.machine(), os.getpid())
    kept = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept)))
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, 2, ctypes.addressof(head))


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    _control(_PR_SET_PDEATHSIG, _SIGKILL)


def limit_resources(cpu_seconds: int, memory: int, file_size: int) -> None:
    """Limits on processor time, on bytes of address space and of one file. Raises ValueError where they cannot be set."""
    limits = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),  # one may catch the signal at the first, not at the second
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (file_size, file_size),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, (soft, hard) in limits.items():
        resource.setrlimit(which, (soft, hard))
