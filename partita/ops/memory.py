"""Keep freed memory: arrays of one training pass are reused by the next instead of being mapped and zeroed anew.

glibc gives arrays of more than 32 MiB memory of their own and returns smaller ones to the system as soon as the heap's
end is free; every page that comes back is a fault, 4 KiB at a time. A training pass allocates the same sizes over and
over, so what it freed is what it needs next.

oneDNN, which multiplies in bfloat16 on CPUs, makes code for each shape of a product and keeps that of 1,024 shapes, twice:
0.57 MiB each, and it lies where arrays were freed, so the next ones need new memory. Micro-batches have ever new lengths: five
steps of the long responses of `benchmarks/plan.py` held 6.2 GiB, and 5.2 with the code of 64 shapes. To make such code takes
0.4 ms; a step of the demo makes 170 of them anew.

Left out: other C libraries, whose allocators have no such settings.
"""

from __future__ import annotations

import ctypes
import os
import platform

# <malloc.h>
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc takes no larger one
NEVER = (1 << 31) - 1  # bytes that must be free at the end of the heap before any are given back; the largest int

SHAPES = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""Of torch's cache in front of oneDNN's, one for each thread, and of that one (oneDNN's documentation, "Primitive Cache")."""


def forget_products() -> None:
    """From now on this process, and those it starts, keep the code of few shapes of products; a setting of the environment stays.
    To be called before the first product.
    """
    for name, value in SHAPES.items():
        os.environ.setdefault(name, value)


def keep_freed_memory() -> bool:
    """From now on this process keeps the memory of freed arrays up to 32 MiB; whether the C library can do that."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (
        (M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD), (M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, 64 << 20),
        (M_ARENA_MAX, 1),  # what the sampler's thread freed is there for the learner's, and the other way round
    )  # fmt: skip
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
