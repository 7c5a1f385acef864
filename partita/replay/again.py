"""A train step computed again from its saved numbers, and compared with what was trained.

Credit comes from the rewards and old log-probs, weights and losses from that credit and the saved current log-probs: no
number that is compared is an input of its own computation.
Shapes: T packed trained tokens, S samples, M trained tokens of a minibatch, in its own order.
Left out: the gradients (`exact`), and other algorithms (`others`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.ratio import NoRatio
from partita.algo.tokens import live_tokens, present
from partita.config import ConfigError
from partita.config.errors import Problem
from partita.records import Batch
from partita.replay.saved import SavedStep, Setting
from partita.run import RunConfig, stage_configs
from partita.runfolder import RunFolderError
from partita.stages import StageConfig
from partita.train.record import OptimizerStep, as_computed, replay, weighed

TOLERANCE = 1e-6
"""Of the larger of 1 and what is added up: a loss was summed over micro-batches in single precision, here in one go."""


@dataclass(frozen=True)
class Difference:
    """How far a number that was trained with is from its second computation; `allowed` is the most that rounding can be."""

    what: str
    value: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether rounding explains it."""
        return self.value <= self.allowed

    def __str__(self) -> str:
        return f"{self.what} differs by {self.value:.3g} (rounding allows {self.allowed:.1g})"


@dataclass(frozen=True)
class Acted:
    """What an algorithm does with the tokens of one optimizer step, given what the policy said about them.

    taken: the optimizer step. batch: what it computed, with weights. ratio_M is None without a ratio. held_M: the gate has
    cut the gradient. coefficient_M: the factor of ∇ log π of each token (see `Algorithm.gradient_coefficients`); times the
    weight it is what the token adds to the step.
    """

    taken: OptimizerStep
    batch: Batch
    ratio_M: Tensor | None
    held_M: Tensor
    coefficient_M: Tensor

    @property
    def sample_M(self) -> Tensor:
        """Which sample of the rollout batch a token belongs to."""
        return torch.tensor(self.taken.computed, dtype=torch.long)[self.batch.seq_T]

    @property
    def advantage_M(self) -> Tensor:
        """The advantages of this optimizer step: of a balanced one, scaled."""
        return present(self.batch.advantages_T, "advantages_T")

    @property
    def weight_M(self) -> Tensor:
        """The weights of the aggregation, in float64."""
        return present(self.batch.weight_T, "weight_T").to(torch.float64)

    @property
    def pull_M(self) -> Tensor:
        """Weight times coefficient."""
        return self.weight_M * self.coefficient_M


@dataclass(frozen=True)
class StepAgain:
    """One optimizer step. loss: computed again, None where nothing was computed; acted likewise."""

    taken: OptimizerStep
    loss: float | None
    difference: Difference
    acted: Acted | None


@dataclass(frozen=True)
class Again:
    """A train step computed again: its config, its algorithm with the rules' numbers in place, its batch credited anew."""

    config: RunConfig
    algorithm: Algorithm
    controls: Controls
    batch: Batch
    credit: tuple[Difference, ...]
    steps: tuple[StepAgain, ...]

    @property
    def wrong(self) -> tuple[Difference, ...]:
        """What does not come out again."""
        return tuple(one for one in (*self.credit, *(step.difference for step in self.steps)) if not one.ok)


def step_config(config: RunConfig, setting: Setting) -> RunConfig:
    """A run's config with the algorithm keys that the step really had.

    A resumed run may have gone on with others, and so may a later stage.
    """
    return stage_configs(replace(config, stages=[StageConfig(None, dict(setting.keys))]))[0]


def compute_again(config: RunConfig, saved: SavedStep) -> Again:
    """Credit and losses once more. Raises RunFolderError where its rules' numbers do not fit its keys."""
    controls = Controls(controllers(config.actor))
    try:
        controls.load_state_dict(saved.setting.controls)
    except (ValueError, KeyError) as error:
        raise RunFolderError(f"the numbers of step {saved.setting.step} do not fit their keys: {error}") from error
    algorithm = controls.apply(composed_with(config, saved.setting.part_weights))
    batch = algorithm.credit(uncredited(saved.batch))
    pairs = {
        "advantage": (saved.batch.advantages_T, batch.advantages_T),
        "score": (saved.batch.score_S, batch.score_S),
        "return": (saved.batch.returns_T, batch.returns_T),
        "valid sample": (saved.batch.valid_S, batch.valid_S),
    }
    there = {name: pair for name, pair in pairs.items() if pair[0] is not None or pair[1] is not None}
    credit = tuple(_difference(name, *pair) for name, pair in there.items())
    shared = config.critic is not None and config.critic.shared
    steps = tuple(_step_again(batch, algorithm, i, taken, shared) for i, taken in enumerate(saved.record.steps))
    return Again(config, algorithm, controls, batch, credit, steps)


