"""A real Slurm starts, cancels and queues again; skipped where none answers (scripts/slurm_node.sh starts one)."""

import json
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launching import FOREVER, launch_of, left, pids, start, until

from partita.config import ConfigError
from partita.launch import slurm
from partita.launch.config import ClusterConfig
from partita.launch.roles import Launch

pytestmark = pytest.mark.slow  # jobs start within seconds


def answers() -> bool:
    asked = shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True, timeout=30)
    return bool(asked) and asked.returncode == 0


real = pytest.mark.skipif(not answers(), reason="no Slurm answers here: scripts/slurm_node.sh start FOLDER")
WAITS = "from pathlib import Path\nimport time\nwhile not Path('go').exists(): time.sleep(0.05)\nprint('done')"
# ends early the first time, and comes to its end when it is started again
TWICE = """
import pathlib, signal, sys, time
signal.signal(10, lambda *_: sys.exit(75))
begun = pathlib.Path("begun")
if begun.exists(): sys.exit(print("went on"))
begun.touch()
time.sleep(600)
"""


def job_of(launch: Launch) -> str:
    until(lambda: (launch.files / "job.json").exists())
    return json.loads((launch.files / "job.json").read_text())["job"]


def of_job(launch: Launch) -> list[int]:
    """Processes of its roles: the job gives the launch an id of its own."""
    return left(replace(launch, id=json.loads((launch.files / "plan.json").read_text())["id"]))


def state(job: str) -> str:
    asked = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


@real
def test_a_job_runs_to_its_end_also_without_the_process_that_submitted_it(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": WAITS, "learner-1": FOREVER, "server-0": FOREVER}, scheduler="slurm")
    submitted = start(launch)
    job = job_of(launch)
    until(lambda: len(of_job(launch)) >= 3, 60)
    submitted.kill()
    submitted.communicate()
    follower = start(launch)
    now = replace(launch, id=json.loads((launch.files / "plan.json").read_text())["id"])
    subprocess.run(["kill", "-KILL", str(pids(now, "server-0")[1])], check=True)
    until(lambda: '"start": 2' in (launch.files / "endpoints" / "server-0.json").read_text(), 60)
    (tmp_path / "go").touch()
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, "")
    assert out.startswith(f"job {job} of this run goes on, and is followed")
    log = (launch.files / "logs" / "job.log").read_text()
    assert "server-0 ended by SIGKILL (signal 9); it is started again (1 of 1)" in log
    assert "done\n" in out
    until(lambda: state(job) == "COMPLETED")
    assert of_job(launch) == []


@real
def test_the_limits_warning_ends_a_job_early_and_it_is_queued_again(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": TWICE}, scheduler="slurm")
    submitted = start(launch)
    until(lambda: (tmp_path / "begun").exists(), 60)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job_of(launch)], check=True)
    out, err = submitted.communicate(timeout=150)
    assert (submitted.returncode, err) == (0, "")
    assert "told to end: the step is finished" in out
    assert "is queued again, and goes on from the checkpoint" in out
    assert "went on\n" in out


@real
def test_who_ends_what(tmp_path: Path) -> None:
    told = launch_of(tmp_path / "told", {"learner-0": FOREVER, "learner-1": "print('no'); 1 / 0"}, scheduler="slurm")
    failing = start(told)
    cancelled = launch_of(tmp_path / "cancelled", {"learner-0": FOREVER}, scheduler="slurm")
    following = start(cancelled)
    waits = launch_of(tmp_path / "waits", {"learner-0": FOREVER}, scheduler="slurm")
    waits = replace(waits, cluster=replace(waits.cluster, options=("--begin=now+1hour",)))
    waits.save()
    waiting = start(waits)
    _, err = failing.communicate(timeout=60)
    assert failing.returncode == 1
    assert err.startswith("learner-1 ended with exit code 1; its last lines")
    assert "ZeroDivisionError" in err

    until(lambda: len(of_job(cancelled)) >= 1, 60)
    subprocess.run(["scancel", job_of(cancelled)], check=True)
    _, err = following.communicate(timeout=60)
    assert following.returncode == 1
    assert err.startswith(f"job {job_of(cancelled)} is over: CANCELLED; the last lines of its log")

    time.sleep(slurm.ASK)
    waiting.send_signal(signal.SIGTERM)
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 128 + signal.SIGTERM
    assert f"job {job_of(waits)}: PENDING (BeginTime)" in out
    assert state(job_of(waits)) == "CANCELLED"
    until(lambda: of_job(told) == of_job(cancelled) == [], 30)


@real
def test_what_slurm_has_against_a_job_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.partition: nowhere is no partition .* There are: \w+"):
        slurm.machine(ClusterConfig(partition="nowhere"))
    launch = launch_of(tmp_path, {"learner-0": FOREVER}, scheduler="slurm")
    launch = replace(launch, cluster=replace(launch.cluster, time="soon", setup=("module load x",)))
    launch.save()
    submitted = start(launch)
    _, err = submitted.communicate(timeout=60)
    assert submitted.returncode == 2
    assert "Slurm refuses the job" in err and "time" in err
    lines = slurm.shown(launch)
    assert {"#SBATCH --time=soon", "#SBATCH --signal=B:USR1@120", "#SBATCH --requeue", "module load x"} <= set(lines)


def test_without_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"scheduler\.type: slurm needs Slurm's commands \(sbatch, srun"):
        slurm.machine(ClusterConfig())
