"""Other algorithms on the same samples: what they do there is what they would have trained, and what can be worked out by hand."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from replaying import toy_config, toy_run

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current
from partita.config import ConfigError
from partita.engine.config import GenerationConfig
from partita.records import Batch
from partita.replay.again import composed_with, compute_again
from partita.replay.others import MISSING, Other, as_trained, compare, cosine, judge, length_classes, other_config
from partita.replay.saved import SavedStep, read_step, setting_of
from partita.run import RunConfig
from partita.train.config import ActorConfig
from partita.train.record import LearnRecord, OptimizerStep

ROOT_HALF = math.sqrt(0.5)
RATIOS = [1.5, 1.1, 0.7, 1.25, 1.0, 0.5, 1.3]
REWARDS = [1.0, 0.0, 1.0, 0.0]


def by_hand(name: str = "grpo", **changes: object) -> tuple[RunConfig, SavedStep]:
    """Two groups of two samples of 2, 1, 3 and 1 tokens, and one optimizer step in which the policy has moved."""
    preset = replace(keys_of(name), kl_loss_coef=0.0)
    actor = ActorConfig(**({item.name: getattr(preset, item.name) for item in fields(AlgorithmKeys)} | changes))  # type: ignore[arg-type]
    config = RunConfig(
        algorithm=name, total_train_steps=1, gconfig=GenerationConfig(n_samples=2, max_new_tokens=4), actor=actor
    )
    prox_T = torch.full((7,), -1.0, dtype=torch.float64)
    batch = Batch(
        torch.tensor([0, 0, 1, 2, 2, 2, 3]), torch.tensor([0, 0, 1, 1]), torch.tensor(REWARDS, dtype=torch.float64),
        torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool), prox_T=prox_T, behaviour_T=prox_T,
        version_T=torch.zeros(7, dtype=torch.long), lot_S=torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        train_version=1,
    )  # fmt: skip
    current = Current(prox_T + torch.tensor(RATIOS, dtype=torch.float64).log(), torch.ones(7, dtype=torch.float64))
    record = LearnRecord((OptimizerStep((0, 1, 2, 3), current, 0.0, "stepped", False),))
    setting = setting_of(1, 0, config, composed_with(config, ()), {})
    unsaved = SavedStep(setting, torch.arange(7), batch, record)
    return config, replace(unsaved, batch=compute_again(config, unsaved).batch)


def beside(name: str | None, *changes: str, config: RunConfig, saved: SavedStep) -> tuple[Other, Other]:
    """The trained algorithm and another."""
    again = compute_again(config, saved)
    return as_trained("trained", again), judge("other", other_config(config, name, changes), again, saved)


A = 0.5 / (ROOT_HALF + keys_of("grpo").adv_norm.eps)  # type: ignore[union-attr]
NO_OVERLONG = "actor.overlong_reward_penalty=false"


def test_coefficients_weights_and_what_is_held_are_those_worked_out_by_hand() -> None:
    config, saved = by_hand()
    trained, other = beside("dapo", NO_OVERLONG, config=config, saved=saved)
    ((grpo,), (dapo,)) = (trained.acted, other.acted)
    assert grpo is not None and dapo is not None
    assert grpo.advantage_M.tolist() == pytest.approx([A, A, -A, A, A, A, -A])
    assert grpo.coefficient_M.tolist() == pytest.approx([0, 1.1 * A, 0, 0, A, 0.5 * A, -1.3 * A])
    assert dapo.coefficient_M.tolist() == pytest.approx([0, 1.1 * A, 0, 1.25 * A, A, 0.5 * A, -1.3 * A])
    assert grpo.weight_M.tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 12, 1 / 12, 1 / 12, 1 / 4])
    assert dapo.weight_M.tolist() == pytest.approx([1 / 7] * 7)
    assert grpo.held_M.tolist() == [True, False, True, True, False, False, False]
    assert dapo.held_M.tolist() == [True, False, True, False, False, False, False]
    assert dapo.ratio_M is not None and dapo.ratio_M.tolist() == pytest.approx(RATIOS)
    assert dapo.sample_M.tolist() == [0, 0, 1, 2, 2, 2, 3]


def test_the_comparison_is_the_one_worked_out_by_hand() -> None:
    config, saved = by_hand()
    trained, other = beside("dapo", NO_OVERLONG, config=config, saved=saved)
    found, itself = compare(trained, other), compare(trained, trained)
    assert found.agreement == 4 / 5  # of the five tokens that one of them moves, the one with ratio 1.25 only by dapo
    assert found.held == pytest.approx(2 / 7)
    assert found.advantage == pytest.approx(A)
    assert found.correct == pytest.approx((1.1 + 1.25 + 1 + 0.5) / 5 * A)
    assert found.incorrect == pytest.approx(1.3 / 2 * A)
    mean = (1.1 + 1.25 + 1 + 0.5 + 1.3) / 7
    assert found.by_length == pytest.approx((1.3 / 2 / mean, 1.1 / 2 / mean, 2.75 / 3 / mean))
    mine, theirs = [1.1, 1.25, 1, 0.5, -1.3], [1.1 / 8, 0, 1 / 12, 0.5 / 12, -1.3 / 4]
    dot = sum(a * b for a, b in zip(mine, theirs, strict=True))
    assert found.cosine == pytest.approx(dot / math.hypot(*mine) / math.hypot(*theirs))
    assert (itself.agreement, itself.cosine, itself.held) == (1.0, pytest.approx(1.0), pytest.approx(3 / 7))
    assert itself.by_length != found.by_length


def test_a_sequence_ratio_holds_whole_samples() -> None:
    config, saved = by_hand()
    _, other = beside("gspo", "actor.eps_clip=0.2", "actor.eps_clip_higher=0.2", config=config, saved=saved)
    (gspo,) = other.acted
    assert gspo is not None and gspo.ratio_M is not None
    ratios = [math.sqrt(1.5 * 1.1)] * 2 + [0.7] + [(1.25 * 0.5) ** (1 / 3)] * 3 + [1.3]
    assert gspo.ratio_M.tolist() == pytest.approx(ratios)
    assert gspo.held_M.tolist() == [True, True, True, False, False, False, False]
    _, without = beside("rloo", "actor.kl_ctl=0", config=config, saved=saved)
    assert without.acted[0] is not None and without.acted[0].ratio_M is None


def test_length_classes_are_thirds_and_equal_lengths_stay_together() -> None:
    _, saved = by_hand()
    class_S, ranges = length_classes(saved.batch)
    assert (class_S.tolist(), ranges) == ([1, 0, 2, 0], ((1, 1), (2, 2), (3, 3)))
    alike = saved.batch.select([1, 3])
    assert length_classes(alike)[1] == ((1, 1),)
    assert length_classes(saved.batch.select([]))[1] == ()


def test_no_angle_to_a_vector_of_zeros() -> None:
    assert cosine(torch.zeros(2), torch.ones(2)) is None
    assert cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])) == pytest.approx(24 / 25)


def test_changes_alone_are_on_top_of_what_was_trained_and_with_a_preset_on_top_of_it() -> None:
    config, _ = by_hand("gspo", eps_clip=0.05)
    mine = other_config(config, None, ["actor.eps_clip_higher=0.5"]).actor
    assert (mine.eps_clip, mine.eps_clip_higher, mine.importance_sampling_level) == (0.05, 0.5, "sequence")
    theirs = other_config(config, "dapo", ["actor.eps_clip_higher=0.5", "actor.adv_norm.eps=0.1"]).actor
    assert (theirs.eps_clip, theirs.eps_clip_higher, theirs.importance_sampling_level) == (0.2, 0.5, "token")
    assert theirs.adv_norm is not None and (theirs.adv_norm.mean_level, theirs.adv_norm.eps) == ("group", 0.1)


WRONG = {
    "unknown preset": (("grop", []), "'grop' is not a preset. Near: grpo. Choices: reinforce"),
    "no override": ((None, ["eps"]), "--set eps: not an override; write key=value"),
    "the model": ((None, ["actor.path=x"]), "--set actor.path=x: no key of the algorithm"),
    "the samples": ((None, ["gconfig.n_samples=9"]), "--set gconfig.n_samples=9: no key of the algorithm"),
    "a preset": ((None, ["algorithm=dapo"]), "--set algorithm=dapo: no key of the algorithm"),
    "unknown key": ((None, ["actor.eps_clap=0.1"]), "actor.eps_clap: unknown key. Near: eps_clip"),
    "wrong value": ((None, ["actor.eps_clip=-1"]), "actor.eps_clip"),
}


@pytest.mark.parametrize("asked, message", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_algorithm_is_named(asked, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        other_config(by_hand()[0], *asked)
    assert message in str(error.value)


def test_keys_that_exclude_each_other_are_named() -> None:
    config, saved = by_hand()
    with pytest.raises(ConfigError, match=r"actor.use_sapo_loss: true with actor.use_decoupled_loss true"):
        beside("sapo", "actor.use_decoupled_loss=true", config=config, saved=saved)


LACKING = {
    "a reference": ("grpo", (), "log-probs of a reference"),
    "a critic": ("ppo", ("actor.kl_ctl=0",), "the values of a critic"),
    "steps": (None, ("actor.credit=process",), "rewards of single steps"),
    "parts": (None, ("actor.reward_norm={}", "actor.reward_norm_per_part=true", "actor.adv_norm=null"), "one by one"),
    "old entropies": ("skywork_or1", (), "entropies from before"),
    "whole distributions of scoring": (None, ("actor.kl_ctl=1", "actor.kl_estimator=full"), "policy and reference before"),
    "whole distributions": (
        None, ("actor.kl_penalty_coef=1", "actor.kl_penalty_estimator=full"), "the old policy's whole distribution"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name, changes, reason", LACKING.values(), ids=LACKING.keys())
def test_a_stream_that_was_not_scored_is_named_and_nothing_is_guessed(name, changes, reason: str) -> None:
    config, saved = by_hand()
    _, other = beside(name, *changes, config=config, saved=saved)
    assert other.algorithm is None and other.acted == ()
    assert any(reason in one for one in other.missing), other.missing


def test_old_log_probs_that_were_not_scored_are_missed_after_the_first_optimizer_step() -> None:
    config, saved = by_hand(recompute_logprob=False)
    saved = replace(saved, batch=saved.batch.with_(prox_T=None))
    _, other = beside("drgrpo", config=config, saved=saved)
    assert other.missing == ("log-probs from before the first optimizer step, which this step did not score",)
    first = replace(saved.record.steps[0], unmoved=True)
    _, other = beside("drgrpo", config=config, saved=replace(saved, record=LearnRecord((first,))))
    assert other.missing == ()
    assert other.batch.prox_T is not None
    assert torch.equal(other.batch.prox_T, first.current.logprobs_T)  # type: ignore[union-attr]


def test_a_filter_says_which_groups_it_would_have_drawn_again() -> None:
    config, saved = by_hand()
    alike = replace(saved, batch=saved.batch.with_(reward_S=torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)))
    for batch, many in ((saved, 0), (alike, 1)):
        trained, other = beside("dapo", NO_OVERLONG, config=config, saved=batch)
        assert (trained.redrawn, other.redrawn) == (0, many)


def test_whatever_a_preset_reads_has_words_for_its_absence() -> None:
    always = {"entropy", "behaviour", "kl_after"}
    for name in PRESETS:
        assert compose(keys_of(name), n_samples=8, max_new_tokens=64).needs <= MISSING.keys() | always


LIKE = [  # of a matrix one row; what is filtered has other samples
    name
    for name in PRESETS
    if (not name.startswith("areal_") or name == "areal_grpo")
    and keys_of(name).credit != "gae"
    and keys_of(name).dynamic_sampling is None
    and name != "grpo"
]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, SavedStep]:
    """The first step of a GRPO run, one optimizer step: its samples are those that any algorithm would have had."""
    config = toy_config("grpo", steps=1, ppo_epochs=1, ppo_n_minibatches=1)
    return config, read_step(toy_run(tmp_path_factory.mktemp("once"), config), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKE)
def test_what_another_algorithm_would_have_done_is_what_it_does_in_a_run_of_its_own(
    tmp_path: Path, name: str, once
) -> None:
    _, other = beside(name, config=once[0], saved=once[1])
    own_config = toy_config(name, steps=1, ppo_epochs=1, ppo_n_minibatches=1)
    own = as_trained("own", compute_again(own_config, read_step(toy_run(tmp_path, own_config), 1)))
    (theirs,), (mine,) = other.acted, own.acted
    assert theirs is not None and mine is not None
    for one, two in (
        (theirs.pull_M, mine.pull_M),
        (theirs.advantage_M, mine.advantage_M),
        (theirs.weight_M, mine.weight_M),
    ):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)
    assert bool((mine.pull_M != 0).any())


def test_what_moves_samples_that_the_step_left_out_is_not_computed(tmp_path: Path) -> None:
    """A batch's mean gives groups of equal rewards an advantage, their own mean does not."""
    config = toy_config("drgrpo", steps=1, skip_dead_samples=True)
    saved = read_step(toy_run(tmp_path, config), 1)
    assert any(taken.left_out and taken.current is not None for taken in saved.record.steps)
    assert not compute_again(config, saved).wrong
    _, own = beside(None, "actor.eps_clip=0.1", config=config, saved=saved)
    assert own.algorithm is not None
    _, other = beside(None, "actor.adv_norm.mean_level=batch", config=config, saved=saved)
    assert other.missing == (MISSING["left_out"],) and other.algorithm is None


