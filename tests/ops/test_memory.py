"""Freed arrays are reused: the second use of the same memory faults no page in."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from partita.ops import memory

SCRIPT = """
import resource, sys, torch
from partita.ops.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    return [torch.ones(6 << 20) for _ in range(6)]
for _ in range(10): use()  # until the heap is as large as it must be
before = faults()
for _ in range(10): use()
print(faults() - before)
"""


def faults(kind):
    # a fixed threshold, which glibc else moves by itself, so that without us every large array is mapped anew
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_arrays_of_a_pass_are_faulted_in_once():
    assert faults("kept") < 100
    assert faults("left") > 10_000  # six arrays of 6,144 pages, ten times: returned and mapped anew


SHAPES = """
import ctypes, sys, torch
from partita.ops.memory import forget_products
if sys.argv[1] == "kept":
    forget_products()
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
used = lambda: libc.mallinfo2().uordblks + libc.mallinfo2().hblkhd
x, w = torch.ones(600, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
def use(first, last):
    for rows in range(first, last): x[:rows] @ w.T
use(1, 300)
before = used()
use(300, 600)
print((used() - before) / 2**20)
"""


def grown(kind, **settings):
    environment = {name: value for name, value in os.environ.items() if name not in memory.SHAPES} | settings
    done = subprocess.run(
        [sys.executable, "-c", SHAPES, kind], capture_output=True, text=True, check=True, env=environment
    )
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc counts what is in use")
@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN does not multiply in bfloat16 here"
)
def test_products_of_ever_new_shapes_take_no_more_memory():
    assert abs(grown("kept")) < 5
    assert grown("left") > 60  # 300 shapes of more than 0.2 MiB
    assert (
        grown("kept", LRU_CACHE_CAPACITY="1024", ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024") > 60
    )  # the user's word counts


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert not memory.keep_freed_memory()
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))  # musl
    assert not memory.keep_freed_memory()
