"""Gives the loop its groups: starts them, filters them, refills, and can continue after a kill as if nothing had happened.

Left out: overlap with training. `take` works in synchronous rounds: every sample of a step comes from the same weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from partita.algo.keep import MixedOutcomes
from partita.engine.api import Engine, Sampling
from partita.records import Group, Prompt
from partita.rollout.adaptive import AdaptiveSizes
from partita.rollout.budget import capacity, oversampled
from partita.rollout.episodes import RolloutError, Scorer, Setting, play
from partita.rollout.surplus import SurplusCounts, Waiting
from partita.rollout.workflow import UNLIMITED, Workflow
from partita.tasks.chat import NO_CHAT, Chat
from partita.tasks.rates import PassRates
from partita.tasks.reward import Judge, guard_errors

TRAIN_STREAM = 0
SYNCHRONOUS = 0  # weight versions between the start of a group and its training


class Prompts(Protocol):
    """An endless, resumable source of prompts. left_out: rows so far that became no prompt, of those read as the run goes."""

    @property
    def left_out(self) -> int: ...

    def next(self) -> Prompt:
        """The next prompt, in an order that depends on the seed and the position only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        ...


OnLimit = Literal["error", "train_on_less", "skip"]


@dataclass(frozen=True)
class Refill:
    """Dynamic sampling: what to do with the room that dropped groups leave.

    keep: whether a group is worth training on. max_batches: rounds of generation per step. refill False trains on what one
    round left (`dynamic_bs`). oversample: a round starts this many times the groups that are lacking. surplus_steps: steps that
    a group which passed beyond the batch may wait; 0 drops it. on_limit: after the last round without a full batch end the run
    with an explanation, train on what passed, or learn nothing and keep what passed.
    """

    keep: Callable[[Group], bool]
    max_batches: int
    refill: bool
    oversample: float = 1.0
    surplus_steps: int = 1
    on_limit: OnLimit = "error"


