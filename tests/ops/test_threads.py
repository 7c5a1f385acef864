"""A thread that hands its work over ends its workers; the next kernel has new ones and the same numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import os, torch
from partita.ops.threads import release_threads
torch.set_num_threads(3)
def running():
    return len(os.listdir("/proc/self/task"))
alone = running()
x = torch.linspace(0, 1, 1 << 20)
first = x.exp()
busy = running()
release_threads()
left = running()
second = x.exp()
assert torch.equal(first, second)
print(busy - alone, left - alone, running() - alone)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not list((Path(torch.__file__).parent / "lib").glob("libgomp*")), reason="torch runs on another runtime"
)
def test_workers_end_when_released_and_come_back_with_the_next_kernel():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    made, left, again = map(int, done.stdout.split())
    assert made == again == 2
    assert left == 0
