"""An AReaL YAML with interpolation, and overrides with and without `+`: what it resolves to, what it trains, what is refused."""

from pathlib import Path

import pytest
import torch

from partita.algo.review import review
from partita.config import ConfigError
from partita.records import Batch
from partita.run import RunConfig, composed, load_run_config

BAKERY = """\
experiment_name: bakery
trial_name: t0
seed: 7
total_train_epochs: 2
tokenizer_path: ${actor.path}
gconfig: {n_samples: 4, max_new_tokens: 64, temperature: 1.0}
actor:
  path: my/tiny-model
  eps_clip: 0.2
  max_new_tokens: ${gconfig.max_new_tokens}
  overlong_tokens: 16
  overlong_penalty_factor: 1.0
  reward_scaling: 10.0
  reward_bias: -0.5
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: null
train_dataset: {path: bakery.jsonl, type: rl, batch_size: 8, max_length: 256}
"""
PENALTY = "+actor.overlong_reward_penalty=true"
WORDS = [
    "scheduler.type=local",
    "gconfig.n_samples=8",
    "+actor.eps_clip_higher=0.28",
    PENALTY,
    "+actor.optimizer.lr=1e-6",
]


@pytest.fixture
def load(tmp_path: Path):
    (tmp_path / "bakery.yaml").write_text(BAKERY)

    def load(*words: str) -> RunConfig:
        return load_run_config([tmp_path / "bakery.yaml"], words).value

    return load


def credited(config: RunConfig, rewards: list[float], lengths: list[int]) -> list[float]:
    """The advantage of each sample of one group."""
    seq_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    batch = Batch(
        seq_T, torch.zeros(len(lengths), dtype=torch.long), torch.tensor(rewards, dtype=torch.float64),
        truncated_S=torch.zeros(len(lengths), dtype=torch.bool), valid_S=torch.ones(len(lengths), dtype=torch.bool),
    )  # fmt: skip
    advantages_T = composed(config).stages[0].algorithm.credit(batch).advantages_T
    assert advantages_T is not None
    firsts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    return advantages_T[firsts].tolist()


def test_overrides_come_first_and_interpolation_after_them(load) -> None:
    config = load(*WORDS)
    assert config.gconfig.n_samples == config.actor.reward_norm.group_size == 8
    assert config.tokenizer_path == "my/tiny-model" and config.actor.max_new_tokens == 64
    assert config.actor.optimizer.lr == 1e-6
    assert (config.actor.eps_clip, config.actor.eps_clip_higher, config.actor.adv_norm) == (0.2, 0.28, None)
    assert config.critic is None and config.ref is None
    (plan,) = composed(config).stages
    assert not plan.algorithm.needs & {"ref", "kl_full_ref", "values"}
    gate = plan.algorithm.gate
    assert (gate.low, gate.high) == (0.2, 0.28)


def test_overlong_then_bias_then_scale_then_norm(load) -> None:
    config = load(PENALTY)
    found = credited(config, [1.0, 0.0, 0.0, 1.0], [40, 40, 52, 64])
    assert found == pytest.approx([1.466, -0.338, -0.789, -0.338], abs=1e-3)


@pytest.mark.parametrize(("length", "penalty"), [(48, 0.0), (52, -0.25), (56, -0.5), (64, -1.0)])
def test_the_penalty_grows_over_the_last_sixteen_tokens(load, length: int, penalty: float) -> None:
    config = load(PENALTY, "actor.reward_norm=null", "actor.reward_bias=0", "actor.reward_scaling=1")
    assert credited(config, [1.0, 0.0], [length, 1]) == pytest.approx([1.0 + penalty, 0.0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["actor.eps_clip_high=0.28"], r"actor\.eps_clip_high: unknown key.*Near: eps_clip_higher"),
        (["+actor.eps_clip_high=0.28"], r"actor\.eps_clip_high: unknown key.*Near: eps_clip_higher"),
        (
            ["actor.reward_norm.group_size=4", "gconfig.n_samples=8"],
            r"actor\.reward_norm\.group_size.* 4.*n_samples.* 8",
        ),
        (
            [PENALTY, "actor.overlong_tokens=64"],
            r"actor\.overlong_tokens.* 64 must be below gconfig\.max_new_tokens 64",
        ),
        (["rollout.backend=sglang:d4p1t1"], r'rollout\.backend: expected .*local.*, got "sglang:d4p1t1"'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key_and_values(load, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        composed(load(*words))


def test_settings_of_what_is_off_name_the_missing_switch(load) -> None:
    config = load()
    found = review(config.actor, n_samples=4, max_new_tokens=64)
    [line] = [line for line in found.inactive if line.startswith("actor.overlong_tokens")]
    assert line == "actor.overlong_tokens 16: no effect, needs actor.overlong_reward_penalty: true"
