"""Scores responses as a rollout does: all samples of some groups at once, brought before the judge in rounds."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from partita.engine.api import Draw
from partita.records import Group, Prompt, Sample
from partita.rollout.rounds import Rounds
from partita.rollout.summary import summarise
from partita.tasks.reward import Answer, RewardConfig, RewardRuntime, Scored


def prompt_of(
    row: dict[str, Any], text: str = "<user>?<assistant>", uid: str = "1", answer: str | None = None
) -> Prompt:
    """A prompt of a row whose `prompt`, if it is a list, is its conversation."""
    given = row.get("prompt")
    messages = tuple(given) if isinstance(given, list) else ({"role": "user", "content": str(given or text)},)
    return Prompt(uid, (1, 2, 3), text, row, messages, answer)


def score_groups(
    runtime: RewardRuntime, groups: Sequence[tuple[Prompt, Sequence[str]]], tokens: int = 4
) -> list[list[Scored]]:
    """Scores of the responses of each group; every response has `tokens` tokens."""

    async def one(rounds: Rounds, serial: int, number: int, prompt: Prompt, text: str) -> Scored:
        asked = iter(range(100))

        async def ask(answer: Answer):
            return await rounds.ask(Draw(0, 0, serial, number, next(asked)), replace(answer, group=serial))

        try:
            return await runtime.score(prompt, text, tuple(range(tokens)), "stop", ask)
        finally:
            rounds.leave(serial, number)

    async def run() -> list[list[Scored]]:
        rounds = Rounds(None, runtime.judge)  # pyright: ignore[reportArgumentType]  (nothing is sampled)
        rounds.enter(sum(len(texts) for _, texts in groups))
        waiting = [
            [one(rounds, serial, number, prompt, text) for number, text in enumerate(texts)]
            for serial, (prompt, texts) in enumerate(groups)
        ]
        found = iter(await asyncio.gather(*(one for group in waiting for one in group)))
        return [[next(found) for _ in group] for group in waiting]

    return asyncio.run(run())


def score(
    functions: Sequence[Any], prompt: Prompt, responses: Sequence[str], tokens: int = 4, **keys: Any
) -> list[Scored]:
    """Scores of one group by functions given as names or objects."""
    runtime = RewardRuntime(RewardConfig(**{"processes": 2, "timeout_seconds": 5.0, **keys}), functions)
    try:
        return score_groups(runtime, [(prompt, responses)], tokens)[0]
    finally:
        runtime.close()


def metrics_of(scored: Sequence[Scored]) -> dict[str, float]:
    """What the report says of a step whose samples got these scores."""
    samples = [Sample([], "stop", "", one.reward, one.parts, status=one.status, error=one.error) for one in scored]
    return summarise([Group(0, prompt_of({}), samples)]).as_dict()
