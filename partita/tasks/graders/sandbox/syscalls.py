"""The system calls that a program under test may make, as a seccomp filter: one process, threads, files, clocks.

Whatever is not listed fails with EPERM: new processes and programs, sockets, signals to others, tracing, namespaces,
mounts, modes and owners of files, and everything that is newer than this list.

Left out: which files may be opened. A filter sees numbers, not paths; see `kernel.restrict_files`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

# machine: (AUDIT_ARCH number, column of the tables below)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name, number on x86_64, number on aarch64; - where the machine has no such call. The most frequent stand first.
_ALLOWED = """
read 0 63, write 1 64, mmap 9 222, munmap 11 215, brk 12 214, futex 202 98, lseek 8 62, fstat 5 80, newfstatat 262 79,
openat 257 56, close 3 57, clock_gettime 228 113, gettid 186 178, getpid 39 172, rt_sigaction 13 134,
rt_sigprocmask 14 135, mprotect 10 226, mremap 25 216, madvise 28 233, msync 26 227, membarrier 324 283,
readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70, preadv2 327 286,
pwritev2 328 287, close_range 436 436, fsync 74 82, fdatasync 75 83, ftruncate 77 46, truncate 76 45, fallocate 285 47,
open 2 -, creat 85 -, stat 4 -, lstat 6 -, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276,
statfs 137 43, fstatfs 138 44, umask 95 166, dup 32 23, dup2 33 -, dup3 292 24, flock 73 32, sendfile 40 71,
copy_file_range 326 285, pipe 22 -, pipe2 293 59, select 23 -, pselect6 270 72, poll 7 -, ppoll 271 73,
epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441,
eventfd 284 -, eventfd2 290 19, recvfrom 45 207, sendto 44 206, shutdown 48 210, getsockopt 55 209, getsockname 51 204,
getpeername 52 205, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, exit 60 93, exit_group 231 94,
sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, arch_prctl 158 -, getcpu 309 168, rt_sigreturn 15 139,
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -,
setitimer 38 103, getitimer 36 102, restart_syscall 219 128, clock_getres 229 114, clock_nanosleep 230 115,
nanosleep 35 101, gettimeofday 96 169, time 201 -, times 100 153, timerfd_create 283 85, timerfd_settime 286 86,
timerfd_gettime 287 87, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgid 121 155, getpgrp 111 -, getsid 124 156, uname 63 160,
sysinfo 99 179, getrlimit 97 163, setrlimit 160 164, getrusage 98 165, getpriority 140 141, getrandom 318 278
"""
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), (435, 435), 0x10000
_NEWEST = 470  # what is newer than this list does not exist for the program, so that it takes the older way
# Calls of which only some are allowed: numbers, and for each argument that decides its index and its values.
_BY_ARGUMENT = {
    # AF_UNIX; SOCK_STREAM, also with SOCK_CLOEXEC. A stream is connected, so an address given to sendto reaches nobody.
    "socketpair": ((53, 199), {0: (1,), 1: (1, 1 | 0o2000000)}),
    "ioctl": (
        (16, 29),
        {1: (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)},
    ),  # sizes and modes of terminals and pipes
    "prctl": ((157, 167), {0: (15, 16, 0x53564D41)}),  # names of threads and of memory
    # No owner and no signal of a file: F_SETOWN with F_SETSIG would kill other processes.
    "fcntl": ((72, 25), {1: (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)}),
}
# The same for a process id: only the program's own, or 0 where that means itself.
_BY_PROCESS = {"kill": ((62, 129), ()), "tgkill": ((234, 131), ()), "prlimit64": ((302, 261), (0,))}

_EPERM, _ENOSYS = 1, 38
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _GREATER, _RETURN = 0x20, 0x15, 0x45, 0x25, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


def bpf_program(machine: str, pid: int) -> bytes:
    """The filter for a process with this id on this machine, as `struct sock_filter` records. Raises KeyError for a
    machine without a table.
    """
    arch, column = MACHINES[machine]
    body = [_do(_LOAD, _ARCH_AT), _do(_EQUAL, arch, 1, 0), _do(_RETURN, _KILL), _do(_LOAD, _NUMBER_AT)]
    for number in _allowed(column):
        body += [_do(_EQUAL, number, 0, 1), _do(_RETURN, _ALLOW)]
    for numbers, allowed in _BY_ARGUMENT.values():
        body += _decided_by(numbers[column], allowed)
    for numbers, values in _BY_PROCESS.values():
        body += _decided_by(numbers[column], {0: (*values, pid)})
    thread = [_do(_LOAD, _ARGUMENTS_AT), _do(_ANY_BIT, _CLONE_THREAD, 0, 1), _do(_RETURN, _ALLOW), _refuse(_EPERM)]
    body += [_do(_EQUAL, _CLONE[column], 0, len(thread)), *thread]
    # The C library then falls back on clone, whose flags a filter can read.
    body += [_do(_EQUAL, _CLONE3[column], 0, 1), _refuse(_ENOSYS), _do(_GREATER, _NEWEST, 0, 1), _refuse(_ENOSYS)]
    return b"".join([*body, _refuse(_EPERM)])


def _allowed(column: int) -> Iterator[int]:
    for entry in _ALLOWED.replace("\n", " ").split(","):
        number = entry.split()[1 + column]
        if number != "-":
            yield int(number)


def _decided_by(number: int, allowed: Mapping[int, tuple[int, ...]]) -> list[bytes]:
    block: list[bytes] = []
    for argument, values in allowed.items():
        block.append(_do(_LOAD, _ARGUMENTS_AT + 8 * argument))
        block += [_do(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]  # past the refusal
        block.append(_refuse(_EPERM))
    block.append(_do(_RETURN, _ALLOW))
    return [_do(_EQUAL, number, 0, len(block)), *block]


def _do(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(errno: int) -> bytes:
    return _do(_RETURN, _ERRNO | errno)
