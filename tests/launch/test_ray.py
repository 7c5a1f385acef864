"""A real Ray on this machine starts roles, hears of their ends, and leaves nothing; skipped where ray is not installed."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import FOREVER, launch_of, left, pids, start, until

from partita.config import ConfigError
from partita.launch.config import ClusterConfig
from partita.launch.processes import marked
from partita.launch.roles import starter

pytestmark = pytest.mark.slow  # Ray needs seconds to start
real = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install ray")


@real
def test_a_server_is_started_again_a_learner_ends_the_run(tmp_path: Path) -> None:
    places = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n" + FOREVER
    programs = {"learner-0": places, "learner-1": FOREVER, "server-0": FOREVER}
    launch = launch_of(tmp_path, programs, scheduler="ray")
    watching = start(launch)
    until(lambda: len(left(launch)) >= 9, 90)
    server, _ = pids(launch, "server-0")
    os.kill(server, signal.SIGKILL)
    until(lambda: '"start": 2' in (launch.files / "endpoints" / "server-0.json").read_text(), 60)
    os.kill(pids(launch, "learner-1")[1], signal.SIGKILL)
    out, err = watching.communicate(timeout=90)
    assert watching.returncode == 1
    assert "rank 0 of 2\n" in out
    assert "server-0 ended by SIGKILL (signal 9); it is started again (1 of 1)" in out
    assert "learner-1 ended by SIGKILL (signal 9); its last lines" in err
    assert left(launch) == []


@real
def test_a_killed_launcher_takes_everything_with_it_ray_too(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "server-0": FOREVER}, grace=0.5, scheduler="ray")
    watching = start(launch)
    until(lambda: len(left(launch)) >= 6, 90)
    mark = Path(f"/proc/{pids(launch, 'learner-0')[1]}/environ").read_bytes().split(b"PARTITA_RAY=")[1].split(b"\0")[0]
    assert len(marked("PARTITA_RAY", mark.decode())) > 4
    watching.kill()
    watching.communicate()
    until(lambda: left(launch) == marked("PARTITA_RAY", mark.decode()) == [], 30)


@real
def test_a_cluster_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"cluster\.ray_address: no Ray lets this process in at 127\.0\.0\.1:1: .*refused"
    ):
        starter("ray").machine(ClusterConfig(ray_address="127.0.0.1:1"))


def test_without_the_package_it_is_said() -> None:
    program = "import sys\nsys.modules['ray'] = None\nfrom partita.launch.roles import starter\nstarter('ray')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "scheduler.type: ray needs the package ray" in ended.stderr
    assert "pip install 'partita[ray]'" in ended.stderr
