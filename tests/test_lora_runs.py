"""Runs whose policy, critic or reference has adapters, by the command line; and references that are refreshed."""

import shutil
from pathlib import Path

import pytest
import torch
from running import call, lines_of, settings
from safetensors.torch import load_file, save_file
from test_resume import folder_of, kill_after, outcome, train
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow  # whole runs, one after another

STEPS = 6


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str):
    """A run with a KL to the reference, and a checkpoint every two steps."""

    def override(name: str = "t", **changed: object) -> list[str]:
        given = {
            "actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
            "checkpoint__freq_steps": 2, "actor__optimizer__lr": 0.02, "train_dataset__size": 10, "checkpoint__keep_last": 9,
            "actor__kl_loss_coef": 0.05, "actor__lora": "{rank: 4}",
        }  # fmt: skip
        return settings(tmp_path, **(given | changed))

    return override


def run_of(preset: str, words: list[str]) -> tuple[Path, str]:
    ended = call("train", preset, *words)
    assert ended.code == 0, ended.err
    return folder_of(words), ended.out


def test_only_adapters_are_saved_and_the_export_is_a_plain_model(words, model_folder: Path) -> None:
    folder, out = run_of("grpo", words())
    assert "of them trained, in adapters" in out
    assert "the policy without its adapters, no memory of its own" in out
    saved = load_file(folder / "checkpoints" / "step_000006" / "model.safetensors")
    assert saved and all(".lora_A." in name or ".lora_B." in name for name in saved)
    trained = AutoModelForCausalLM.from_pretrained(folder / "export").state_dict()
    start = AutoModelForCausalLM.from_pretrained(model_folder).state_dict()
    assert trained.keys() == start.keys()
    moved = {name for name in start if not torch.equal(start[name], trained[name])}
    assert moved and all("proj" in name for name in moved)
    divergence = [line["kl_ref/k3"] for line in lines_of(folder)]
    assert divergence[0] == pytest.approx(0.0, abs=1e-6) and divergence[-1] > 1e-5
    assert call("generate", folder, "--prompt", "a", "--max-new-tokens", 2).code == 0
    shutil.rmtree(folder / "export")
    assert call("export", folder, folder / "again").code == 0
    again = AutoModelForCausalLM.from_pretrained(folder / "again").state_dict()
    assert all(torch.equal(again[name], trained[name]) for name in trained)


def test_an_adapter_that_does_not_start_at_zero_has_a_reference_of_its_own(words) -> None:
    folder, out = run_of("grpo", words(actor__lora="{rank: 2, init: pissa}", total_train_steps=2))
    assert "reference  the starting policy, float32" in out
    assert lines_of(folder)[0]["kl_ref/k3"] == pytest.approx(0.0, abs=1e-6)


def test_a_critic_has_adapters_of_its_own_beside_its_head(words) -> None:
    folder, _ = run_of(
        "ppo", words(critic__lora="{rank: 2}", actor__lora="null", actor__kl_ctl=0.0, total_train_steps=2)
    )
    critic = load_file(folder / "checkpoints" / "step_000002" / "critic.safetensors")
    assert "value_head.weight" in critic and len(critic) > 1
    assert all("lora_" in name for name in critic if name != "value_head.weight")


def test_a_refreshed_reference_is_the_policy_of_then(words) -> None:
    given = words(actor__lora="null", ref__refresh_steps=2, actor__kl_loss_coef=0.5, total_train_steps=4)
    folder, _ = run_of("grpo", given)
    divergence = [line["kl_ref/k3"] for line in lines_of(folder)]
    assert divergence[0] == pytest.approx(0.0, abs=1e-6) and divergence[1] > 1e-6
    assert divergence[2] == pytest.approx(0.0, abs=1e-6) and divergence[3] > 1e-6
    at_two = folder / "checkpoints" / "step_000002"
    policy, reference = load_file(at_two / "model.safetensors"), load_file(at_two / "reference.safetensors")
    assert all(torch.equal(policy[name], reference[name]) for name in policy)


def test_a_reference_that_is_not_refreshed_is_in_no_checkpoint(words) -> None:
    folder, _ = run_of("grpo", words(actor__lora="null", total_train_steps=2))
    assert not (folder / "checkpoints" / "step_000002" / "reference.safetensors").exists()


@pytest.mark.parametrize(
    "preset, changed",
    [
        ("grpo", {}),
        ("grpo", {"actor__lora": "{rank: 2, init: olora}"}),
        ("grpo", {"ref__refresh_steps": 3}),
        ("grpo", {"ref__refresh_steps": 3, "actor__lora": "null"}),
        ("ppo", {"critic__lora": "{rank: 2}", "actor__kl_ctl": 0.0}),
    ],
)
def test_killed_and_resumed_is_uninterrupted(words, preset, changed) -> None:
    train(preset, *words("straight", **changed))
    want = outcome(folder_of(words("straight")))
    for step in (3, 5):
        folder = kill_after(step, words(f"killed{step}", **changed), preset)
        assert list((folder / "checkpoints").glob("step_*"))
        train("--resume", folder)
        assert outcome(folder) == want


def test_a_start_that_was_changed_meanwhile_is_refused_where_it_is_in_use(
    words, model_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    ways = {"adapters": {"actor__kl_loss_coef": 0.0}, "reference": {"actor__lora": "null"},
            "alone": {"actor__lora": "null", "actor__kl_loss_coef": 0.0}}  # fmt: skip
    folders = {
        name: run_of("grpo", words(name, actor__path=model, total_train_steps=1, **way))[0]
        for name, way in ways.items()
    }
    (file,) = model.glob("*.safetensors")
    changed = load_file(file)
    for name in changed:
        changed[name][..., 0] += 0.01
    save_file(changed, file, {"format": "pt"})
    for name, folder in folders.items():
        ended = call("train", "--resume", folder, "total_train_steps=2")
        refused = name != "alone"
        assert (ended.code == 2) == refused, (name, ended.err)
        assert (f"actor.path={model} holds other weights than when this run began" in ended.err) == refused
