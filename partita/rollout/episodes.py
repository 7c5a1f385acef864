"""Plays episodes: every sample of some prompts through a workflow, against one engine, in rounds that time cannot change.

Training and evaluation differ only in the `Setting` they play in. Left out: which prompts, and what becomes of the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from partita.engine.api import Completion, Draw, Engine, Request, Sampling
from partita.records import Group, Prompt, Sample, StopReason
from partita.rollout.rounds import Rounds, together
from partita.rollout.workflow import Episode, Workflow
from partita.tasks.pool import Outcome
from partita.tasks.reward import Answer, Ask, Judge, Scored


class RolloutError(RuntimeError):
    """Rollouts cannot go on: the message says what was seen and which keys matter."""


class Scorer(Protocol):
    """Scores one response; never raises for a reward's fault."""

    async def score(
        self, prompt: Prompt, text: str, ids: Sequence[int], stop_reason: StopReason, ask: Ask | None = None
    ) -> Scored:
        """See `tasks.reward`. ask is given where the setting has a judge."""
        ...


@dataclass(frozen=True)
class Setting:
    """What all episodes of a step, or of an evaluation, have in common. `stream` keeps their draws apart from others'. `judge`:
    the scorer's reward model, where it has one.
    """

    engine: Engine
    workflow: Workflow
    scorer: Scorer
    sampling: Sampling
    seed: int
    stream: int
    judge: Judge | None = None


async def play(setting: Setting, prompts: Sequence[tuple[int, Prompt]], n_samples: int | Sequence[int]) -> list[Group]:
    """A group for each (serial, prompt), in the order given, of `n_samples` samples or of as many as stand at its place.

    Draws depend on (seed, stream, serial, sample, call) only. The first failure ends all of them.
    """
    sizes = [n_samples] * len(prompts) if isinstance(n_samples, int) else n_samples
    rounds = Rounds(setting.engine, setting.judge)
    rounds.enter(sum(sizes))

    async def one(prompt: Prompt, draw: Draw) -> Sample:
        try:
            return await setting.workflow.run(_episode(setting, rounds, prompt, draw))
        finally:
            rounds.leave(draw.serial, draw.sample)

    samples = await together(
        one(prompt, Draw(setting.seed, setting.stream, serial, k))
        for (serial, prompt), size in zip(prompts, sizes, strict=True)
        for k in range(size)
    )
    ends = list(accumulate(sizes))
    return [
        Group(serial, prompt, samples[end - size : end])
        for (serial, prompt), size, end in zip(prompts, sizes, ends, strict=True)
    ]


def _episode(setting: Setting, rounds: Rounds, prompt: Prompt, draw: Draw) -> Episode:
    """What one sample's workflow gets. Each `generate` call draws from a random stream of its own."""
    calls = asked = 0

    async def generate(ids: Sequence[int]) -> Completion:
        nonlocal calls
        request = Request(tuple(ids), setting.sampling, replace(draw, call=calls))
        calls += 1
        try:
            return await rounds.generate(request)
        except FloatingPointError as error:
            raise RolloutError(
                f"the model cannot be sampled from ({error}): its weights have diverged. Lower actor.optimizer.lr and go on "
                "from the last checkpoint"
            ) from error

    async def score(text: str, ids: Sequence[int], stop_reason: StopReason) -> Scored:
        if setting.judge is None:
            return await setting.scorer.score(prompt, text, ids, stop_reason)
        return await setting.scorer.score(prompt, text, ids, stop_reason, ask)

    async def ask(answer: Answer) -> Outcome:
        nonlocal asked
        asked += 1
        return await rounds.ask(replace(draw, call=asked - 1), replace(answer, group=draw.serial))

    return Episode(prompt, generate, score)
