"""What a run says before its first step."""

from pathlib import Path

import pytest
from running import call, settings


@pytest.fixture
def header(tmp_path: Path, model_folder: Path, vowels: str):
    """The facts of a run of some steps, by name."""

    def facts(preset: str, *words: str) -> dict[str, str]:
        given = settings(tmp_path, actor__path=model_folder, reward__functions=f"[{vowels}]", trial_name="t")
        ended = call("train", preset, *given, *words)
        assert ended.code == 0, ended.err
        lines = [line[2:].split("  ", 1) for line in ended.out.splitlines() if line.startswith("  ")]
        return {parts[0].strip(): parts[1].strip() for parts in lines if len(parts) == 2}

    return facts


def test_rules_their_start_and_what_is_scored_for_whom(header) -> None:
    facts = header(
        "ppo_penalty", "actor.credit=outcome", "actor.adv_norm={mean_level: ema, std_level: ema}", "actor.ppo_epochs=2",
        "actor.kl_penalty_estimator=full", "actor.kl_ctl=0.1", "actor.kl_controller=null", "actor.eps_clip=0.2",
        "actor.adaptive_entropy={start: 0.5}", "gconfig.adaptive_n={max: 8}",
    )  # fmt: skip
    assert facts["controllers"].startswith(
        "ema_adv_norm: batches 0, mean 0, variance 0, used_mean 0, used_variance 1; "
    )
    assert facts["controllers"].endswith("entropy: coef 0.5, applied 0")
    assert facts["scores"] == (
        "old log-probs (for KlInReward, 2 optimizer steps per batch); entropy before the step (for EntropyBonus); "
        "log-probs of the reference (for KlInReward); the old policy's whole distribution (for StepKl)"
    )
    assert facts["reference"] == "the starting policy, float32, 0 MiB, for the KL term"
    assert facts["old policy"] == "a copy, float32, 0 MiB, for the KL of a step over the whole vocabulary"
    assert facts["batch"] == "2 prompts x 4 samples on average (2 to 8, by entropy), at most 8 new tokens"


def test_stages_and_what_is_idle_in_all_of_them(header) -> None:
    facts = header(
        "drgrpo", "actor.minibatch_split=spread", "dynamic_bs=true", "critic={}", "actor.overlong_tokens=3",
        "stages=[{until: {step: 1}, set: {gconfig.max_new_tokens: 4}}, {until: {step: 2}, set: {algorithm: dapo}}, {set: "
        "{actor.ppo_n_minibatches: 2}}]",
    )  # fmt: skip
    assert facts["stages"] == (
        '[0] until step 1: gconfig.max_new_tokens 4; [1] until step 2: algorithm "dapo"; [2] to the end: '
        "actor.ppo_n_minibatches 2"
    )
    assert facts["batch"].endswith("at most 4 new tokens")
    # stages 1 and 2 use the filter and the minibatches
    assert facts["inactive"] == (
        "ref.dtype float32: no effect, needs a KL term: actor.kl_loss_coef or actor.kl_ctl above 0; "
        "critic: no effect, needs actor.credit: gae; stages[1]: never begins, stages[0].until.step 1 and total_train_steps 1"
    )
    assert facts["assumed"].endswith("actor.loss_agg_constant 8: the largest gconfig.max_new_tokens of all stages")
    assert "scores" not in facts
    assert "controllers" not in facts


def test_how_a_batch_is_filled_and_what_may_end_the_run(header) -> None:
    facts = header(
        "dapo", "actor.dynamic_sampling={filter: mixed_rewards, oversample: 1.5, on_limit: skip}", "max_tokens=5000",
    )  # fmt: skip
    assert facts["filter"] == (
        "rounds start 1.5 times the groups that are lacking, and the batch takes them in start order; after 10 rounds: skip; "
        "groups beyond the batch wait at most 1 steps, with the sampler's own log-probs, and are older by as many weight "
        "versions (they count like new ones; actor.use_decoupled_loss=true weighs them)"
    )
    assert facts["ends"] == "after the step that reaches 5,000 generated tokens"
