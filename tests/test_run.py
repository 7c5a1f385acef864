"""The config of a run: what its sections say to each other."""

import pytest

from partita.config import ConfigError
from partita.idle import without_effect
from partita.run import RunConfig, composed, load_run_config, refuse_untrainable
from partita.train.config import CriticConfig

NONE = frozenset[str]()


def config(*words: str) -> RunConfig:
    return load_run_config([], ["total_train_steps=3", *words]).value


def idle(*words: str, needs: frozenset[str] = NONE, filtered: bool = False, held_out: bool = True) -> list[str]:
    found = without_effect(config(*words), needs=needs, filtered=filtered, held_out=held_out)
    return [line.split(":")[0] for line in found]


@pytest.mark.parametrize(
    ("words", "asleep", "awake"),
    [
        (["dynamic_bs=true"], "dynamic_bs True", {"filtered": True}),
        (["ref.dtype=float32"], "ref.dtype float32", {"needs": frozenset({"kl_full_ref"})}),
        (["critic.dtype=float32"], "critic", {"needs": frozenset({"values"})}),
        (["actor.optimizer.min_lr_ratio=0.1"], "actor.optimizer.min_lr_ratio 0.1", ["actor.optimizer.lr_scheduler_type=cosine"]),
        (["actor.minibatch_split=spread"], "actor.minibatch_split spread", ["actor.ppo_n_minibatches=2"]),
        (["train_dataset.path=largest", "train_dataset.subset=main"], "train_dataset.subset main", ["train_dataset.path=a/b"]),
        (["valid_dataset.path=rows.jsonl", "valid_dataset.subset=main"], "valid_dataset.subset main", ["valid_dataset.path=a/b"]),
        (["evaluator.n_samples=4"], "evaluator.n_samples 4", ["evaluator.freq_steps=2"]),
        (["total_train_epochs=2"], "total_train_epochs 2", ["total_train_steps=null"]),
    ],
)  # fmt: skip
def test_a_key_that_does_nothing_is_listed_until_what_it_needs_is_there(words, asleep, awake) -> None:
    assert idle(*words) == [asleep]
    assert (idle(*words, **awake) if isinstance(awake, dict) else idle(*words, *awake)) == []


def test_defaults_are_never_listed_and_an_evaluation_needs_rows() -> None:
    assert idle() == []
    assert idle("evaluator.freq_steps=2") == []
    assert idle("evaluator.freq_steps=2", held_out=False) == ["evaluator.freq_steps 2"]


def test_a_seed_that_the_random_numbers_cannot_take_is_refused() -> None:
    assert config("seed=4294967295").seed == 2**32 - 1
    with pytest.raises(ConfigError, match=r"seed: .*4294967296"):
        config("seed=4294967296")


def test_a_config_that_only_plays_may_be_greedy() -> None:
    assert config("gconfig.temperature=0").gconfig.temperature == 0


def test_samples_are_never_stale_here() -> None:
    assert idle("actor.max_staleness=2") == ["actor.max_staleness 2"]


def test_samples_that_waited_are_stale() -> None:
    assert idle("actor.max_staleness=2", "actor.dynamic_sampling.oversample=1.5", filtered=True) == []
    at_once = ["actor.dynamic_sampling.oversample=1.5", "actor.dynamic_sampling.surplus_steps=0"]
    assert idle("actor.max_staleness=2", *at_once, filtered=True) == ["actor.max_staleness 2"]


def test_what_of_dynamic_sampling_does_nothing() -> None:
    assert idle("actor.dynamic_sampling.surplus_steps=3", filtered=True) == ["actor.dynamic_sampling.surplus_steps 3"]
    skipping = ["actor.dynamic_sampling.surplus_steps=3", "actor.dynamic_sampling.on_limit=skip"]
    assert idle(*skipping, filtered=True) == []
    assert idle("dynamic_bs=true", *skipping, filtered=True) == ["actor.dynamic_sampling.on_limit skip"]


def test_samples_of_the_starting_policy_grow_older_with_every_step() -> None:
    assert config("algorithm=rft").rollout.policy == "starting"
    assert config("algorithm=rft", "rollout.policy=newest").rollout.policy == "newest"
    with pytest.raises(
        ConfigError, match=r"rollout.policy=starting with actor.max_staleness=2: .* leave max_staleness out"
    ):
        config("algorithm=rft", "actor.max_staleness=2")
    assert idle("actor.prox_logp_method=loglinear") == ["actor.prox_logp_method loglinear"]
    assert idle("actor.prox_logp_method=loglinear", "rollout.policy=starting") == []


def test_a_ratio_that_takes_other_samples_for_the_policys_own_is_warned_of() -> None:
    assert composed(config("algorithm=rft", "gconfig.n_samples=4")).cautions == ()
    (line,) = composed(config("algorithm=grpo", "gconfig.n_samples=4", "rollout.policy=starting")).cautions
    assert line.startswith("rollout.policy starting: ") and "actor.use_decoupled_loss=true" in line


def test_a_critic_is_declared_and_judged_like_an_actor() -> None:
    words = ["critic.path=somewhere", "critic.optimizer.lr=1e-5", "critic.mb_spec.max_tokens_per_mb=64"]
    assert config().critic is None
    critic = config(*words).critic
    assert isinstance(critic, CriticConfig)
    assert (critic.path, critic.optimizer.lr, critic.mb_spec.max_tokens_per_mb) == ("somewhere", 1e-5, 64)
    with pytest.raises(ConfigError, match=r"critic\.optimizer\.lr: must be >= 0, got -1"):
        config("critic.optimizer.lr=-1")


def refused(*words: str, own_workflow: bool = False) -> str:
    given = config("gconfig.n_samples=4", *words)
    with pytest.raises(ConfigError) as caught:
        refuse_untrainable(given, composed(given), own_workflow=own_workflow)
    return str(caught.value)


def test_a_critic_that_is_the_policy_has_no_keys_of_a_model_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"critic: shared=true has no model of its own, but path=somewhere"):
        config("critic.shared=true", "critic.path=somewhere")
    with pytest.raises(ConfigError, match=r"critic: shared=true with warmup_steps=2"):
        config("critic.shared=true", "critic.warmup_steps=2")


def test_step_rewards_come_from_a_workflow_or_a_function_that_promises_them() -> None:
    assert "actor.credit: process needs rewards of single steps" in refused("actor.credit=process")
    given = config("actor.credit=process")
    refuse_untrainable(given, composed(given), own_workflow=True)
    given = config("actor.credit=process", "+reward.options.judged.steps=true")
    refuse_untrainable(given, composed(given), own_workflow=False)


def test_weights_of_reward_functions_reach_the_algorithm() -> None:
    words = ["gconfig.n_samples=4", "actor.reward_norm={mean_level: group}", "actor.reward_norm_per_part=true"]
    (stage,) = composed(config(*words), (2.0, 0.5)).stages
    assert stage.algorithm.shape[0].weights == (2.0, 0.5)  # type: ignore[attr-defined]
