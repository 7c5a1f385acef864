"""A run that is rewarded by a model: the same numbers every time, also after a kill, and a critic that starts from one."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from running import call, settings
from safetensors.torch import load_file

from partita.models.export import export_scorer
from partita.models.load import load_causal_lm
from partita.models.scoring import ScoreStats


@pytest.fixture(scope="module")
def reward_folder(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A reward model whose backbone is the policy's, with a random head."""
    folder = tmp_path_factory.mktemp("reward") / "model"
    loaded = load_causal_lm(str(model_folder), dtype=torch.float32)
    loaded.model.add_value_head()
    with torch.no_grad():
        loaded.model.value_head.weight.copy_(torch.randn(1, 32, generator=torch.Generator().manual_seed(4)))
    export_scorer(loaded.model, loaded.tokenizer, folder, ScoreStats(0.5, 4.0))
    return folder


def words(root: Path, policy: Path, reward: Path, **changed: object) -> list[str]:
    return settings(
        root, actor__path=policy, reward__model=reward, reward__model_normalise=True, trial_name="one",
        total_train_steps=3, checkpoint__freq_steps=1, checkpoint__keep_last=3, evaluator__freq_steps=3, evaluator__n_prompts=4,
        **changed,
    )  # fmt: skip


def weights(folder: Path, step: int = 3) -> dict[str, torch.Tensor]:
    (checkpoint,) = (folder / "checkpoints").glob(f"step_*{step}")
    return load_file(checkpoint / "model.safetensors")


@pytest.mark.slow
def test_two_runs_and_a_resumed_one_are_equal_to_the_last_bit(tmp_path, model_folder, reward_folder) -> None:
    runs = [tmp_path / name / "tiny" / "one" for name in ("a", "b")]
    for run in runs:
        ended = call("train", "grpo", *words(run.parents[1], model_folder, reward_folder))
        assert ended.code == 0, ended.err
    first = weights(runs[0])
    for step in (2, 3):
        shutil.rmtree(next((runs[1] / "checkpoints").glob(f"step_*{step}")))
    ended = call("train", "--resume", runs[1])
    assert ended.code == 0, ended.err
    assert all(torch.equal(first[name], tensor) for name, tensor in weights(runs[1]).items())
    start = load_file(model_folder / "model.safetensors")
    assert any(not torch.equal(first[f"lm.{name}"], tensor) for name, tensor in start.items())


def test_a_critic_may_start_from_the_reward_model(tmp_path, model_folder, reward_folder) -> None:
    changed = {"critic__path": reward_folder, "reward__functions": "[last_number_correct]", "reward__model_weight": 0.5}
    ended = call("train", "ppo", *words(tmp_path, model_folder, reward_folder, **changed))
    assert ended.code == 0, ended.err
    lines = (tmp_path / "tiny" / "one" / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    assert "reward/reward_model" in json.dumps(record)
