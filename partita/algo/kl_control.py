"""The adaptive rules for KL coefficients: one controller, `KlCoefficient`, and the rules that it can follow.

A rule is a pure function of the coefficient and the metrics of the last steps; what it has to remember is kept by the
controller. A step that did not produce the metrics, or not finite ones, leaves everything as it is.
Left out: a fixed coefficient, which needs no rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from partita.algo.algorithm import Algorithm
from partita.algo.control import NOT_NEGATIVE, Bounds, When, finite, with_coef
from partita.algo.penalty import KlLoss, StepKl
from partita.algo.shape import KlInReward

Place = Literal["reward", "loss", "step"]
"""Whose coefficient: `KlInReward`'s, `KlLoss`'s, or that of `StepKl`, the KL from the old policy."""


class KlRule(Protocol):
    """How a KL coefficient follows its KL."""

    @property
    def window(self) -> int:
        """Steps that it looks at."""
        ...

    def reads(self, place: Place) -> tuple[str, ...]:
        """The metrics that it looks at; the KL that the coefficient multiplies comes first."""
        ...

    def __call__(self, coef: float, steps: Sequence[tuple[float, ...]]) -> float:
        """The next coefficient; `steps` holds those metrics for each step of the window, the oldest first."""
        ...


@dataclass(frozen=True)
class Ziegler:
    """β ← β·(1 + clip(KL/target - 1, -0.2, 0.2)·n/horizon) (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).

    KL and target are nats per *sequence*, summed over its tokens, to the reference; a mean per token would miss the
    target by the length of the responses. n counts the step's samples: n/horizon is the released code's, the paper has 0.1.
    """

    target: float = 6.0
    horizon: float = 10_000
    window: int = field(default=1, init=False)

    def reads(self, place: Place) -> tuple[str, ...]:
        """Raises ValueError for the KL of a step: the rule is about the distance to a reference."""
        if place == "step":
            raise ValueError("Ziegler's rule holds a KL to the reference; for the KL of a step: PpoPenalty or Trend")
        return "kl_ref/sequence", "samples"

    def __call__(self, coef: float, steps: Sequence[tuple[float, ...]]) -> float:
        """In proportion to the distance from the target and to the samples."""
        ((kl, samples),) = steps
        return coef * (1 + min(max(kl / self.target - 1, -0.2), 0.2) * samples / self.horizon)


@dataclass(frozen=True)
class PpoPenalty:
    """KL < target/1.5: β ← β/2. KL > 1.5·target: β ← 2β. Both strictly (PPO, arXiv 1707.06347, section 4).

    KL and target are nats per token: from the old policy for `step`, as in the paper; else to the reference.
    """

    target: float = 0.01
    window: int = field(default=1, init=False)

    def reads(self, place: Place) -> tuple[str, ...]:
        """The KL alone: of a step as it is after the last optimizer step, as in the paper."""
        return ("kl_after/k3",) if place == "step" else (_token_kl(place),)

    def __call__(self, coef: float, steps: Sequence[tuple[float, ...]]) -> float:
        """Halve, double or keep."""
        ((kl,),) = steps
        if kl < self.target / 1.5:
            return coef / 2
        return coef * 2 if kl > 1.5 * self.target else coef


@dataclass(frozen=True)
class Trend:
    """KL climbs by more than `kl_slope` a step: β ← β·f. Else reward climbs by no more than `reward_slope`: β ← β/f.

    A practitioners' rule of thumb made exact: slopes are least squares over the window, and a change is not followed by
    a pause.
    """

    window: int = 4
    kl_slope: float = 0.002
    reward_slope: float = 0.0
    factor: float = 1.5

    def reads(self, place: Place) -> tuple[str, ...]:
        """The KL per token and the reward."""
        return _token_kl(place), "reward/mean"

    def __call__(self, coef: float, steps: Sequence[tuple[float, ...]]) -> float:
        """Raise, lower or keep."""
        if _slope([kl for kl, _ in steps]) > self.kl_slope:
            return coef * self.factor
        return coef / self.factor if _slope([reward for _, reward in steps]) <= self.reward_slope else coef


@dataclass
class KlCoefficient:
    """One KL coefficient, moved by a rule once its window is full, within bounds.

    Reads what the rule names; a step that lacks one of those numbers is not part of the window.
    """

    place: Place
    start: float
    rule: KlRule
    bounds: Bounds = NOT_NEGATIVE
    when: When = field(default="after_epochs", init=False)
    coef: float = field(init=False)
    reads: tuple[str, ...] = field(init=False)
    past: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]], init=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a start outside the bounds, and for a rule that does not fit the place."""
        self.coef = self.bounds.inside(self.start, self.name)
        self.reads = self.rule.reads(self.place)

    @property
    def name(self) -> str:
        """`kl_<place>`: two rules for one coefficient are refused by their name."""
        return f"kl_{self.place}"

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step."""
        found = finite(metrics, *self.reads)
        if found is None:
            return
        self.past = [*self.past, found][-self.rule.window :]
        if len(self.past) == self.rule.window:
            self.coef = self.bounds(self.rule(self.coef, self.past))
            self.past = self.past[1:]

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """Set the coefficient."""
        if self.place == "reward":
            return replace(algorithm, shape=with_coef(algorithm.shape, KlInReward, self.coef))
        kind = KlLoss if self.place == "loss" else StepKl
        return replace(algorithm, penalties=with_coef(algorithm.penalties, kind, self.coef))

    def state_dict(self) -> dict[str, float]:
        """The coefficient, and the steps that the next one is judged with: `<metric>/0` is the oldest."""
        past = {
            f"{metric}/{index}": value
            for index, step in enumerate(self.past)
            for metric, value in zip(self.reads, step, strict=True)
        }
        return {"coef": self.coef} | past

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state; from another rule's, with its coefficient and an empty window."""
        self.coef, self.past = self.bounds(state["coef"]), []  # a stage may have brought tighter bounds
        while all(f"{metric}/{len(self.past)}" in state for metric in self.reads):
            self.past = [*self.past, tuple(state[f"{metric}/{len(self.past)}"] for metric in self.reads)]


def _token_kl(place: Place) -> str:
    return "kl_step/k3" if place == "step" else "kl_ref/k3"


def _slope(values: Sequence[float]) -> float:
    """Least squares against 0, 1, 2, ...; exactly 0 for equal values."""
    middle = (len(values) - 1) / 2
    rise = sum((index - middle) * (value - values[0]) for index, value in enumerate(values))
    return rise / sum((index - middle) ** 2 for index in range(len(values)))
