"""The worker threads of torch's CPU kernels: which thread keeps them while several threads compute in turns.

OpenMP gives every thread that computes a team of its own, and GNU's runtime counts all teams: with more members than cores
it stops spinning at the end of a kernel and sleeps instead. A decode step is a thousand short kernels; beside a team that
another thread left waiting it took half as long again (104 ms against 70, SmolLM2-135M, 64 slots, two cores).

Left out: how many threads a team has. That is torch's setting and belongs to the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

SOFT = 1  # omp_pause_soft (OpenMP 5.0, section 3.2.44): threads end, settings stay


def release_threads() -> None:
    """End the calling thread's team; its next kernel makes a new one in a fraction of a millisecond.

    To be called by a thread that hands its work to another and waits. Nothing happens where torch runs on another runtime.
    """
    pause = _pause()
    if pause is not None:
        pause(SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    """GNU's `omp_pause_resource_all`, out of the very library that torch has loaded."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            return ctypes.CDLL(str(path)).omp_pause_resource_all
        except (OSError, AttributeError):  # of another version, or not for this machine
            continue
    return None
