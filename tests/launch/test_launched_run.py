"""Two learners and an engine server of a tiny model, started by `partita launch`: to the end, and through kills to the same end."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from launching import left, pids, until
from running import Ended, finish, lines_of, settings, start

from partita.launch.roles import read_launch

pytestmark = pytest.mark.slow  # whole runs in processes of their own

STEPS = 6
PLACES = [
    "allocation.learners=2", "allocation.servers=1", "allocation.learner.cpus=1", "allocation.server.cpus=1",
    "scheduler.grace_seconds=5",
]  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, vowels: str):
    root = tmp_path_factory.mktemp("launched")

    def override(name: str, **changed: object) -> list[str]:
        given = {
            "actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
            "checkpoint__freq_steps": 1, "actor__optimizer__lr": 0.01, "train_dataset__size": 12,
        }  # fmt: skip
        return [*settings(root, **(given | changed)), *PLACES]

    return override


def folder_of(words: list[str]) -> Path:
    given = dict(word.split("=", 1) for word in words)
    return Path(given["output_dir"]) / given["experiment_name"] / given["trial_name"]


@pytest.fixture(scope="module")
def straight(words) -> Ended:
    """The run that nobody disturbs."""
    return finish(start("-m", "partita.cli", "launch", "grpo", *words("straight")))


def timeless(folder: Path) -> list[dict]:
    """Metrics without wall-clock values and what was asked again of servers."""
    other = ("time/", "tokens_per_second", "engine/")
    return [{name: v for name, v in line.items() if not name.startswith(other)} for line in lines_of(folder)]


def test_learners_and_a_server_train_to_the_end_and_are_gone(words, straight: Ended) -> None:
    assert straight.code == 0, straight.out + straight.err
    folder = folder_of(words("straight"))
    launch = read_launch(folder / "launch")
    head, *rest = straight.out.splitlines()
    assert head == f"{folder}: 2 learners, 1 server on 1 machine by local"
    assert [line.split()[:4] for line in rest[1:4]] == [
        [name, "0", "1", "0"] for name in ("learner-0", "learner-1", "server-0")
    ]
    assert f"step {STEPS}/{STEPS}" in straight.out  # the first learner's console is the launcher's
    assert "step 1/" not in launch.log(launch.learners[1]).read_text()
    assert [line["step"] for line in lines_of(folder)] == [*range(1, STEPS + 1)]
    assert (folder / "export" / "model.safetensors").exists()
    assert json.loads((folder / "launch" / "endpoints" / "server-0.json").read_text())["start"] == 1
    assert left(launch) == []


@pytest.mark.long
def test_killed_in_turn_it_comes_to_the_same_end(words, straight: Ended) -> None:
    given = words("killed")
    folder = folder_of(given)

    def reached(step: int) -> bool:
        return (folder / "checkpoints" / f"step_{step:06d}").exists() or any(
            path.name.rpartition("_")[2].lstrip("0") == str(step) for path in folder.glob("checkpoints/step_*")
        )

    def ended(process: "subprocess.Popen[str]") -> Ended:
        found, launch = finish(process), read_launch(folder / "launch")
        until(lambda: left(launch) == [], 30)
        return found

    running = start("-m", "partita.cli", "launch", "grpo", *given)
    until(lambda: reached(1), 120)
    os.kill(pids(read_launch(folder / "launch"), "learner-1")[1], signal.SIGKILL)
    found = ended(running)
    assert found.code == 1
    assert found.err.startswith("error: learner-1 ended by SIGKILL (signal 9); its last lines")
    assert f"partita launch --resume {folder}" in found.err

    running = start("-m", "partita.cli", "launch", "--resume", folder)
    until(lambda: reached(2), 120)
    os.kill(pids(read_launch(folder / "launch"), "server-0")[1], signal.SIGKILL)
    until(lambda: reached(4), 120)
    running.send_signal(signal.SIGUSR1)
    found = ended(running)
    assert "server-0 ended by SIGKILL (signal 9); it is started again (1 of 3)" in found.out
    assert found.code == 75, found.out + found.err
    assert "ended early, as it was told to\nto go on from step_" in found.out

    running = start("-m", "partita.cli", "launch", "--resume", folder)
    until(lambda: len(left(read_launch(folder / "launch"))) >= 6, 120)
    running.kill()
    ended(running)

    found = ended(start("-m", "partita.cli", "launch", "--resume", folder))
    assert found.code == 0, found.out + found.err
    assert timeless(folder) == timeless(folder_of(words("straight")))
    export = [folder_of(words(name)) / "export" / "model.safetensors" for name in ("straight", "killed")]
    assert export[0].read_bytes() == export[1].read_bytes()


def test_a_mistake_in_the_data_is_named_by_the_role_that_finds_it(words) -> None:
    given = words("mistaken", train_dataset__path="/nowhere.jsonl")
    found = finish(start("-m", "partita.cli", "launch", "grpo", *given, "allocation.servers=0"))
    assert found.code == 2
    assert found.err.startswith("error: learner-0 ended with exit code 2; its last lines")
    assert "/nowhere.jsonl" in found.err
