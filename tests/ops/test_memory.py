"""Freed arrays are reused: the second use of the same memory faults no page in."""

import os
import platform
import subprocess
import sys

import pytest

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


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert not memory.keep_freed_memory()
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))  # musl
    assert not memory.keep_freed_memory()