def composed_with(config: RunConfig, part_weights: tuple[float, ...]) -> Algorithm:
    """The algorithm of a config, as configured. Raises ConfigError for keys that exclude each other."""
    lengths = {"n_samples": config.gconfig.n_samples, "max_new_tokens": config.gconfig.max_new_tokens}
    try:
        return compose(config.actor, **lengths, part_weights=part_weights)
    except ValueError as error:  # one line for each conflict, which begins with its key
        raise ConfigError([Problem(*line.split(" ", 1)) for line in str(error).splitlines()]) from error


def uncredited(batch: Batch) -> Batch:
    """The batch as credit got it. It also cleared the streams of invalid samples, which a second time changes nothing."""
    return batch.with_(score_S=None, advantages_T=None, returns_T=None)


def act(algorithm: Algorithm, batch: Batch, taken: OptimizerStep) -> Acted | None:
    """What an algorithm does in an optimizer step on a credited rollout batch; None where nothing was computed then."""
    if taken.current is None:
        return None
    mini = as_computed(batch, algorithm, taken)
    with torch.no_grad():
        tokens = live_tokens(mini, taken.current, algorithm.center(mini, taken.current.logprobs_T))
        if algorithm.ratio.whole_sequence:
            tokens = replace(tokens, advantages_T=tokens.sequence_mean(tokens.advantages_T))
        ratio_M = algorithm.ratio(tokens)
        clipped = tuple(algorithm.gate(ratio_M, tokens).clipped.values())
    held_M = torch.stack(clipped).any(0) if clipped else torch.zeros_like(tokens.live_T)
    without = isinstance(algorithm.ratio, NoRatio)
    coefficient_M = algorithm.gradient_coefficients(mini, taken.current)
    return Acted(taken, mini, None if without else ratio_M, held_M & tokens.live_T, coefficient_M)


def _step_again(batch: Batch, algorithm: Algorithm, index: int, taken: OptimizerStep, shared: bool) -> StepAgain:
    """shared: the policy is the critic too, and what only that learns from passed through the model as well."""
    name = f"optimizer step {index + 1}:"
    mini = weighed(batch.select(taken.samples), algorithm, taken.unmoved)
    moving_S = algorithm.moving_S(mini) | algorithm.valued_S(mini) if shared else algorithm.moving_S(mini)
    gone = [place for place, sample in enumerate(taken.samples) if sample in set(taken.left_out)]
    if bool(moving_S.any()) is (taken.outcome == "dead") or bool(moving_S[gone].any()):
        return StepAgain(taken, None, Difference(f"{name} whether there was something to learn", math.inf, 0.0), None)
    loss = replay(batch, algorithm, taken)
    if loss is None:
        return StepAgain(taken, None, Difference(f"{name} loss", 0.0, 0.0), None)
    value = float(loss.value)
    summed = (present(mini.weight_T, "weight_T") * present(mini.advantages_T, "advantages_T")).abs().sum()
    allowed = TOLERANCE * max(1.0, float(summed))
    difference = Difference(f"{name} loss", apart(taken.loss, value), allowed)
    return StepAgain(taken, value, difference, act(algorithm, batch, taken))


def apart(one: float, other: float) -> float:
    """|one - other|; 0 for the same NaN or infinity, infinite where only one of them is finite."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    distance = abs(one - other)
    return distance if math.isfinite(distance) else math.inf


def _difference(what: str, trained: Tensor | None, again: Tensor | None) -> Difference:
    if trained is None or again is None or trained.shape != again.shape:
        return Difference(what, math.inf, 0.0)
    first, second = trained.to(torch.float64), again.to(torch.float64)
    same = (first == second) | (first.isnan() & second.isnan())
    distance = torch.where(same, 0.0, (first - second).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    finite = first[first.isfinite()].abs()
    largest = float(finite.max()) if len(finite) else 0.0
    return Difference(what, float(distance.max()) if len(distance) else 0.0, TOLERANCE * max(1.0, largest))
