"""Gives the loop its groups: starts them, filters them, refills, and can continue after a kill as if nothing had happened.

Left out: overlap with training. `take` works in synchronous rounds: every sample of a step comes from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from partita.engine.api import Engine, Sampling
from partita.records import Group, Prompt
from partita.rollout.episodes import RolloutError, Scorer, Setting, play
from partita.rollout.workflow import Workflow
from partita.tasks.reward import guard_errors

TRAIN_STREAM = 0


class Prompts(Protocol):
    """An endless, resumable source of prompts."""

    def next(self) -> Prompt:
        """The next prompt, in an order that depends on the seed and the position only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        ...


@dataclass(frozen=True)
class Refill:
    """Dynamic sampling: what to do with the room that dropped groups leave.

    keep: whether a group is worth training on. max_batches: rounds of generation per step before the run ends with an
    explanation. refill False trains on what one round left (`dynamic_bs`).
    """

    keep: Callable[[Group], bool]
    max_batches: int
    refill: bool


@dataclass
class Taken:
    """The groups of a step, in start order, and what the filter saw."""

    groups: list[Group]
    dropped: list[Group] = field(default_factory=list)
    rounds: int = 1

    @property
    def started(self) -> list[Group]:
        """All groups of the step in start order: statistics of the policy must not depend on the filter."""
        return sorted([*self.groups, *self.dropped], key=lambda group: group.serial)


@dataclass
class Rollouts:
    """Owns the engine's requests, the data position and the count of started groups."""

    engine: Engine
    workflow: Workflow
    prompts: Prompts
    scorer: Scorer
    sampling: Sampling
    n_samples: int
    seed: int
    refill: Refill | None = None
    max_error_share: float = 0.5
    started: int = 0

    async def take(self, groups: int) -> Taken:
        """`groups` groups from the current weights. Raises RolloutError when the filter lets too few through, and
        RewardErrors when more than `max_error_share` of the step's samples so far have no reward because of errors.
        """
        taken = Taken([])
        for taken.rounds in range(1, (self.refill.max_batches if self.refill else 1) + 1):
            finished = await self._round(groups - len(taken.groups))
            # all of the step so far: a round that refills one group is too few to judge by
            so_far = [*taken.started, *finished]
            guard_errors((sample for group in so_far for sample in group.samples), self.max_error_share)
            for group in finished:
                wanted = self.refill is None or self.refill.keep(group)
                (taken.groups if wanted else taken.dropped).append(group)
            if len(taken.groups) == groups or self.refill is None or not self.refill.refill:
                return taken
        raise RolloutError(_starved(taken, groups))

    async def _round(self, groups: int) -> list[Group]:
        started = [(self.started + i, self.prompts.next()) for i in range(groups)]
        self.started += groups
        setting = Setting(self.engine, self.workflow, self.scorer, self.sampling, self.seed, TRAIN_STREAM)
        return await play(setting, started, self.n_samples)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to draw the same groups."""
        return {"started": self.started, "prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.started = state["started"]
        self.prompts.load_state_dict(state["prompts"])


def _starved(taken: Taken, wanted: int) -> str:
    rewards = [[s.reward for s in g.samples if s.reward is not None] for g in taken.dropped]
    low = min((min(r) for r in rewards if r), default=float("nan"))
    alike = [r[0] for r in rewards if r and min(r) == max(r)]
    share = sum(value == low for value in alike) / max(len(rewards), 1)
    return (
        f"dynamic sampling: after {taken.rounds} rounds only {len(taken.groups)} of {wanted} groups passed the filter; "
        f"{len(alike)} of the {len(rewards)} dropped groups had equal rewards (share at {low:g}: {share:.2f}). "
        "The task is too hard or too easy for this model: change the task, raise gconfig.n_samples or "
        "actor.dynamic_sampling.max_batches, or set dynamic_bs=true"
    )
