"""Controllers: the state of an algorithm, owned by the loop; parts themselves never remember.

A controller reads the metrics of a step and changes plain values of the next one's parts. An algorithm whose values
are all fixed has no controllers.
Left out: the rules themselves, in `controllers` and `kl_control`. Here is what they share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

from partita.algo.algorithm import Algorithm
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.shape import KlInReward

When = Literal["before_credit", "after_credit", "after_epochs"]
"""Rewards and old log-probs of a step are known; so are its advantages; its optimizer steps are done."""

PartT = TypeVar("PartT")


class Controller(Protocol):
    """One adaptive value."""

    @property
    def name(self) -> str:
        """Its name in logs and checkpoints, unique among the controllers of a run."""
        ...

    @property
    def when(self) -> When:
        """The moment of a step at which it observes."""
        ...

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics known at that moment."""
        ...

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with the current value put in place; a second time changes nothing more."""
        ...

    def state_dict(self) -> dict[str, float]:
        """Everything it remembers; these numbers are also its log."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        ...


@dataclass(frozen=True)
class Controls:
    """All controllers of a run, in the order in which they are applied."""

    controllers: tuple[Controller, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for two controllers of one name."""
        names = [controller.name for controller in self.controllers]
        if len(set(names)) != len(names):
            raise ValueError(f"controllers need distinct names, got {', '.join(names)}")

    def observe(self, when: When, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to the controllers whose moment this is."""
        for controller in self.controllers:
            if controller.when == when:
                controller.observe(metrics)

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm of this step: plain numbers in every part. Apply again after an `observe` within the step."""
        for controller in self.controllers:
            algorithm = controller.apply(algorithm)
        return algorithm

    def logged(self) -> dict[str, float]:
        """`control/<name>/<value>` for everything the controllers remember."""
        return {
            f"control/{name}/{value}": number
            for name, state in self.state_dict().items()
            for value, number in state.items()
        }

    def state_dict(self) -> dict[str, dict[str, float]]:
        """The state of each controller by its name."""
        return {controller.name: controller.state_dict() for controller in self.controllers}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from a checkpoint. Raises ValueError where it holds other controllers than this run has."""
        here = {controller.name for controller in self.controllers}
        if here != set(state):
            raise ValueError(f"the checkpoint holds controllers {sorted(state)}, this run has {sorted(here)}")
        for controller in self.controllers:
            controller.load_state_dict(state[controller.name])


@dataclass(frozen=True)
class Bounds:
    """The closed interval in which a rule keeps its value."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        """The nearest value inside."""
        return min(max(value, self.low), self.high)

    def inside(self, start: float, name: str) -> float:
        """The start itself. Raises ValueError where it is outside: the first change would be a jump to the edge."""
        if not self.low <= start <= self.high:
            raise ValueError(f"{name}: the start {start:g} is outside its bounds, {self.low:g} to {self.high:g}")
        return start


NOT_NEGATIVE = Bounds(0.0, math.inf)


def finite(metrics: Mapping[str, float], *names: str) -> tuple[float, ...] | None:
    """The named metrics, or None where one is absent or not finite."""
    found = tuple(metrics.get(name, math.nan) for name in names)
    return found if all(math.isfinite(value) for value in found) else None


def with_coef(
    parts: tuple[PartT, ...], kind: type[KlInReward | KlLoss | StepKl | EntropyBonus], coef: float
) -> tuple[PartT, ...]:
    """The parts, the coefficient of that kind replaced. Raises ValueError where there is none."""
    if not any(isinstance(part, kind) for part in parts):
        raise ValueError(f"this algorithm has no {kind.__name__} whose coefficient could be set")
    return tuple(replace(part, coef=coef) if isinstance(part, kind) else part for part in parts)