def test_what_reads_streams_of_samples_that_the_step_left_out_is_told_so() -> None:
    config, saved = by_hand()
    (whole,) = saved.record.steps
    said = Current(*(stream_T[:3] for stream_T in (whole.current.logprobs_T, whole.current.entropy_T)))  # type: ignore[union-attr]
    part = replace(whole, unmoved=True, current=said, left_out=(2, 3))
    for step, reason in ((part, "left_out"), (replace(whole, unmoved=False), "old_entropy")):
        _, other = beside("skywork_or1", config=config, saved=replace(saved, record=LearnRecord((step,))))
        assert other.missing == (MISSING[reason],)
    elsewhere = replace(part, samples=(0, 1), left_out=())  # with its other samples in a dead step, or after a move
    dead = OptimizerStep((2, 3), None, 0.0, "dead", True, (2, 3))
    _, other = beside("skywork_or1", config=config, saved=replace(saved, record=LearnRecord((elsewhere, dead))))
    assert other.missing == (MISSING["old_entropy"],)


def test_rules_that_the_run_had_go_on_and_new_ones_begin_here(tmp_path: Path) -> None:
    config = toy_config("sapo_selfadaptive", steps=2)
    saved = read_step(toy_run(tmp_path, config), 2)
    again = compute_again(config, saved)
    eps, reference = again.controls.state_dict()["eps_clip"].values()
    assert reference > 0
    _, same = beside(None, "actor.loss_agg_mode=token_mean", config=config, saved=saved)
    assert same.algorithm is not None and same.algorithm.gate.low == eps
    _, fresh = beside(None, "actor.eps_clip_rule=null", "actor.eps_clip=0.07", config=config, saved=saved)
    assert fresh.algorithm is not None and fresh.algorithm.gate.low == 0.07
    _, smoothed = beside("gspo_smoothed", config=config, saved=saved)
    assert smoothed.algorithm is not None and smoothed.algorithm.norm is not None
    reward_S = saved.batch.reward_S
    assert smoothed.algorithm.norm.center.mean == pytest.approx(float(reward_S.mean()))  # this batch's own
