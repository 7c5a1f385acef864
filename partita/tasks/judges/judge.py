"""Language models as rewards: each answer becomes a request, its reply a score from 0 to 1, or an error and never a number.

Answers are asked about as they come, and equal requests once. A judge whose budget is used up gives no scores any more;
`ended` says so, and whoever owns the run ends it where the config wants that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from partita.tasks.adapters import Answer, RewardSetupError
from partita.tasks.judges.beside import Beside
from partita.tasks.judges.client import Client, Fault
from partita.tasks.judges.ledger import Ledger, Spent
from partita.tasks.judges.settings import JudgeConfig
from partita.tasks.judges.steps import Decode, places, split
from partita.tasks.judges.verdicts import Reply, Unreadable, step_verdicts, verdict
from partita.tasks.judges.wording import Wording
from partita.tasks.reward_call import Outcome

Counts = dict[str, tuple[float, float | None]]


class BudgetReached(RuntimeError):
    """A judge may ask no more, and its config ends the run there."""


class LanguageJudge:
    """One judge. Raises RewardSetupError where its prompt or its key is missing."""

    def __init__(self, name: str, config: JudgeConfig) -> None:
        self.name, self.config = name, config
        self._wording = Wording(name, config)
        self._ledger = Ledger(name)
        self._client = Client(name, config, _key(name, config), self._ledger)
        self._running: dict[str, asyncio.Task[list[float] | Fault]] = {}
        self._taken = Spent()

    @property
    def ended(self) -> str:
        """Why the run is to end, empty where it is not."""
        return self._client.refused if self.config.budget.on_reached == "end_run" else ""

    def check(self, answer: Answer) -> None:
        """Raises RewardSetupError for a row that its prompt cannot be filled with."""
        self._wording.check(answer)

    def keep(self, folder: Path | None) -> None:
        """Go on from what the run in this folder has asked and used up, and keep it there."""
        shared = self.config.cache_dir
        self._ledger.keep(folder, Path(shared).expanduser() if shared else None, replies=self.config.cache)
        self._taken = replace(self._ledger.spent)

    async def ask(self, answer: Answer, decode: Decode | None) -> Outcome:
        """The outcome for an answer, on the judges' loop. decode: ids to text, for steps."""
        steps = split(answer.text, self.config.steps) if self.config.steps else []
        if self.config.steps and not (steps and answer.ids):
            return Outcome(None, error="the response has no step")
        body = self._body(self._wording.messages(answer, steps))
        found = await self._asked_once(body, partial(self._scores, len(steps)))
        if isinstance(found, Fault):
            return Outcome(None, error=found.why)
        if not steps:
            return Outcome(found[0])
        assert decode is not None, "whoever asks for steps knows the policy's tokenizer"
        at = places(steps, answer.ids, decode)
        return Outcome(sum(found) / len(found), steps=tuple(zip(at, found, strict=True)))

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        config = self.config
        body: dict[str, Any] = {"model": config.model, "messages": messages, "max_tokens": config.longest_reply}
        body |= {} if config.temperature is None else {"temperature": config.temperature}
        body |= {"logprobs": True, "top_logprobs": 20} if config.score_from == "yes_no" else {}
        return {name: value for name, value in (body | config.extra_body).items() if value is not None}

    def _scores(self, steps: int, reply: Reply) -> list[float]:
        """The verdict, or one for each step. Raises Unreadable."""
        return step_verdicts(reply, self.config, steps) if self.config.steps else [verdict(reply, self.config)]

    async def _asked_once(self, body: Mapping[str, Any], read: Callable[[Reply], list[float]]) -> list[float] | Fault:
        digest, spent = self._client.digest(body), self._ledger.spent
        if not self.config.cache:
            return await self._asked(digest, body, read)
        known = self._ledger.known(digest)
        if known is not None and (scores := _readable(known, read)) is not None:
            spent.hits += 1
            return scores
        if (task := self._running.get(digest)) is None:
            task = self._running[digest] = asyncio.ensure_future(self._asked(digest, body, read))
            task.add_done_callback(partial(self._done, digest))
        else:
            spent.hits += 1
        return await asyncio.shield(task)  # whoever else waits for it must not be cancelled with this one

    def _done(self, digest: str, task: asyncio.Task[list[float] | Fault]) -> None:
        self._running.pop(digest, None)
        if not task.cancelled():
            task.exception()  # retrieved, also where whoever asked has gone

    async def _asked(
        self, digest: str, body: Mapping[str, Any], read: Callable[[Reply], list[float]]
    ) -> list[float] | Fault:
        found = await self._client.ask(digest, body, read)
        if isinstance(found, Fault):
            return found
        reply, scores = found
        if self.config.cache:
            self._ledger.learn(digest, reply)
        return scores

    def take_counts(self) -> Counts:
        """What was asked and used since the last call, by the names of metrics."""
        now, before, budget = replace(self._ledger.spent), self._taken, self.config.budget
        self._taken = now
        change = {name: value - getattr(before, name) for name, value in vars(now).items()}
        counts = {"requests": change["requests"], "retries": change["retries"], "cache_hits": change["hits"]}
        if not change["unmetered"]:  # else the sums would be too small
            counts |= {"tokens_in": change["tokens_in"], "tokens_out": change["tokens_out"]}
            cost, cost_before = now.cost(budget), before.cost(budget)
            counts |= {} if cost is None or cost_before is None else {"cost": cost - cost_before}
        found: Counts = {f"judge/{self.name}/{name}": (value, None) for name, value in counts.items()}
        return found | {f"judge/{self.name}/seconds": (change["seconds"], change["replies"])}

    async def close(self) -> None:
        """Close connections and files."""
        await self._client.close()
        self._ledger.close()


