"""Gives the loop its groups: starts them, filters them, refills, and can continue after a kill as if nothing had happened.

Left out: overlap with training. `take` works in synchronous rounds: every sample of a step comes from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from partita.algo.keep import MixedOutcomes
from partita.engine.api import Engine, Sampling
from partita.records import Group, Prompt
from partita.rollout.adaptive import AdaptiveSizes
from partita.rollout.budget import capacity
from partita.rollout.episodes import RolloutError, Scorer, Setting, play
from partita.rollout.workflow import Workflow
from partita.tasks.rates import PassRates
from partita.tasks.reward import Judge, guard_errors

TRAIN_STREAM = 0
SYNCHRONOUS = 0  # weight versions between the start of a group and its training


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


@dataclass(frozen=True)
class Retry:
    """`mixed_group_retry`: sample a group anew, at most `times` times, until it holds right and wrong samples.

    Whole groups only: drawing single samples until one is right would make right answers look likelier than they are.
    A raw reward at or above `correct_threshold` is right, as in `algo.keep.MixedOutcomes`.
    """

    times: int
    correct_threshold: float = 1.0

    def mixed(self, group: Group) -> bool:
        """Whether the group needs no further attempt."""
        return MixedOutcomes(1, self.correct_threshold)(torch.tensor(group.rewards, dtype=torch.float64))


@dataclass
class Taken:
    """The groups of a step, in start order, and what was sampled beside them.

    started: all groups of the step in start order: statistics of the policy must not depend on filter or retries.
    dropped: those that the filter refused. discarded: attempts that were sampled anew. prompts_before: prompts of the
    data set that the run had used before this step.
    """

    groups: list[Group]
    dropped: list[Group] = field(default_factory=list)
    discarded: list[Group] = field(default_factory=list)
    started: list[Group] = field(default_factory=list)
    rounds: int = 1
    prompts_before: int = 0


@dataclass
class Rollouts:
    """Owns the engine's requests, the data position and the count of started groups.

    prompt_limit: prompts that the whole run may use, for runs that are measured in epochs. The last step then trains on
    what is left, also where that is less than a batch: refilling a step uses more prompts than a batch has.
    started counts groups, each attempt of a retry as one; used counts prompts; version counts steps that were taken.
    rates: how often each prompt was right, over all attempts.
    """

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
    retry: Retry | None = None
    adaptive: AdaptiveSizes | None = None
    prompt_limit: int | None = None
    used: int = 0
    version: int = 0
    judge: Judge | None = None
    rates: PassRates | None = None

    @property
    def exhausted(self) -> bool:
        """Whether the run has used all prompts that it may."""
        return self.prompt_limit is not None and self.used >= self.prompt_limit

    async def take(self, groups: int) -> Taken:
        """`groups` groups from the current weights, fewer with `dynamic_bs` and where `prompt_limit` is reached.

        Raises RolloutError when the filter lets too few through, and RewardErrors when more than `max_error_share` of the
        step's samples so far have no reward because of errors.
        """
        taken = Taken([], prompts_before=self.used)
        # counted anew at every step: what an earlier step, or the run before a kill, left unused is no room for this one
        accepted = self.version * groups
        for taken.rounds in range(1, (self.refill.max_batches if self.refill else 1) + 1):
            for group in await self._round(self._room(groups, accepted), taken):
                wanted = self.refill is None or self.refill.keep(group)
                (taken.groups if wanted else taken.dropped).append(group)
                # a dropped group gives its room back to one that replaces it
                accepted += wanted or not (self.refill and self.refill.refill)
            if not self._room(groups, accepted):
                self.version += 1
                taken.groups.sort(key=lambda group: group.serial)  # a group that was retried started later
                return taken
        raise RolloutError(_starved(taken, groups))

    def _room(self, groups: int, accepted: int) -> int:
        """How many groups the next round starts. Nothing runs between rounds, and the engine queues what lacks a slot."""
        room = capacity(
            version=self.version, eta=SYNCHRONOUS, accepted=accepted, running=0, batch=groups, max_concurrent=groups
        )
        return room if self.prompt_limit is None else min(room, max(0, self.prompt_limit - self.used))

    async def _round(self, groups: int, taken: Taken) -> list[Group]:
        """As many prompts, each with the last attempt at it, in the order of the prompts."""
        prompts = [self.prompts.next() for _ in range(groups)]
        self.used += groups
        sizes = [self.n_samples] * groups
        if self.adaptive is not None:
            sizes = self.adaptive.sizes([prompt.uid for prompt in prompts], self.n_samples)
        finished = await self._play(prompts, sizes, taken)
        for _ in range(self.retry.times if self.retry else 0):
            again = [i for i, group in enumerate(finished) if self.retry and not self.retry.mixed(group)]
            if not again:
                break
            taken.discarded += [finished[i] for i in again]
            attempts = await self._play([prompts[i] for i in again], [sizes[i] for i in again], taken)
            for i, group in zip(again, attempts, strict=True):
                finished[i] = group
        return finished

    async def _play(self, prompts: Sequence[Prompt], sizes: Sequence[int], taken: Taken) -> list[Group]:
        serials = range(self.started, self.started + len(prompts))
        self.started += len(prompts)
        setting = Setting(self.engine, self.workflow, self.scorer, self.sampling, self.seed, TRAIN_STREAM, self.judge)
        finished = await play(setting, list(zip(serials, prompts, strict=True)), sizes)
        taken.started += finished
        # all of the step so far: a round that refills one group is too few to judge by
        guard_errors((sample for group in taken.started for sample in group.samples), self.max_error_share)
        if self.adaptive is not None:
            self.adaptive.observe(finished)
        if self.rates is not None:
            self.rates.observe(finished)
        return finished

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to draw the same groups."""
        state = {
            "started": self.started, "used": self.used, "version": self.version, "prompts": self.prompts.state_dict()
        }  # fmt: skip
        state |= {} if self.adaptive is None else {"adaptive": self.adaptive.state_dict()}
        return state | ({} if self.rates is None else {"rates": self.rates.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.started = state["started"]
        self.used = state.get("used", self.started)  # before there were retries every group had a prompt of its own
        self.version = state.get("version", 0)
        self.prompts.load_state_dict(state["prompts"])
        if self.adaptive is not None and "adaptive" in state:
            self.adaptive.load_state_dict(state["adaptive"])
        if self.rates is not None and "rates" in state:
            self.rates.load_state_dict(state["rates"])


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
