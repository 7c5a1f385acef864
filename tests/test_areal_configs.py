"""The configs, keys, defaults, commands and advantages of AReaL's algorithm page are what docs/areal.md says."""

from typing import get_args, get_type_hints

import areal_configs
import pages
import pytest

from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.presets import keys_of
from partita.config import ConfigError
from partita.run import RunConfig, composed, load_run_config

# the page's tables: key, default, values that must be accepted
NORM = {
    "mean_level": ("batch", "group", None), "std_level": ("batch", "group", None), "mean_leave1out": (True, False),
    "std_unbiased": (True, False), "eps": (1e-5, 1e-3), "group_size": (4, None),
}  # fmt: skip
ACTOR = {
    "eps_clip": (0.2, 0.3), "eps_clip_higher": (None, 0.28), "importance_sampling_level": ("token", "sequence"),
    "use_sapo_loss": (False, True), "sapo_tau_pos": (1.0, 2.0), "sapo_tau_neg": (1.05, 2.0),
    "overlong_reward_penalty": (False, True), "overlong_tokens": (None, 64), "overlong_penalty_factor": (1.0, 0.5),
    "use_decoupled_loss": (False, True), "kl_ctl": (0.0, 0.1), "adv_norm": (None,), "reward_norm": (None,),
}  # fmt: skip


def load(*words: str, config: str = "grpo") -> RunConfig:
    return load_run_config([areal_configs.MATH / f"gsm8k_{config}.yaml"], list(words)).value


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(areal_configs.generated(), areal_configs.COMMAND) == []


@pytest.mark.parametrize("section, keys", [(NormConfig, NORM), (AlgorithmKeys, ACTOR)])
def test_every_key_of_the_page_has_its_type_and_default(section, keys):
    default = section()
    printed = {"std_unbiased": True, "mean_leave1out": False, "eps": 1e-5, "group_size": None}
    for key, values in keys.items():
        expected = printed.get(key, values[0])
        assert getattr(default, key) == expected, key
        assert type(expected) in (
            get_args(get_type_hints(section)[key]) or (type(getattr(default, key)),)
        ) or expected in (*values,), key


@pytest.mark.parametrize("key, value", [(f"adv_norm.{k}", v) for k, values in NORM.items() for v in values])
def test_every_value_of_the_norm_table_loads(key, value):
    norm = load(f"actor.{key}={'null' if value is None else str(value).lower()}").actor.adv_norm
    assert norm is not None and getattr(norm, key.split(".")[1]) == value


@pytest.mark.parametrize("key, value", [(k, v) for k, values in ACTOR.items() for v in values])
@pytest.mark.parametrize("plus", ["", "+"])
def test_every_value_of_the_actor_tables_loads_with_and_without_a_plus(key, value, plus):
    assert getattr(load(f"{plus}actor.{key}={'null' if value is None else str(value).lower()}").actor, key) == value


def test_dynamic_batch_size_is_a_key_of_the_run():
    assert load().dynamic_bs is False and load("dynamic_bs=true").dynamic_bs is True
    assert load(config="dapo_dynamic_bs").dynamic_bs is True


# the page's matrix: mean level, std level, leave one out, ratio level
MATRIX = {
    "ppo": ("batch", "batch", False, "token"), "grpo": ("batch", "batch", False, "token"),
    "drgrpo": ("group", None, False, "token"), "liteppo": ("group", "batch", False, "token"),
    "rloo": ("group", None, True, "token"), "gspo": ("batch", "batch", False, "sequence"),
    "dapo_dynamic_bs": ("batch", "batch", False, "token"), "sapo": ("batch", "batch", False, "token"),
}  # fmt: skip


@pytest.mark.parametrize("config, row", MATRIX.items())
def test_the_rows_of_the_matrix_are_the_configs_and_the_presets(config, row):
    for actor in (load(config=config).actor, keys_of(f"areal_{config.split('_')[0]}")):
        norm = actor.adv_norm
        assert norm is not None
        assert (norm.mean_level, norm.std_level, norm.mean_leave1out, actor.importance_sampling_level) == row
        assert actor.use_sapo_loss is (config == "sapo") and actor.use_decoupled_loss is (config != "sapo")
        assert actor.credit == ("gae" if config == "ppo" else "outcome")
        assert actor.loss_agg_mode == "token_mean" and actor.kl_ctl == 0 and actor.reward_norm is None
        assert actor.eps_clip_higher == (0.28 if config.startswith("dapo") else None)


@pytest.mark.parametrize("config", MATRIX)
def test_every_config_composes(config):
    assert composed(load(config=config)) is not None


def test_ppo_has_a_critic_section():
    config = load(config="ppo")
    assert config.critic is not None and config.critic.path == config.actor.path


# responses of any length, rewards (1, 0, 0, 1), (0.2, 0.5, 0.9, 0.2), (0.7, 0.7, 0.7, 0.7)
BATCH = [1.231, -1.504, -1.504, 1.231, -0.957, -0.137, 0.957, -0.957, 0.41, 0.41, 0.41, 0.41]
MEAN = [0.5, -0.5, -0.5, 0.5, -0.25, 0.05, 0.45, -0.25, 0, 0, 0, 0]
OTHERS = [0.667, -0.667, -0.667, 0.667, -0.333, 0.067, 0.6, -0.333, 0, 0, 0, 0]
CENTRED = [1.438, -1.438, -1.438, 1.438, -0.719, 0.144, 1.294, -0.719, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "config, words, expected",
    [
        ("grpo", (), BATCH), ("gspo", (), BATCH), ("sapo", (), BATCH), ("dapo_dynamic_bs", (), BATCH),
        ("drgrpo", (), MEAN), ("rloo", (), OTHERS), ("liteppo", (), CENTRED),
        ("grpo", areal_configs.DRGRPO, MEAN),
        ("grpo", (*areal_configs.DRGRPO, "actor.adv_norm.mean_leave1out=true"), OTHERS),
        ("grpo", ("+actor.importance_sampling_level=sequence",), BATCH),
    ],
)  # fmt: skip
def test_switches_give_the_named_advantages_for_responses_of_any_length(config, words, expected):
    assert areal_configs.advantages(load(*words, config=config)) == expected


def test_sapo_with_the_decoupled_loss_says_why_not():
    words = [f"+{word}" for word in areal_configs.SAPO]
    with pytest.raises(
        ConfigError, match=r"use_sapo_loss: true with actor\.use_decoupled_loss true.*soft gate replaces the clip"
    ):
        composed(load(*words))
    assert areal_configs.algorithm(load(*words, "actor.use_decoupled_loss=false")).correct == ()


def test_a_group_size_that_is_not_the_number_of_samples_names_both():
    assert load("actor.adv_norm.group_size=${gconfig.n_samples}", "gconfig.n_samples=6").actor.adv_norm.group_size == 6
    with pytest.raises(ConfigError, match=r"group_size: 4 must equal gconfig\.n_samples 6"):
        composed(load("actor.adv_norm.group_size=4", "gconfig.n_samples=6"))
