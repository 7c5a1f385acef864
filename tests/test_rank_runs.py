"""Whole runs on several ranks come out as on one: metrics, weights, and where a checkpoint goes on."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from offline_runs import ROWS, written
from offline_runs import settings as offline_settings
from ranked import environments, on_ranks
from running import call, lines_of, settings
from safetensors.torch import load_file
from test_resume import folder_of

pytestmark = pytest.mark.slow  # several processes

STEPS = 4
EPS = 1e-3  # so that no step of the optimizer goes by the rounding of a gradient that is zero
ONLINE = {
    "prompts": {"path": "addition", "batch_size": 4},
    "gconfig": {"n_samples": 4, "max_new_tokens": 8},
    "rollout": {"dtype": "float32"},
}


def job(root: Path, model: Path, vowels: str, name: str, preset: str = "grpo", **changed: object) -> list[str]:
    """The command line of a small run with a checkpoint every two steps."""
    given = {
        "actor__path": model, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
        "checkpoint__freq_steps": 2, "checkpoint__keep_last": 9, "actor__optimizer__lr": 0.002, "actor__optimizer__eps": EPS,
        "actor__ppo_n_minibatches": 2, "actor__kl_loss_coef": 0.1, "train_dataset__size": 10,
    }  # fmt: skip
    return ["train", preset, *settings(root, **(given | changed))]


def data_job(root: Path, model: Path, kind: str, rows: str, **changed: object) -> list[str]:
    """The command line of a small run on data."""
    given = {
        "trial_name": f"{kind}_{rows}", "checkpoint__freq_steps": 2, "evaluator__freq_steps": 2, "actor__optimizer__eps": EPS,
        "actor__optimizer__lr": 0.001,
    }  # fmt: skip
    file = written(root / "rows", ROWS[rows], rows)
    held = {"train_dataset__held_out": 0.25}
    return [kind, str(file), *offline_settings(root, model, **(given | held | changed))]


def own_pairs_job(root: Path, model: Path, vowels: str) -> list[str]:
    """Preferences among the policy's own answers."""
    tree = {
        "output_dir": str(root), "experiment_name": "tiny", "trial_name": "own", "total_train_steps": 3,
        "actor": {"path": str(model), "dtype": "float32", "optimizer": {"lr": 0.01, "eps": EPS}},
        "ref": {"log_probs": "online", "dtype": "float32"},
        "online": ONLINE | {"reward": {"functions": [vowels]}}, "report": {"console": "plain"},
    }  # fmt: skip
    file = root / "own.yaml"
    file.write_text(json.dumps(tree))
    return ["dpo", str(file), "trial_name=own", f"output_dir={root}", "experiment_name=tiny"]


def jobs_of(root: Path, model: Path, vowels: str) -> dict[str, list[str]]:
    """What is to come out alike, by the name of its folder."""
    found = [
        job(root, model, vowels, "grpo", actor__lora=None),
        job(root, model, vowels, "ppo", "ppo", critic__dtype="float32", critic__optimizer__eps=EPS, ref__refresh_steps=2),
        job(root, model, vowels, "shared", "ppo", critic__shared="true", actor__gradient_checkpointing="true"),
        job(root, model, vowels, "lora", actor__lora="{rank: 4}"),
        job(root, model, vowels, "starting", rollout__policy="starting", evaluator__freq_steps=2, evaluator__n_prompts=4,
            train_dataset__held_out=0.25, train_dataset__size=40),
        data_job(root, model, "sft", "sft", actor__lora="{rank: 4}"),
        data_job(root, model, "rm", "rm"),
        data_job(root, model, "dpo", "dpo"),
        data_job(root, model, "dpo", "kto", loss__type="kto", ref__log_probs="online", ref__dtype="float32"),
    ]  # fmt: skip
    found.append(own_pairs_job(root, model, vowels))
    return {folder_in(words).name: words for words in found}


def folder_in(words: list[str]) -> Path:
    return folder_of([word for word in words if "=" in word])


