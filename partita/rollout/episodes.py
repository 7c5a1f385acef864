"""Plays episodes: every sample of some prompts through a workflow, against one engine, in rounds that time cannot change.

Training and evaluation differ only in the `Setting` they play in. Left out: which prompts, and what becomes of the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

from partita.engine.api import Completion, Draw, Engine, Request, Sampling
from partita.engine.random import uniforms
from partita.records import Group, Prompt, Sample, StopReason
from partita.rollout.rounds import Rounds, together
from partita.rollout.workflow import UNLIMITED, Episode, Workflow
from partita.tasks.chat import NO_CHAT, Chat
from partita.tasks.pool import Outcome
from partita.tasks.reward import Answer, Ask, Judge, Scored

WORLD_STREAM = 1 << 16
"""What is added to the stream of a setting for the seeds of environments."""


class RolloutError(RuntimeError):
    """Rollouts cannot go on: the message says what was seen and which keys matter."""


class Scorer(Protocol):
    """Scores one response; never raises for a reward's fault."""

    async def score(
        self,
        prompt: Prompt,
        text: str,
        ids: Sequence[int],
        stop_reason: StopReason,
        ask: Ask | None = None,
        transcript: str | None = None,
    ) -> Scored:
        """See `tasks.reward`. ask is given where the setting has a judge, transcript where a workflow has one."""
        ...


@dataclass(frozen=True)
class Setting:
    """What all episodes of a step, or of an evaluation, have in common. `stream` keeps their draws apart from others'. `judge`:
    the scorer's reward model, where it has one. chat: how conversations go on. context: most tokens of a row.
    """

    engine: Engine
    workflow: Workflow
    scorer: Scorer
    sampling: Sampling
    seed: int
    stream: int
    judge: Judge | None = None
    chat: Chat = NO_CHAT
    context: int = UNLIMITED


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

    async def generate(
        ids: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        call: int | None = None,
    ) -> Completion:
        nonlocal calls
        number = calls if call is None else call
        calls = max(calls, number + 1)
        sampling = _limited(setting.sampling, max_new_tokens, stop)
        request = Request(tuple(ids), sampling, replace(draw, call=number))
        try:
            return await rounds.generate(request)
        except FloatingPointError as error:
            raise RolloutError(
                f"the model cannot be sampled from ({error}): its weights have diverged. Lower actor.optimizer.lr and go on "
                "from the last checkpoint"
            ) from error

    async def score(text: str, ids: Sequence[int], stop_reason: StopReason, transcript: str | None = None) -> Scored:
        more: dict[str, Any] = {} if setting.judge is None else {"ask": ask}
        more |= {} if transcript is None else {"transcript": transcript}
        return await setting.scorer.score(prompt, text, ids, stop_reason, **more)

    async def ask(answer: Answer) -> Outcome:
        nonlocal asked
        asked += 1
        return await rounds.ask(replace(draw, call=asked - 1), replace(answer, group=draw.serial))

    def room(ids: Sequence[int]) -> int:
        return setting.context - len(ids)

    return Episode(prompt, generate, score, setting.chat, room, _world_seed(draw), setting.sampling)


def _limited(sampling: Sampling, max_new_tokens: int | None, stop: Sequence[str]) -> Sampling:
    """The setting's way to sample, with the limits of one call."""
    most = sampling.max_new_tokens if max_new_tokens is None else max_new_tokens
    stops = tuple(dict.fromkeys((*sampling.stop_strings, *stop)))
    return replace(sampling, max_new_tokens=most, min_new_tokens=min(sampling.min_new_tokens, most), stop_strings=stops)


def _world_seed(draw: Draw) -> int:
    """32 bits that only (seed, stream, serial) decide."""
    named = replace(draw, stream=draw.stream + WORLD_STREAM, sample=0, call=0)
    return int(uniforms([named], [0])[0] * 2**32)
