"""Runs with a critic, by the command line: what moves when, what is saved, killed, resumed and replayed."""

import shutil
from pathlib import Path

import pytest
import torch
from running import Ended, call, lines_of, settings
from safetensors.torch import load_file
from test_resume import folder_of, kill_after, outcome, train
from transformers import AutoModelForSequenceClassification

pytestmark = pytest.mark.slow  # whole runs, one after another

STEPS = 8


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str):
    """Two epochs of two minibatches each; a checkpoint every two steps."""

    def override(name: str = "t", **changed: object) -> list[str]:
        given = {
            "actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
            "checkpoint__freq_steps": 2, "actor__ppo_epochs": 2, "actor__ppo_n_minibatches": 2, "actor__optimizer__lr": 0.01,
            "train_dataset__size": 10, "critic__optimizer__lr": 0.02, "checkpoint__keep_last": 9,
        }  # fmt: skip
        return settings(tmp_path, **(given | changed))

    return override


def ended(*given: object) -> Ended:
    found = call("train", *given)
    assert found.code == 0, found.err
    return found


def saved(folder: Path, step: int, file: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:06d}" / file)


def test_while_it_warms_up_only_the_critic_learns(words) -> None:
    given = words(critic__warmup_steps=2, total_train_steps=3, checkpoint__freq_steps=1)
    out = ended("ppo", *given).out
    assert "alone for 2 steps" in out
    folder = folder_of(given)
    lines = lines_of(folder)
    assert [line.get("critic_only_steps") for line in lines] == [1, 1, None]
    assert [line.get("optimizer_steps") for line in lines] == [None, None, 4]
    assert [line["critic/optimizer_steps"] for line in lines] == [4, 4, 4]
    policy = [saved(folder, step, "model.safetensors") for step in (1, 2, 3)]
    critic = [saved(folder, step, "critic.safetensors") for step in (1, 2, 3)]
    assert all(torch.equal(policy[0][name], policy[1][name]) for name in policy[0])
    assert any(not torch.equal(policy[1][name], policy[2][name]) for name in policy[1])
    assert not torch.equal(critic[0]["value_head.weight"], critic[1]["value_head.weight"])
    # a step in which the policy stays has numbers, and computes again from them
    assert call("replay", folder, "--step", 1).code == 0


def test_the_critic_is_exported_beside_the_policy_and_may_begin_another_run(words) -> None:
    folder, _ = folder_of(words(total_train_steps=2)), ended("ppo", *words(total_train_steps=2))
    scorer = AutoModelForSequenceClassification.from_pretrained(folder / "export_critic")
    head = saved(folder, 2, "critic.safetensors")["value_head.weight"]
    assert torch.equal(scorer.score.weight.detach(), head) and head.abs().sum() > 0
    again = words("again", total_train_steps=1, critic__path=folder / "export_critic", critic__optimizer__lr=0.0)
    ended("ppo", *again)
    assert torch.equal(saved(folder_of(again), 1, "critic.safetensors")["value_head.weight"], head)


def test_a_critic_on_the_policy_s_weights_is_saved_with_them(words) -> None:
    given = words(critic__shared="true", critic__vf_coef=0.5, total_train_steps=2)
    out = ended("ppo", *given).out
    assert "a value head on the policy, in one backward pass with it, weight 0.5" in out
    folder = folder_of(given)
    assert not (folder / "checkpoints" / "step_000002" / "critic.safetensors").exists()
    assert saved(folder, 2, "model.safetensors")["value_head.weight"].abs().sum() > 0
    assert "value_head.weight" not in load_file(folder / "export" / "model.safetensors")
    last = lines_of(folder)[-1]
    assert last["critic/loss"] > 0 and "critic/optimizer_steps" not in last
    assert call("replay", folder, "--step", 2).code == 0


def test_a_critic_may_start_from_another_model(words, model_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    given = words(critic__path=other, total_train_steps=1)
    assert f"{other} with a value head" in ended("ppo", *given).out


def test_a_checkpoint_without_a_critic_cannot_be_gone_on_from_with_one(words) -> None:
    given = words(critic__shared="true", total_train_steps=2)
    ended("ppo", *given)
    refused = call("train", "--resume", folder_of(given), "critic.shared=false", "total_train_steps=4")
    assert refused.code == 1
    assert "it was saved by a run that kept no critic" in refused.err


@pytest.mark.parametrize("changed", [{}, {"critic__shared": "true"}, {"critic__warmup_steps": 3}])
def test_killed_and_resumed_is_uninterrupted(words, changed) -> None:
    train("ppo", *words("straight", **changed))
    want = outcome(folder_of(words("straight")))
    for step in (3, 5):
        folder = kill_after(step, words(f"killed{step}", **changed), "ppo")
        assert list((folder / "checkpoints").glob("step_*"))
        train("--resume", folder)
        assert outcome(folder) == want
        critics = [
            run / "checkpoints" / "step_000008" / "critic.safetensors" for run in (folder, folder.parent / "straight")
        ]
        if not changed.get("critic__shared"):
            assert critics[0].read_bytes() == critics[1].read_bytes()


def test_a_stage_without_a_critic_follows_one_with_a_critic_on_the_policy(words) -> None:
    stages = "[{until: {step: 1}, set: {algorithm: ppo}}, {set: {algorithm: grpo, actor.kl_loss_coef: 0.0}}]"
    given = words(critic__shared="true", total_train_steps=3, actor__kl_ctl=0.0, stages=stages)
    ended("ppo", *given)
    assert ["critic/loss" in line for line in lines_of(folder_of(given))] == [True, False, False]


def test_keys_of_a_critic_of_its_own_are_idle_in_one_on_the_policy(words) -> None:
    out = ended("ppo", *words(critic__shared="true", total_train_steps=1, critic__ppo_epochs=3)).out
    assert "critic.ppo_epochs: no effect, shared=true: it learns with the policy" in out


def test_a_critic_with_adapters_may_begin_as_a_reward_model_and_a_policy_may_not(words) -> None:
    ended("ppo", *words(total_train_steps=1))
    exported = folder_of(words()) / "export_critic"
    adapted = words("adapted", total_train_steps=1, critic__path=exported, critic__lora="{rank: 2}")
    ended("ppo", *adapted)
    assert any("lora_" in name for name in saved(folder_of(adapted), 1, "critic.safetensors"))
    refused = call("train", "grpo", *words("policy", actor__path=exported))
    assert refused.code == 2 and "is a reward model (LlamaForSequenceClassification): it scores" in refused.err
