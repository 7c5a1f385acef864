"""A workflow turns one prompt into one sample: it asks the model, perhaps tools or an environment, and the reward.

Left out: when requests reach the engine. `rollouts` decides that; a workflow just awaits `episode.generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from partita.engine.api import Completion, Sampling
from partita.records import Prompt, Row, Sample, StopReason
from partita.rollout.transcript import Transcript
from partita.tasks.chat import NO_CHAT, Chat
from partita.tasks.reward import Scored


class Generate(Protocol):
    """Samples a continuation of exactly these ids; each call draws from its own random numbers."""

    async def __call__(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        call: int | None = None,
    ) -> Completion:
        """max_new_tokens: in place of gconfig's. stop: strings that end it, beside gconfig's. ids must leave room in the context
        for one token at least, see `Episode.room`. call: which random numbers, by default those of the next call; whoever hears
        of calls in an order that time decides numbers them.
        """
        ...


class Score(Protocol):
    """Asks the task's rewards about what the policy wrote; never raises for a reward's fault."""

    async def __call__(
        self, text: str, ids: Sequence[int], stop_reason: StopReason, transcript: str | None = None
    ) -> Scored:
        """text and ids: what the policy wrote alone, without a word of tools. transcript: all that followed the prompt, for
        reward functions that ask for it under this name; of a single turn it is the text.
        """
        ...


UNLIMITED = 1 << 30
"""Tokens of a row, for an engine without a limit."""


def unlimited(ids: Sequence[int]) -> int:
    """The room of such an engine."""
    return UNLIMITED - len(ids)


@dataclass(frozen=True)
class Episode:
    """What a workflow gets for one sample.

    chat: how the conversation goes on as ids. room(ids): tokens that still fit the context after these. seed: 32 bits for an
    environment; all samples of a group have the same one, so that they meet the same world and can be compared. sampling: how
    tokens are drawn, where a call says nothing else.
    """

    prompt: Prompt
    generate: Generate
    score: Score
    chat: Chat = NO_CHAT
    room: Callable[[Sequence[int]], int] = unlimited
    seed: int = 0
    sampling: Sampling = field(default_factory=lambda: Sampling(max_new_tokens=256))


class Workflow(Protocol):
    """One trajectory per call. An exception ends the run with that error."""

    async def run(self, episode: Episode) -> Sample:
        """Sample once, score, and return what happened token by token."""
        ...


class SingleTurn:
    """Prompt, one completion, one reward."""

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`."""
        prompt = episode.prompt
        completion = await episode.generate(prompt.ids)
        scored = await episode.score(completion.text, completion.ids, completion.stop_reason)
        return sample_of([row_of(prompt.ids, completion)], completion.stop_reason, completion.text, scored)


def sample_of(
    rows: Sequence[Row],
    stop_reason: StopReason,
    text: str,
    scored: Scored,
    metrics: Mapping[str, float] | None = None,
) -> Sample:
    """The record of a trajectory and what it was worth. text: what the policy wrote. metrics: see `Sample`."""
    return Sample(
        rows=list(rows),
        stop_reason=stop_reason,
        text=text,
        reward=scored.reward,
        parts=dict(scored.parts),
        step_rewards=list(scored.step_rewards),
        status=scored.status,
        error=scored.error,
        notes=dict(scored.notes),
        metrics=dict(metrics or {}),
    )


def row_of(prompt_ids: Sequence[int], completion: Completion) -> Row:
    """The token sequence as the model saw it: the ids that were sent, then the ids that came back."""
    transcript = Transcript(prompt_ids)
    transcript.said(completion)
    return transcript.row()
