"""Keep freed memory: arrays of one training pass are reused by the next instead of being mapped and zeroed anew.

glibc gives arrays of more than 32 MiB memory of their own and returns smaller ones to the system as soon as the heap's
end is free; every page that comes back is a fault, 4 KiB at a time. A training pass allocates the same sizes over and
over, so what it freed is what it needs next: logits, gradients of the embedding and casts of the head alone were 100,000
pages a step of SmolLM2-135M, up to a second of the system's time.

oneDNN, which multiplies in bfloat16 on CPUs, makes code for each shape of a product and keeps that of 1,024 shapes, and torch
keeps what it asked for last once more: 0.57 MiB each, and it lies where arrays were freed, so the next ones need new memory.
Micro-batches have ever new lengths. Attention over prompts of 300 tokens has some hundred shapes, and comes to the same ones in
every layer: where fewer are kept, each layer makes all of them anew, 0.4 ms each.

Left out: other C libraries, whose allocators have no such settings.
"""

from __future__ import annotations

import ctypes
import os
import platform

# <malloc.h>
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
NEVER = -1  # no memory is given back, however much is free at the end of the heap

SHAPES = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
"""Of torch's cache in front of oneDNN's, one for each thread, and of that one (oneDNN's documentation, "Primitive Cache"), which
alone must hold what a layer asks for."""


def forget_products() -> None:
    """From now on this process, and those it starts, keep the code of few shapes of products; a setting of the environment stays.
    To be called before the first product.
    """
    for name, value in SHAPES.items():
        os.environ.setdefault(name, value)


def keep_freed_memory() -> bool:
    """From now on this process keeps the memory of freed arrays; whether the C library can do that."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (
        (M_MMAP_MAX, 0),  # arrays of any size lie in the heap
        (M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, 64 << 20),
        (M_ARENA_MAX, 1),  # what the sampler's thread freed is there for the learner's, and the other way round
    )  # fmt: skip
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