def run_on(count: int, folder: Path, jobs: list[list[str]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps([[str(word) for word in words] for words in jobs]))
    on_ranks(count, "rank_runs.py", folder)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def check_alike(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """Metrics and exports of two runs."""
    ours, theirs = lines_of(one), lines_of(other)
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        untimed = {name for name in mine.keys() | its.keys() if not name.startswith(("time/", "tokens_per_second"))}
        assert {name: mine.get(name) for name in untimed} == {
            name: pytest.approx(its.get(name), rel=tolerance, abs=tolerance, nan_ok=True) for name in untimed
        }
    exports = sorted(path.name for path in one.glob("export*"))
    assert exports and exports == sorted(path.name for path in other.glob("export*"))
    for export in exports:
        mine, its = weights_of(one / export), weights_of(other / export)
        assert mine.keys() == its.keys()
        assert all(torch.allclose(mine[name], its[name], atol=tolerance, rtol=0) for name in mine)


def test_two_ranks_do_what_one_does_and_any_number_goes_on_from_a_checkpoint(
    tmp_path: Path, model_folder: Path, vowels: str
) -> None:
    for name in ("one", "two", "four"):
        (tmp_path / name).mkdir()
    ours, theirs = (jobs_of(tmp_path / name, model_folder, vowels) for name in ("one", "two"))
    for words in ours.values():
        ended = call(*words)
        assert ended.code == 0, ended.err
    half_done = half(folder_in(ours["ppo"]), tmp_path / "two" / "resumed")
    killed = kill_the_leader(job(tmp_path / "killed", model_folder, vowels, "grpo"), step=3)
    go_on = [["train", "--resume", f"{folder}"] for folder in (half_done, killed)]
    run_on(2, tmp_path / "logs", [*theirs.values(), *go_on])
    for name in ours:
        check_alike(folder_in(ours[name]), folder_in(theirs[name]))
    check_alike(folder_in(ours["ppo"]), half_done)
    check_alike(folder_in(theirs["grpo"]), killed, tolerance=0)
    assert sorted(path.name for path in (folder_in(theirs["ppo"]) / "checkpoints" / "step_000004").iterdir()) == [
        "critic", "critic_optimizer", "manifest.json", "model", "optimizer", "reference", "state.json",
    ]  # fmt: skip
    ended = call("export", folder_in(theirs["lora"]), tmp_path / "exported")
    assert ended.code == 0, ended.err
    exported, at_the_end = weights_of(tmp_path / "exported"), weights_of(folder_in(theirs["lora"]) / "export")
    assert all(torch.equal(exported[name], at_the_end[name]) for name in at_the_end)
    alone, four = (half(folder_in(theirs[name]), tmp_path / "four" / name) for name in ("ppo", "lora"))
    ended = call("train", "--resume", alone)
    assert ended.code == 0, ended.err
    run_on(4, tmp_path / "logs", [["train", "--resume", f"{four}"]])
    check_alike(folder_in(ours["ppo"]), alone)
    check_alike(folder_in(ours["lora"]), four)


def kill_the_leader(words: list[str], step: int) -> Path:
    """The folder of a run on two ranks, the first of which was killed after a step; the other one then ends by itself."""
    command = [sys.executable, "-m", "partita.cli", *map(str, words)]
    ranks = [
        subprocess.Popen(command, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for environment in environments(2)
    ]
    metrics, until = folder_in(words) / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= step):
        assert time.monotonic() < until and ranks[0].poll() is None
        time.sleep(0.001)
    ranks[0].kill()
    _, said = ranks[1].communicate(timeout=60)
    assert ranks[0].wait() == -signal.SIGKILL and ranks[1].returncode == 1
    assert "error: rank 1 of 2 lost the connection to another rank, which has ended" in said
    return folder_in(words)


def half(folder: Path, copy: Path) -> Path:
    """A copy of a finished run as it was after its second step."""
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "checkpoints" / "step_000004")
    for export in copy.glob("export*"):
        shutil.rmtree(export)
    return copy
