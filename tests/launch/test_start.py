"""Who becomes a launcher, what `--dry-run` prints, and what an earlier launch has left in a run folder."""

import sys
from pathlib import Path

import pytest
from running import call, settings

from partita.launch import processes
from partita.launch.ended import LaunchRefused
from partita.launch.roles import ROLE
from partita.launch.start import Asked, launch, launches, own_command
from partita.run import load_run_config
from partita.trainer import QUICKSTART


@pytest.mark.parametrize(
    ("words", "launched"),
    [
        ([], False),
        (["scheduler.type=slurm"], True),
        (["allocation.learners=2"], True),
        (["allocation.servers=1"], True),
        (["rollout.backend=vllm", "rollout.servers=[http://h:1]"], False),
    ],
)
def test_a_process_launches_where_one_is_not_enough(
    words: list[str], launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run_config([QUICKSTART], words).value
    assert launches(config) is launched
    monkeypatch.setenv(ROLE, "learner-0")
    assert not launches(config)
    monkeypatch.delenv(ROLE)
    monkeypatch.setenv("WORLD_SIZE", "2")  # torchrun has started the ranks
    assert not launches(config)


def test_the_same_program_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python3", "examples/math/gsm8k_rl.py", "--config", "a b.yaml"])
    assert own_command() == (sys.executable, "examples/math/gsm8k_rl.py", "--config", "a b.yaml")
    for words in (["python3"], ["python3", "-"]):
        monkeypatch.setattr(sys, "orig_argv", words)
        with pytest.raises(LaunchRefused, match="partita launch FILE"):
            own_command()


def test_a_dry_run_prints_who_runs_where_and_makes_nothing(tmp_path: Path, model_folder: Path) -> None:
    words = settings(tmp_path / "runs", actor__path=model_folder, reward__functions="[addition]", trial_name="a b")
    words += ["allocation.learners=2", "allocation.servers=1", "allocation.learner.cpus=2", "+rollout.server.env.A=b c"]
    done = call("launch", "grpo", *words, "--dry-run")
    assert done.code == 0, done.err
    lines = [line.strip() for line in done.out.splitlines()]
    assert lines[0] == f"{tmp_path}/runs/tiny/a b: 2 learners, 1 server on 1 machine by local"
    assert [line.split()[:4] for line in lines[2:5]] == [
        ["learner-0", "0", "2", "0"], ["learner-1", "0", "2", "0"], ["server-0", "0", "1", "0"],
    ]  # fmt: skip
    learner = lines[lines.index("learner-0, learner-1:") + 1]
    assert learner.startswith(f"{sys.executable} -m partita.cli train grpo experiment_name=tiny")
    assert "'trial_name=a b'" in learner
    server = lines[lines.index("server-0:") + 1]
    assert server.startswith(f"A='b c' {sys.executable} -m partita.engine.servers.serve --model {model_folder}")
    assert server.count("--host <host> --port <port>") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster.nodes=2"], "cluster.nodes: 2 machines, but scheduler.type=local has this one; use ray or slurm"),
        (["allocation.learner.gpus=3"], "GPUs are asked for on one machine (learner-0 3)"),
        (["actor.adv_norm.mean_level=group", "gconfig.n_samples=1"], "gconfig.n_samples 1"),
        (["allocation.servers=1", "rollout.server.tensor_parallel=2"], "built-in engine runs on one device"),
    ],
)
def test_mistakes_are_found_before_anything_is_started(tmp_path: Path, words: list[str], said: str) -> None:
    done = call("launch", "grpo", f"output_dir={tmp_path / 'runs'}", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not (tmp_path / "runs").exists()


def test_a_run_is_launched_by_one_process_at_a_time(tmp_path: Path) -> None:
    config = load_run_config([QUICKSTART], ["allocation.learners=2"]).value
    asked = Asked(config, "train", (sys.executable, "-c", "pass"), tmp_path, lambda folder: f"go on with {folder}")
    lock = tmp_path / "launch" / "status" / "launcher.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("a") as other:
        assert processes.locked(other)
        with pytest.raises(LaunchRefused, match="is being run by another process"):
            launch(asked)
        assert not (tmp_path / "launch" / "plan.json").exists()
    assert launch(asked) == tmp_path