EVERYTHING = Refill(lambda group: True, 1, refill=False)
"""Without a filter."""


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
    data set that the run had used before this step. lacking: places of the batch that stayed empty. extra: groups that rounds
    started beyond what the batch lacked. surplus: of groups that passed beyond a batch; those used were started by an earlier
    step, and are not in `started`.
    """

    groups: list[Group]
    dropped: list[Group] = field(default_factory=list)
    discarded: list[Group] = field(default_factory=list)
    started: list[Group] = field(default_factory=list)
    rounds: int = 0
    prompts_before: int = 0
    lacking: int = 0
    extra: int = 0
    surplus: SurplusCounts = field(default_factory=SurplusCounts)


@dataclass
class Rollouts:
    """Owns the engine's requests, the data position and the count of started groups.

    prompt_limit: prompts that the whole run may use, for runs that are measured in epochs. The last step then trains on
    what is left, also where that is less than a batch: refilling a step uses more prompts than a batch has.
    started counts groups, each attempt of a retry as one; used counts prompts; version counts steps that were taken.
    rates: how often each prompt was right, over all attempts. surplus: groups that passed and wait for the next step, in start
    order; forgotten counts those that a new stage had no use for. told: kinds of reward errors that were warned of.
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
    surplus: list[Waiting] = field(default_factory=list[Waiting])
    forgotten: int = 0
    chat: Chat = NO_CHAT
    context: int = UNLIMITED
    told: set[str] = field(default_factory=set[str])

    @property
    def exhausted(self) -> bool:
        """Whether the run has used all prompts that it may, and no group waits that may still be trained on."""
        return self.prompt_limit is not None and self.used >= self.prompt_limit and not self._fresh()

    async def take(self, groups: int) -> Taken:
        """`groups` groups, those that waited first, the others from the current weights. Fewer with `dynamic_bs`, where
        `prompt_limit` is reached, and as `Refill.on_limit` says.

        Raises RolloutError when the filter lets too few through, and RewardErrors when more than `max_error_share` of the
        step's samples so far have no reward because of errors.
        """
        taken, asked, refused = Taken([], prompts_before=self.used), self.refill or EVERYTHING, 0
        passed = self._fresh()
        taken.surplus.dropped = self.forgotten + len(self.surplus) - len(passed)
        # a dropped group gives its room back to one that replaces it
        while (room := self._room(groups, len(passed) + refused)) and taken.rounds < asked.max_batches:
            taken.rounds += 1
            starts = self._affordable(oversampled(room, asked.oversample))
            taken.extra += starts - room
            for group in await self._round(starts, taken):
                if asked.keep(group):
                    passed.append(Waiting(group, self.version))
                else:
                    taken.dropped.append(group)
                    refused += not asked.refill
        self._fill(taken, passed, groups, short=room > 0)
        return taken

    def _fill(self, taken: Taken, passed: Sequence[Waiting], groups: int, *, short: bool) -> None:
        """The batch: the first that passed. By start order, so that a long answer has the chance of a short one. The others wait.

        short: the rounds came to their end before the batch was full.
        """
        asked = self.refill or EVERYTHING
        if short:
            told = _starved(taken, len(passed), groups)
            if asked.on_limit == "error":
                raise RolloutError(told)
            warnings.warn(f"{told}. {ON_LIMIT[asked.on_limit]}", stacklevel=2)
        places = 0 if short and asked.on_limit == "skip" else groups
        batch, rest = passed[:places], passed[places:]
        taken.lacking, taken.surplus.used = groups - len(batch), sum(one.version < self.version for one in batch)
        # a group that was retried started later
        taken.groups = sorted((one.group for one in batch), key=lambda group: group.serial)
        self.version += 1
        self.surplus, self.forgotten = list(rest), 0
        self.surplus = self._fresh()
        taken.surplus.kept = len(self.surplus)
        taken.surplus.dropped += len(rest) - len(self.surplus)

    def _fresh(self) -> list[Waiting]:
        """Those that wait and are not too old for the next step."""
        limit = (self.refill or EVERYTHING).surplus_steps
        return [one for one in self.surplus if self.version - one.version <= limit]

    def forget_surplus(self) -> None:
        """A stage has begun: what was sampled as the one before it asked for is not trained on, and counted by the next step."""
        self.forgotten += len(self.surplus)
        self.surplus = []

    def _room(self, groups: int, accepted: int) -> int:
        """How many groups the step still lacks. Nothing runs between rounds, and the engine queues what lacks a slot.

        What an earlier step, or the run before a kill, left unused is no room for this one.
        """
        room = capacity(
            version=self.version, eta=SYNCHRONOUS, accepted=self.version * groups + accepted, running=0, batch=groups,
            max_concurrent=groups,
        )  # fmt: skip
        return self._affordable(max(0, room))

    def _affordable(self, groups: int) -> int:
        return groups if self.prompt_limit is None else min(groups, max(0, self.prompt_limit - self.used))

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
        setting = Setting(
            self.engine, self.workflow, self.scorer, self.sampling, self.seed, TRAIN_STREAM, self.judge, self.chat, self.context
        )  # fmt: skip
        finished = await play(setting, list(zip(serials, prompts, strict=True)), sizes)
        taken.started += finished
        # all of the step so far: a round that refills one group is too few to judge by
        guard_errors((sample for group in taken.started for sample in group.samples), self.max_error_share)
        self._warn(sample.error for group in finished for sample in group.samples if sample.status == "reward_error")
        if self.adaptive is not None:
            self.adaptive.observe(finished)
        if self.rates is not None:
            self.rates.observe(finished)
        return finished

    def _warn(self, errors: Iterable[str]) -> None:
        """Tell of each kind of error once: the function and what it raised."""
        for error in errors:
            kind = ":".join(error.split("\n", 1)[0].split(":")[:2])
            if kind not in self.told:
                self.told.add(kind)
                first = error.split("\n", 1)[0]
                warnings.warn(
                    f"a reward failed, {first}; further ones are only counted, in reward/error_share", stacklevel=2
                )

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to draw the same groups."""
        state = {
            "started": self.started, "used": self.used, "version": self.version, "prompts": self.prompts.state_dict()
        }  # fmt: skip
        state |= {} if self.adaptive is None else {"adaptive": self.adaptive.state_dict()}
        state |= {"surplus": [one.state_dict() for one in self.surplus]} if self.surplus else {}
        state |= {"forgotten": self.forgotten} if self.forgotten else {}
        return state | ({} if self.rates is None else {"rates": self.rates.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.started = state["started"]
        self.used = state.get("used", self.started)  # before there were retries every group had a prompt of its own
        self.version = state.get("version", 0)
        self.surplus = [Waiting.of_state(saved) for saved in state.get("surplus", ())]
        self.forgotten = state.get("forgotten", 0)
        self.prompts.load_state_dict(state["prompts"])
        if self.adaptive is not None and "adaptive" in state:
            self.adaptive.load_state_dict(state["adaptive"])
        if self.rates is not None and "rates" in state:
            self.rates.load_state_dict(state["rates"])


ON_LIMIT = {"train_on_less": "This step trains on what passed", "skip": "This step learns nothing"}


def _starved(taken: Taken, passed: int, wanted: int) -> str:
    rewards = [[s.reward for s in g.samples if s.reward is not None] for g in taken.dropped]
    low = min((min(r) for r in rewards if r), default=float("nan"))
    alike = [r[0] for r in rewards if r and min(r) == max(r)]
    share = sum(value == low for value in alike) / max(len(rewards), 1)
    return (
        f"dynamic sampling: after {taken.rounds} rounds only {passed} of {wanted} groups passed the filter; "
        f"{len(alike)} of the {len(rewards)} dropped groups had equal rewards (share at {low:g}: {share:.2f}). "
        "The task is too hard or too easy for this model: change the task, raise gconfig.n_samples or "
        "actor.dynamic_sampling.max_batches, or set dynamic_bs=true or actor.dynamic_sampling.on_limit"
    )
