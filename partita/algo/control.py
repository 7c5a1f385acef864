"""Controllers: the state of an algorithm, owned by the loop; parts themselves never remember.

A controller reads the metrics of a step and changes plain values of the next one's parts. An algorithm whose values
are all fixed has no controllers.
Left out: the rules themselves. Each is a small class with these four methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from partita.algo.algorithm import Algorithm

When = Literal["before_credit", "after_credit", "before_step", "after_epochs"]


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
        """The algorithm with the current value put in place."""
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
        """The algorithm of this step: plain numbers in every part."""
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
