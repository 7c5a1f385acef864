"""What both sides of the sandbox must agree on: the layers of containment and the limits of a run.

Left out: limits that a user would hardly change; they stand in `sandbox.kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LAYERS = ("namespaces", "landlock", "seccomp")
NOT_CONFINED = "not confined"
"""The key of a report about processes that could not be contained, and ran nothing."""


@dataclass(frozen=True)
class Limits:
    """What one process may use.

    cpu_seconds: processor time. wall_seconds: time by the clock, for one that only waits. memory_mb: address space beyond
    an empty interpreter. output_mb: of standard output, and of any file. work_mb: all files of its folder together.
    """

    cpu_seconds: int = 4
    wall_seconds: float = 12.0
    memory_mb: int = 512
    output_mb: int = 16
    work_mb: int = 64

    def order(self, processes: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """What the keeper is sent. processes: kind and number of files of each."""
        return {
            "processes": list(processes),
            "cpu": self.cpu_seconds,
            "seconds": self.wall_seconds,
            "memory": self.memory_mb << 20,
            "file": self.output_mb << 20,
            "work": self.work_mb << 20,
        }
