"""What tests of the served policy share: an engine that answers by what it is asked, and an episode without an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from talking import shown

from partita.engine.api import Completion, Request, Sampling
from partita.engine.text import cut_at_stop
from partita.records import Prompt, StopReason
from partita.rollout.served.session import Session
from partita.rollout.served.shown import Showings
from partita.rollout.workflow import Episode
from partita.tasks.chat import Chat
from partita.tasks.reward import Scored
from partita.tasks.tools.calls import FORMATS

END = "<|im_end|>"
Said = str | Sequence[int]


def completion_of(chat: Chat, said: Said, number: int, most: int, stop: Sequence[str] = ()) -> Completion:
    """A completion: the text with its end token, or these ids. Log-probs tell call and place: call 1 says -1.0, -1.01, ..."""
    assert chat.rendering is not None
    end = int(chat.rendering.tokenizer.convert_tokens_to_ids(END))
    whole = [*chat.encode(said), end] if isinstance(said, str) else list(said)
    ids = whole[:most]
    text = chat.decode(ids)
    before = cut_at_stop(text, stop)
    reason: StopReason = "length" if len(whole) > most and before is None else "stop"
    logprobs = tuple(-number - at / 100 for at in range(len(ids)))
    return Completion(tuple(ids), logprobs, (number,) * len(ids), reason, text if before is None else before)


@dataclass
class Call:
    """What a session asked for."""

    ids: list[int]
    most: int | None
    stop: tuple[str, ...]
    number: int | None


@dataclass
class Model:
    """Says the next of `lines` at each call. gate: a call waits for it, where there is one."""

    chat: Chat
    lines: Sequence[Said | Exception]
    gate: asyncio.Event | None = None
    calls: list[Call] = field(default_factory=list[Call])

    async def generate(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        call: int | None = None,
    ) -> Completion:
        self.calls.append(Call(list(ids), max_new_tokens, tuple(stop), call))
        number = len(self.calls)
        if self.gate is not None:
            await self.gate.wait()
        said = self.lines[number - 1]
        if isinstance(said, Exception):
            raise said
        return completion_of(self.chat, said, number, max_new_tokens or 64, stop)


async def no_score(*_: Any) -> Scored:
    raise AssertionError("nothing is scored here")


def session_of(model: Model, context: int = 1000, max_calls: int = 20, most: int = 32) -> Session:
    """A session in the running loop. most: tokens of a completion."""
    prompt = Prompt("p", (), "", {}, ())
    sampling = Sampling(most, stop_ids=model.chat.stop_ids)
    episode = Episode(prompt, model.generate, no_score, model.chat, lambda ids: context - len(ids), 0, sampling)
    return Session(episode, max_calls, "ignore", Showings(FORMATS["hermes"]))


@dataclass
class Echo:
    """An engine that says what `says` makes of a request's prompt, special tokens included, and of its draw's sample."""

    chat: Chat
    says: Callable[[str, int], Said]
    delay: Callable[[str], float] = lambda prompt: 0.0
    rounds: list[list[Request]] = field(default_factory=list[list[Request]])

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        self.rounds.append(list(requests))
        return [self._said(request) for request in requests]

    def _said(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        prompt = shown(self.chat, request.prompt_ids)
        said = self.says(prompt, request.draw.sample)
        made = completion_of(self.chat, said, 1, request.sampling.max_new_tokens, request.sampling.stop_strings)

        def finish() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(made)

        if seconds := self.delay(prompt):
            threading.Timer(seconds, finish).start()
        else:
            finish()
        return future

    def publish(self, weights: Iterable[object], version: int) -> None:
        raise AssertionError("nothing is trained here")

    def close(self) -> None:
        pass
