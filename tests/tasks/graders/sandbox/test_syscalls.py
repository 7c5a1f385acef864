import struct

import pytest

from partita.tasks.graders.sandbox.syscalls import MACHINES, bpf_program

PID = 4242
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
# From the kernel's own tables: (x86_64, aarch64); None where the machine has no such call.
ALLOWED = {
    "read": (0, 63),
    "openat": (257, 56),
    "futex": (202, 98),
    "exit_group": (231, 94),
    "poll": (7, None),
    "getrandom": (318, 278),
}
REFUSED = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198), "connect": (42, 203),
    "ptrace": (101, 117), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "chmod": (90, None), "fchmodat": (268, 53),
    "chown": (92, None), "setuid": (105, 146), "setsid": (112, 157), "setpgid": (109, 154), "bpf": (321, 280), "keyctl": (250, 219),
    "process_vm_readv": (310, 270), "io_uring_setup": (425, 425), "memfd_create": (319, 279), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "tkill": (200, 130), "shmget": (29, 194), "perf_event_open": (298, 241), "symlinkat": (266, 36),
}  # fmt: skip


def decide(machine, number, *arguments, arch=None):
    """What the filter says: a few lines of the kernel's interpreter."""
    data = struct.pack("=IIQ6Q", number, arch or MACHINES[machine][0], 0, *arguments, *[0] * (6 - len(arguments)))
    records = list(struct.iter_unpack("=HBBI", bpf_program(machine, PID)))
    value, at = 0, 0
    while True:
        code, if_true, if_false, k = records[at]
        at += 1
        if code == 0x06:
            return k
        if code == 0x20:
            value = struct.unpack_from("=I", data, k)[0]
        else:
            true = {0x15: value == k, 0x45: bool(value & k), 0x25: value > k}[code]
            at += if_true if true else if_false


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def numbers(table, machine):
    return {name: pair[MACHINES[machine][1]] for name, pair in table.items() if pair[MACHINES[machine][1]] is not None}


def test_what_python_needs_is_allowed_and_what_reaches_out_is_not(machine):
    assert {name: decide(machine, n) for name, n in numbers(ALLOWED, machine).items()} == dict.fromkeys(
        numbers(ALLOWED, machine), ALLOW
    )
    assert {name: decide(machine, n) for name, n in numbers(REFUSED, machine).items()} == dict.fromkeys(
        numbers(REFUSED, machine), EPERM
    )


@pytest.mark.parametrize(
    ("call", "allowed", "refused"),
    [
        ((56, 220), [(0x3D0F00,)], [(17,), (0x10000000,), (0,)]),  # clone: threads, no processes, no namespaces
        ((62, 129), [(PID, 9)], [(1, 9), (0, 9), (2**32 - 1, 9), (PID + 1, 0)]),  # kill
        ((234, 131), [(PID, 5, 6)], [(1, 1, 9)]),  # tgkill
        ((302, 261), [(0, 7), (PID, 7)], [(1, 7)]),  # prlimit64
        ((53, 199), [(1, 1), (1, 0o2000001)], [(1, 2), (2, 1), (30, 1), (1, 5)]),  # socketpair: connected local streams
        ((72, 25), [(3, 1), (3, 1030)], [(3, 8), (3, 10), (3, 15)]),  # fcntl: no owner, no signal
        ((16, 29), [(0, 0x5401)], [(0, 0x5412)]),  # ioctl: no input put into a terminal
        ((157, 167), [(15,)], [(4,), (22,), (38,)]),  # prctl
    ],
)
def test_some_calls_are_decided_by_their_arguments(machine, call, allowed, refused):
    number = call[MACHINES[machine][1]]
    assert [decide(machine, number, *arguments) for arguments in allowed] == [ALLOW] * len(allowed)
    assert [decide(machine, number, *arguments) for arguments in refused] == [EPERM] * len(refused)


def test_new_calls_do_not_exist_and_other_machines_calls_kill(machine):
    assert decide(machine, 435) == ENOSYS and decide(machine, 600) == ENOSYS  # clone3; one that nobody knows yet
    assert decide(machine, 0x40000000) == ENOSYS  # the x32 calls of x86_64
    assert decide(machine, 0, arch=0x40000003) == KILL
