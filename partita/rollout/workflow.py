"""A workflow turns one prompt into one sample: it asks the model, perhaps tools, and the reward.

Left out: when requests reach the engine. `rollouts` decides that; a workflow just awaits `episode.generate`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from partita.engine.api import Completion
from partita.records import Prompt, Row, Sample, StopReason
from partita.tasks.reward import Scored


@dataclass(frozen=True)
class Episode:
    """What a workflow gets for one sample.

    `generate(ids)` samples a continuation of exactly these ids; each call draws from its own random numbers.
    `score(text, ids, stop_reason)` asks the task's rewards about what the policy wrote; it never raises for a bad reward.
    """

    prompt: Prompt
    generate: Callable[[Sequence[int]], Awaitable[Completion]]
    score: Callable[[str, Sequence[int], StopReason], Awaitable[Scored]]


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
        return Sample(
            rows=[row_of(prompt.ids, completion)],
            stop_reason=completion.stop_reason,
            text=completion.text,
            reward=scored.reward,
            parts=dict(scored.parts),
            step_rewards=list(scored.step_rewards),
            status=scored.status,
            error=scored.error,
            notes=dict(scored.notes),
        )


def row_of(prompt_ids: Sequence[int], completion: Completion) -> Row:
    """The token sequence as the model saw it: the ids that were sent, then the ids that came back."""
    before, after = len(prompt_ids), len(completion.ids)
    return Row(
        ids=[*prompt_ids, *completion.ids],
        trained=[False] * before + [True] * after,
        behaviour_logprobs=[0.0] * before + list(completion.logprobs),
        versions=[-1] * before + list(completion.versions),
    )
