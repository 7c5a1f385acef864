"""What other algorithms would have done with the samples of a saved step, beside what was trained.

They see the same log-probs: those of the policy as it really was at each optimizer step. After their own first step they
would have had others. Their adaptive rules begin with this step, except those that the trained algorithm has as well.
Shapes: T packed trained tokens, S samples, M trained tokens of a minibatch, A tokens of all optimizer steps together.
Left out: what they would have sampled, and the model (`exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.compose import controllers
from partita.algo.control import Controls
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import PRESETS
from partita.config import ConfigError
from partita.config.document import escape
from partita.config.errors import Problem, near_value
from partita.config.overrides import read_override
from partita.config.schema import plain
from partita.ops.segments import dense_ids
from partita.records import Batch
from partita.replay.again import Acted, Again, act, composed_with, uncredited
from partita.replay.saved import SavedStep
from partita.report.metrics import Metrics
from partita.run import RunConfig, load_run_config
from partita.stages import carried
from partita.train.config import ActorConfig
from partita.train.record import OptimizerStep, weighed

MISSING = {
    "ref": "log-probs of a reference, which this step did not score (they belong to a KL term: try --set "
    "actor.kl_loss_coef=0 --set actor.kl_ctl=0)",
    "kl_full_ref": "the reference's whole distribution, which this step did not compare with (try --set "
    "actor.kl_loss_estimator=k3)",
    "kl_full_score": "the whole distributions of policy and reference before the first optimizer step, which this step did "
    "not compare (try --set actor.kl_estimator=k1)",
    "kl_full_old": "the old policy's whole distribution, which this step did not compare with (try --set "
    "actor.kl_penalty_estimator=k3)",
    "values": "the values of a critic, and this run has none (try --set actor.credit=outcome)",
    "step_rewards": "rewards of single steps, which these samples do not have",
    "parts": "the values of the reward functions one by one, which are kept with actor.reward_norm_per_part=true",
    "prox": "log-probs from before the first optimizer step, which this step did not score",
    "left_out": "what the policy said of samples that this step left out, as nothing of them could move in it "
    "(actor.skip_dead_samples=false computes all of them)",
    "old_entropy": "entropies from before the first optimizer step, which this step did not score",
}
"""By stream, what an algorithm cannot do without, and what to do about it."""
SCORED = frozenset({"prox", "old_entropy"})
"""Streams from before the first optimizer step that the step itself shows while the weights have not moved."""


@dataclass(frozen=True)
class Other:
    """An algorithm on the saved samples.

    missing: what keeps it from being computed; then there is no algorithm and nothing in acted. batch: credited by it.
    acted: for each optimizer step, None for a dead one. redrawn: groups that it would have drawn again.
    """

    name: str
    missing: tuple[str, ...]
    algorithm: Algorithm | None
    batch: Batch
    acted: tuple[Acted | None, ...] = ()
    redrawn: int = 0


@dataclass(frozen=True)
class Compared:
    """An algorithm beside the trained one, over the tokens of all optimizer steps; None where nothing can be counted.

    agreement: share of the tokens that one of the two moves, which both move in the same direction. held: share of the
    weighted tokens whose gradient the gate cut. correct, incorrect: mean |coefficient| of the weighted tokens of samples
    with a reward above 0, and of the others. by_length: mean |weight · coefficient| of a token in each class of sample
    lengths, over that of all tokens. cosine: between the vectors of weight · coefficient, as if the gradients of
    log-probs of all tokens were orthogonal and of one length.
    """

    agreement: float | None
    held: float | None
    advantage: float | None
    correct: float | None
    incorrect: float | None
    by_length: tuple[float | None, ...]
    cosine: float | None


def other_config(config: RunConfig, preset: str | None, changes: Sequence[str]) -> RunConfig:
    """The config of another algorithm: a preset in place of the step's keys (None: those), then the changes.

    Raises ConfigError for an unknown preset, and for a change of anything but the algorithm.
    """
    problems = list[Problem]()
    if preset is not None and preset not in PRESETS:
        near = near_value(preset, PRESETS)
        problems.append(Problem("--algorithm", f"{preset!r} is not a preset.{near} Choices: {', '.join(PRESETS)}"))
    problems += [Problem(f"--set {word}", wrong) for word in changes if (wrong := _not_of_algorithm(word))]
    if problems:
        raise ConfigError(problems)
    tree = escape(plain(config))
    tree["stages"] = []
    named = [] if preset is None else [f"algorithm={preset}"]
    return load_run_config([], [*named, *changes], tree).value


def _not_of_algorithm(word: str) -> str:
    """Why a change is refused; empty where it is none of what is fixed. Unknown keys are named when the config is read."""
    try:
        section, *names = read_override(word).parts
    except ValueError as error:
        return str(error)
    given = {item.name for item in fields(ActorConfig)} - {item.name for item in fields(AlgorithmKeys)}
    if section != "actor" or not names or names[0] in given:
        return "no key of the algorithm: samples and model are given; write something like actor.eps_clip=0.1"
    return ""


def judge(name: str, config: RunConfig, again: Again, saved: SavedStep) -> Other:
    """Another algorithm on the samples of a step that was computed again."""
    weights = saved.setting.part_weights
    algorithm = composed_with(config, weights)
    batch = _with_scored(uncredited(saved.batch), saved)
    steps = tuple(map(_with_old, saved.record.steps))
    lacking = _lacking(algorithm, batch, steps) | ({"parts"} if "parts" in algorithm.needs and not weights else set())
    if lacking & SCORED and _lost_by_leaving_out(batch, saved):
        lacking = lacking - SCORED | {"left_out"}
    if lacking:
        return Other(name, tuple(MISSING[stream] for stream in sorted(lacking)), None, batch)
    redrawn = _redrawn(algorithm, batch)
    algorithm, batch = _credited(config, algorithm, batch, again)
    if any(_moves_left_out(algorithm, batch, taken) for taken in steps):
        return Other(name, (MISSING["left_out"],), None, batch)
    return Other(name, (), algorithm, batch, tuple(act(algorithm, batch, taken) for taken in steps), redrawn)


def as_trained(name: str, again: Again) -> Other:
    """The trained algorithm itself, as the others are shown."""
    acted = tuple(one.acted for one in again.steps)
    return Other(name, (), again.algorithm, again.batch, acted, _redrawn(again.algorithm, again.batch))


def length_classes(batch: Batch) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
    """Up to three classes of sample lengths, of about equal size: the class of each sample [S], and each class's range."""
    length_S = batch.length_S
    if len(length_S) == 0:
        return length_S, ()
    bounds = torch.quantile(length_S.to(torch.float64), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    class_S, classes = dense_ids((length_S[:, None] > bounds).sum(1))
    found = [length_S[class_S == i] for i in range(classes)]
    return class_S, tuple((int(one.min()), int(one.max())) for one in found)


def compare(trained: Other, other: Other) -> Compared:
    """One algorithm beside what was trained."""
    pairs = [(a, b) for a, b in zip(trained.acted, other.acted, strict=True) if a is not None and b is not None]
    base, told = _flat([a for a, _ in pairs]), _flat([b for _, b in pairs])
    moved_A, all_A = (told.pull_A != 0) | (base.pull_A != 0), torch.ones_like(told.held_A)
    class_S, ranges = length_classes(trained.batch)
    correct_A = (trained.batch.reward_S > 0)[told.sample_A]
    mass_A, size_A, class_A = told.pull_A.abs(), told.coefficient_A.abs(), class_S[told.sample_A]
    mass = _mean(mass_A, all_A)
    of_class = [_mean(mass_A, class_A == i) for i in range(len(ranges))]
    return Compared(
        agreement=_mean(told.pull_A.sign() == base.pull_A.sign(), moved_A),
        held=_mean(told.held_A, told.weighted_A),
        advantage=_mean(told.advantage_A.abs(), told.weighted_A),
        correct=_mean(size_A, told.weighted_A & correct_A),
        incorrect=_mean(size_A, told.weighted_A & ~correct_A),
        by_length=tuple(one / mass if one is not None and mass else None for one in of_class),
        cosine=cosine(told.pull_A, base.pull_A),
    )


def cosine(one_N: Tensor, other_N: Tensor) -> float | None:
    """The cosine of the angle between two vectors, None where one of them is 0."""
    lengths = one_N.norm() * other_N.norm()
    return float((one_N @ other_N) / lengths) if bool(lengths > 0) else None


@dataclass(frozen=True)
class _Flat:
    """The tokens of several optimizer steps, one after the other."""

    pull_A: Tensor
    coefficient_A: Tensor
    weighted_A: Tensor
    held_A: Tensor
    advantage_A: Tensor
    sample_A: Tensor


def _flat(acted: Sequence[Acted]) -> _Flat:
    def joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        return torch.cat([torch.zeros(0, dtype=dtype), *(part.to(dtype) for part in parts)])

    return _Flat(
        joined([one.pull_M for one in acted], torch.float64),
        joined([one.coefficient_M for one in acted], torch.float64),
        joined([one.weight_M != 0 for one in acted], torch.bool),
        joined([one.held_M for one in acted], torch.bool),
        joined([one.advantage_M for one in acted], torch.float64),
        joined([one.sample_M for one in acted], torch.long),
    )


def _mean(value_A: Tensor, counted_A: Tensor) -> float | None:
    return float(value_A[counted_A].to(torch.float64).mean()) if bool(counted_A.any()) else None


def _with_scored(batch: Batch, saved: SavedStep) -> Batch:
    """The batch with log-probs and entropies from before the first optimizer step, where no scoring pass was needed.

    While the weights have not moved, what the policy says is what scoring would have said.
    """
    first = _before_any_move(saved)
    order = [s for taken in first for s in taken.computed]
    if not _every_token(batch, order):
        return batch
    spans = torch.arange(len(batch.seq_T)).split(batch.length_S.tolist())
    index_A = torch.cat([torch.zeros(0, dtype=torch.long), *(spans[s] for s in order)])

    def scored(old_T: Tensor | None, streams: Sequence[Tensor | None]) -> Tensor | None:
        found = [stream_M for stream_M in streams if stream_M is not None]
        if old_T is not None or not found or len(found) < len(streams):
            return old_T
        return torch.zeros(len(batch.seq_T), dtype=found[0].dtype).index_copy(0, index_A, torch.cat(found))

    said = [taken.current for taken in first if taken.current is not None]
    return batch.with_(
        prox_T=scored(batch.prox_T, [one.logprobs_T for one in said]),
        entropy_T=scored(batch.entropy_T, [one.entropy_T for one in said]),
    )


def _lost_by_leaving_out(batch: Batch, saved: SavedStep) -> bool:
    """Whether the optimizer steps before any move would have shown every token, had they left out no sample."""
    first = _before_any_move(saved)
    computed, whole = ([s for taken in first for s in taken.computed], [s for taken in first for s in taken.samples])
    return not _every_token(batch, computed) and _every_token(batch, whole)


def _before_any_move(saved: SavedStep) -> list[OptimizerStep]:
    return [taken for taken in saved.record.steps if taken.unmoved and taken.current is not None]


def _every_token(batch: Batch, samples: Sequence[int]) -> bool:
    return set(batch.length_S.nonzero().flatten().tolist()) <= set(samples)


def _with_old(taken: OptimizerStep) -> OptimizerStep:
    """The step with the divergence from the old policy where that is the current one: 0, at its minimum."""
    current = taken.current
    if current is None or not taken.unmoved or current.kl_full_old_T is not None:
        return taken
    return replace(taken, current=replace(current, kl_full_old_T=torch.zeros_like(current.logprobs_T)))


def _lacking(algorithm: Algorithm, batch: Batch, steps: Sequence[OptimizerStep]) -> set[str]:
    """Streams that the algorithm reads and the saved step does not have."""
    live = [taken for taken in steps if taken.current is not None]
    said = [taken.current for taken in live if taken.current is not None]
    absent = {
        "ref": batch.ref_T is None,
        "values": batch.values_T is None,
        "step_rewards": batch.step_rewards_T is None,
        "prox": batch.prox_T is None,
        "old_entropy": batch.entropy_T is None,
        "kl_full_score": batch.kl_full_T is None,
        "kl_full_ref": any(one.kl_full_ref_T is None for one in said),
        "kl_full_old": any(one.kl_full_old_T is None for one in said),
    }
    needs = algorithm.needs
    if algorithm.center.scored and not all(taken.unmoved for taken in live):
        needs = needs | {"prox"}
    return {stream for stream in needs if absent.get(stream, False)}


def _moves_left_out(algorithm: Algorithm, batch: Batch, taken: OptimizerStep) -> bool:
    """Whether the algorithm would have learned from a sample that did not pass through the model, beside others that did."""
    gone = [place for place, sample in enumerate(taken.samples) if sample in set(taken.left_out)]
    if taken.current is None or not gone:
        return False
    return bool(algorithm.moving_S(weighed(batch.select(taken.samples), algorithm, taken.unmoved))[gone].any())


def _credited(config: RunConfig, algorithm: Algorithm, batch: Batch, again: Again) -> tuple[Algorithm, Batch]:
    """The algorithm with its rules' numbers in place, and the batch credited by it."""
    controls = Controls(controllers(config.actor))
    carried(again.controls, controls)
    known = again.controls.state_dict()
    begun = Controls(tuple(rule for rule in controls.controllers if rule.state_dict() != known.get(rule.name)))
    begun.observe("before_credit", controls.apply(algorithm).statistics(batch))
    batch = controls.apply(algorithm).credit(batch)
    found = Metrics()
    if bool(batch.valid_S.any()):
        found.add(algorithm.credit_stats(batch))
    begun.observe("after_credit", found.as_dict())
    return controls.apply(algorithm), batch


def _redrawn(algorithm: Algorithm, batch: Batch) -> int:
    """Groups that the algorithm would have drawn again."""
    group_S, groups = dense_ids(batch.prompt_S)
    rewards = (batch.reward_S[(group_S == group) & batch.reward_S.isfinite()] for group in range(groups))
    return sum(not algorithm.keep(reward_K) for reward_K in rewards)
