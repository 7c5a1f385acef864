"""A TRL GRPOConfig moved over: the same training in our keys, and what is said to somebody who writes TRL's."""

from pathlib import Path

import pytest
import torch

from partita.config import ConfigError
from partita.records import Batch
from partita.run import RunConfig, composed, load_run_config

# 8 x 4 completions an update are 4 prompts x 8; beta 0, loss_type dr_grpo, scale_rewards none, masked when truncated
MOVED = """\
seed: 3
total_train_steps: 50
gconfig: {n_samples: 8, max_new_tokens: 64, temperature: 0.9}
actor:
  path: my/tiny-model
  optimizer: {lr: 2.0e-6}
  eps_clip: 0.2
  eps_clip_higher: 0.28
  adv_norm: {mean_level: group, std_level: null}
  loss_agg_mode: seq_mean_token_sum_norm
  loss_agg_constant: 64
  truncation: mask_loss
train_dataset: {path: rows.jsonl, batch_size: 4}
reward: {functions: [math_correct, think_answer_format], weights: [1.0, 0.2]}
"""


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str = MOVED, *words: str) -> RunConfig:
        (tmp_path / "moved.yaml").write_text(text)
        return load_run_config([tmp_path / "moved.yaml"], words).value

    return load


def test_the_same_training(load) -> None:
    config = load()
    assert config.train_dataset.batch_size * config.gconfig.n_samples == 32  # completions of an update
    assert config.actor.ppo_n_minibatches == config.actor.ppo_epochs == 1  # on policy: every ratio is 1 at its use
    assert config.total_train_steps * config.train_dataset.batch_size == 200  # prompts
    algorithm = composed(config).stages[0].algorithm
    assert not algorithm.needs & {"ref", "kl_full_ref"} and algorithm.penalties == ()
    assert (algorithm.gate.low, algorithm.gate.high) == (0.2, 0.28)


def test_sums_over_a_constant_of_what_was_not_cut(load) -> None:
    """Two samples of two tokens, the second cut at the limit: its tokens weigh nothing and still count as a sample."""
    algorithm = composed(load()).stages[0].algorithm
    batch = Batch(
        torch.tensor([0, 0, 1, 1]), torch.zeros(2, dtype=torch.long), torch.tensor([1.0, 0.0]),
        truncated_S=torch.tensor([False, True]), valid_S=torch.ones(2, dtype=torch.bool),
    )  # fmt: skip
    credited = algorithm.credit(batch)
    assert credited.advantages_T is not None and credited.advantages_T[0].item() == 0.5  # mean 0.5, no std
    weight_T = algorithm.weights(credited).weight_T
    assert weight_T is not None
    assert weight_T[2:].tolist() == [0.0, 0.0]
    assert weight_T[:2].tolist() == pytest.approx([1 / (2 * 64)] * 2)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("max_prompt_length: 128", "train_dataset.max_length"),
        ("num_generation: 4", "gconfig.n_samples"),
        ("num_generations: 8", "gconfig.n_samples"),
        ("max_completion_length: 64", "gconfig.max_new_tokens"),
        ("learning_rate: 2.0e-6", "actor.optimizer.lr"),
        ("beta: 0.0", "actor.kl_loss_coef"),
        ("epsilon: 0.2", "actor.eps_clip"),
        ("epsilon_high: 0.28", "actor.eps_clip_higher"),
        ("loss_type: dr_grpo", "actor.loss_agg_mode"),
        ("max_steps: 50", "total_train_steps"),
    ],
)
def test_every_name_of_theirs_is_unknown_and_points_to_ours(load, key: str, near: str) -> None:
    with pytest.raises(ConfigError) as told:
        load(f"{MOVED}{key}\n")
    [problem] = told.value.problems
    assert problem.path == key.split(":")[0]
    assert problem.message.startswith(f"unknown key. Near: {near} (")


def test_groups_are_whole_whatever_their_size(load) -> None:
    config = load(MOVED, "gconfig.n_samples=6")
    assert (config.train_dataset.batch_size, config.gconfig.n_samples) == (4, 6)
    composed(config)  # 4 prompts x 6: nothing is to be divided
