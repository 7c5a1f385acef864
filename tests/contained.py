"""Runs programs in a sandbox and checks that nothing is left of them."""

from pathlib import Path

from partita.tasks.graders.sandbox.box import Ran, Sandbox, Source
from partita.tasks.graders.sandbox.orders import LAYERS, Limits

SHORT = Limits(cpu_seconds=1, wall_seconds=2.0, memory_mb=128, output_mb=1, work_mb=4)
ALL, WITHOUT_ROOT = LAYERS, ("landlock", "seccomp")


def children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def run(box: Sandbox, code: str, stdin: bytes = b"", limits: Limits = SHORT) -> Ran:
    """Run it; then nothing may be left of it, and the next program must work."""
    ran = box.program(Source(code), stdin, limits)
    assert children(box._process.pid) == []
    assert box.program(Source("print(input())"), b"still here", SHORT).result == b"still here\n"
    return ran