def _readable(reply: Reply, read: Callable[[Reply], list[float]]) -> list[float] | None:
    """What a kept reply says; None where it was kept under another reading."""
    try:
        return read(reply)
    except Unreadable:
        return None


def _key(name: str, config: JudgeConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise RewardSetupError(
            f"reward.judges.{name}.api_key_env={config.api_key_env}: no such environment variable, or it is empty; export it"
        )
    if not (key.isascii() and key.isprintable()):
        raise RewardSetupError(
            f"the environment variable {config.api_key_env} holds what no key has: other than plain letters"
        )
    return key


class Judges:
    """All judges of a run and the loop that they work on. Raises RewardSetupError."""

    def __init__(self, judges: Mapping[str, JudgeConfig]) -> None:
        self._judges = [LanguageJudge(name, config) for name, config in judges.items()]
        self._beside = Beside()
        self.decode: Decode | None = None

    @property
    def names(self) -> list[str]:
        """In the order of the config."""
        return [judge.name for judge in self._judges]

    @property
    def weights(self) -> list[float]:
        """Of `names`."""
        return [judge.config.weight for judge in self._judges]

    @property
    def ended(self) -> str:
        """Why the run is to end, empty where it is not: a budget that is used up."""
        return next((judge.ended for judge in self._judges if judge.ended), "")

    @contextmanager
    def ending(self, save: Callable[[], None]) -> Iterator[None]:
        """Around what asks them: where one may ask no more in the end, `save` is called and BudgetReached raised."""
        try:
            yield
        finally:
            if reached := self.ended:
                save()
                raise BudgetReached(f"{reached}: raise it to go on, what was asked is kept")

    def check(self, answer: Answer) -> None:
        """Raises RewardSetupError for a row that a judge's prompt cannot be filled with."""
        for judge in self._judges:
            judge.check(answer)

    def keep(self, folder: Path | None) -> None:
        """Go on from what the run in this folder has asked, and keep it there; None: only where the config names a folder."""
        for judge in self._judges:
            judge.keep(folder)

    async def ask(self, index: int, answer: Answer) -> Outcome:
        """What judge number `index` says; a fault is in the outcome. Raises RewardSetupError where its server refuses all."""
        judge = self._judges[index]
        if judge.config.steps and self.decode is None:
            raise RewardSetupError(f"reward.judges.{judge.name}.steps: nobody said how ids become text; set `decode`")
        return await self._beside.run(judge.ask(answer, self.decode))

    def take_counts(self) -> Counts:
        """Metrics of what was asked since the last call: sums, and means as (sum, count)."""
        found: Counts = {}
        for judge in self._judges:
            found |= judge.take_counts()
        return found

    def close(self) -> None:
        """End what still runs, and the thread."""
        self._beside.close(self._end())

    async def _end(self) -> None:
        for judge in self._judges:
            await judge.close()
