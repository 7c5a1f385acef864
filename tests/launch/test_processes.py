"""Descendants, marks and ports, of real processes."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from launching import until

from partita.launch import processes

TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_is_below_a_process_is_found_and_ended_wherever_it_stands() -> None:
    top = subprocess.Popen(
        [sys.executable, "-c", TREE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PARTITA_TEST": str(os.getpid())},
    )
    assert top.stdout is not None
    below = int(top.stdout.readline())
    assert processes.descendants(top.pid) == [below]
    assert set(processes.marked("PARTITA_TEST", str(os.getpid()))) == {top.pid, below}
    assert processes.marked("PARTITA_TEST", f"{os.getpid()}0") == []
    processes.end_all(lambda: processes.descendants(top.pid), 5.0)
    assert processes.descendants(top.pid) == [] and top.poll() is None
    top.kill()
    top.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_process_dies_with_its_parent() -> None:
    middle = f"""
import signal, subprocess, sys, time
from partita.launch.processes import dying_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         preexec_fn=dying_with_parent({int(signal.SIGKILL)}))
print(child.pid, flush=True)
time.sleep(600)
"""
    top = subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True)
    assert top.stdout is not None
    below = int(top.stdout.readline())
    os.kill(below, 0)
    top.kill()
    top.communicate()
    until(lambda: below not in processes.marked("PATH", os.environ["PATH"]))


def test_a_free_port_is_one_that_nobody_listens_at() -> None:
    port = processes.free_port("127.0.0.1")
    assert port in processes.PORTS
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", port))
    assert processes.own_address()
