"""One sample's talk with the model: calls come in as messages, and its token rows grow as they were sampled.

A call whose messages begin with an earlier conversation, answer included, goes on with that conversation's exact ids; what was
sampled is never encoded again for training. Everything else (a history that was edited or summarised, another sub-agent) opens a
row of its own. Where two calls go on from the same answer, the second is a row whose beginning is told, not trained again.

Left out: HTTP (`served.server`) and the agent's process (`served.processes`). Everything here runs on the rollout's event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.engine.api import Completion
from partita.records import Row
from partita.rollout.served.answers import Answered, message_of
from partita.rollout.served.clock import Clock
from partita.rollout.served.requests import ApiError, Asked, Message, OnOverride, plain_message
from partita.rollout.served.shown import Showings, tools_key
from partita.rollout.transcript import Transcript
from partita.rollout.workflow import Episode
from partita.tasks.chat import Chat
from partita.tasks.dataset import TaskRow
from partita.tasks.rendering import BETWEEN, PromptError, Rendering

WORDS = 1 << 32


@dataclass
class _Line:
    """A row in the making. opened: its place, by the answers there were when it was asked for and by its prompt; calls that were
    made at the same time may come in any order, and must not put the rows in another one.
    """

    opened: tuple[int, tuple[int, ...]]
    transcript: Transcript


@dataclass
class _Turn:
    """What stands after an answer: the conversation with it, or the text, and the ids up to here. open: its row ends here, and
    nobody is writing on.
    """

    line: _Line
    ids: tuple[int, ...]
    said: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    tools: str = ""
    text: str = ""
    open: bool = True


@dataclass
class Session:
    """The calls of one sample, from the first to `close`.

    showings: how the model is shown tools, and writes calls. crashed: gets an error of the engine, which is no fault of the
    agent. set_aside: what clients wanted of the sampling and did not get.
    """

    episode: Episode
    max_calls: int
    on_override: OnOverride
    showings: Showings
    loop: asyncio.AbstractEventLoop = field(init=False)
    crashed: asyncio.Future[None] = field(init=False)
    clock: Clock = field(init=False)
    asked: int = field(init=False, default=0)
    last: Completion | None = field(init=False, default=None)
    set_aside: dict[str, Any] = field(init=False, default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.crashed = self.loop.create_future()
        self.clock = Clock(self.loop.time)
        self._turns: list[_Turn] = []
        self._lines: list[_Line] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._equal: Counter[int] = Counter()
        self._closed = False

    async def ask(self, asked: Asked) -> Answered:
        """Sample what follows. Raises ApiError for what the client did wrong; an error of the engine is `crashed` as well."""
        if self._closed:
            raise gone()
        if self.asked >= self.max_calls:
            raise ApiError(
                400, f"this sample has made {self.asked} calls, and max_calls={self.max_calls}", code="max_calls"
            )
        self.asked += 1
        self.set_aside |= asked.set_aside
        before = self._before(asked)
        between = self._between(asked, before)
        prompt = between if before is None else [*before.ids, *between]
        if self.episode.room(prompt) < 1:
            raise ApiError(
                400, f"the conversation has {len(prompt)} tokens, and the context has no room for an answer",
                code="context_length_exceeded",
            )  # fmt: skip
        number = self._number(prompt)
        completion, line = await self._completed(asked, before, between, prompt, number)
        return self._answered(asked, completion, line, len(prompt), number)

    async def _completed(
        self, asked: Asked, before: _Turn | None, between: Sequence[int], prompt: Sequence[int], number: int
    ) -> tuple[Completion, _Line]:
        """The completion, and the row that holds it now: nothing is kept of a call that nobody waited for."""
        opened = len(self._turns)
        if before is None or not before.open:
            completion = await self._generate(prompt, asked, number)
            line = _Line((opened, tuple(prompt)), Transcript(prompt))
            self._lines.append(line)
        else:
            before.open = False
            try:
                completion = await self._generate(prompt, asked, number)
            except BaseException:
                before.open = True
                raise
            line = before.line
            line.transcript.told(between)
        line.transcript.said(completion)
        return completion, line

    async def _generate(self, prompt: Sequence[int], asked: Asked, number: int) -> Completion:
        most = self.episode.sampling.max_new_tokens
        limit = most if asked.max_tokens is None else min(most, asked.max_tokens)
        task = asyncio.current_task()
        assert task is not None, "a call is a task of its own"
        self._tasks.add(task)
        try:
            with self.clock.stopped():
                completion = await self.episode.generate(prompt, max_new_tokens=limit, stop=asked.stop, call=number)
        except Exception as error:
            if not self.crashed.done():
                self.crashed.set_exception(error)
            raise ApiError(500, f"the engine failed: {error}") from error
        finally:
            self._tasks.discard(task)
        if completion.stop_reason == "abort":
            raise ApiError(503, "the engine was closed")
        return completion

    def _number(self, prompt: Sequence[int]) -> int:
        """Names the call's random numbers by what is asked, equal prompts counted: not by arrival, which is time's."""
        name = zlib.crc32(np.asarray(prompt, dtype=np.int64).tobytes())
        self._equal[name] += 1
        return (name + self._equal[name] - 1) % WORDS

    def _before(self, asked: Asked) -> _Turn | None:
        """The longest earlier conversation that this one begins with; of equal ones, one whose row ends there, the last."""
        tools = tools_key(asked.tools)
        if asked.messages:
            found = [
                turn for turn in self._turns if turn.messages and turn.tools == tools and _follows(asked.messages, turn)
            ]
        elif isinstance(asked.prompt, str):
            found = [turn for turn in self._turns if turn.text and asked.prompt.startswith(turn.text)]
        else:
            found = [turn for turn in self._turns if not turn.messages and asked.prompt[: len(turn.ids)] == turn.ids]
        return max(reversed(found), key=lambda turn: (len(turn.ids), turn.open), default=None)

    def _between(self, asked: Asked, before: _Turn | None) -> list[int]:
        """The ids behind the earlier conversation, or all of them where there is none."""
        chat, prompt = self.episode.chat, asked.prompt
        try:
            if asked.messages:
                shown = self.showings.of(chat, asked.tools)
                if before is None:
                    return shown.opening(asked.messages)
                return shown.reply(before.said, asked.messages[len(before.messages) :])
            if isinstance(prompt, str):
                return _bare(chat, prompt) if before is None else chat.encode(prompt[len(before.text) :])
        except PromptError as error:
            raise ApiError(400, str(error), param="messages" if asked.messages else "prompt") from error
        return list(prompt if before is None else prompt[len(before.ids) :])

    def _answered(self, asked: Asked, completion: Completion, line: _Line, prompt_tokens: int, number: int) -> Answered:
        self.last, whole = completion, completion.stop_reason == "stop"
        message = message_of(completion.text, number, self.showings.calls if asked.tools and whole else None)
        turn = _Turn(line, tuple(line.transcript.ids), completion.ids)
        if asked.messages:
            turn.messages = (*asked.messages, plain_message(message, "message"))
            turn.tools = tools_key(asked.tools)
        elif isinstance(asked.prompt, str) and completion.ids[-1] not in self.episode.chat.stop_ids:
            # an end of sequence is not in the text: who writes on behind it means another row
            turn.text = asked.prompt + self.episode.chat.decode(completion.ids)
        self._turns.append(turn)
        pieces = [self.episode.chat.decode([one]) for one in completion.ids] if asked.logprobs else []
        return Answered(number, prompt_tokens, completion, message, pieces)

    def rows(self) -> list[Row]:
        """The sample's rows, in the order in which they were opened."""
        return [line.transcript.row() for line in sorted(self._lines, key=lambda line: line.opened)]

    @property
    def transcript(self) -> str:
        """All that followed the prompts of the rows."""
        chat, lines = self.episode.chat, sorted(self._lines, key=lambda line: line.opened)
        return BETWEEN.join(chat.decode(line.transcript.ids[len(line.opened[1]) :]) for line in lines)

    @property
    def answers(self) -> int:
        """Calls that were answered."""
        return len(self._turns)

    def close(self) -> None:
        """No call is answered any more, and those that wait are dropped."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self.crashed.done():
            self.crashed.exception()  # heard of, also where the agent had ended before
        else:
            self.crashed.cancel()


def gone() -> ApiError:
    """Of a sample that is not there (any more)."""
    return ApiError(404, "no sample has this address: it is finished, or the address is wrong", code="unknown_session")


def _bare(chat: Chat, text: str) -> list[int]:
    """A text with what the tokenizer itself puts around one."""
    if chat.rendering is None:
        return chat.encode(text)  # which says what is missing
    rendering = Rendering(chat.rendering.tokenizer, bare=True)
    return rendering.ids([TaskRow("of a text completion", ({"role": "user", "content": text},), None, {})])[0]


def _follows(messages: Sequence[Message], turn: _Turn) -> bool:
    """Whether messages of others, at least one, follow the turn's conversation."""
    known = len(turn.messages)
    later = messages[known:]
    return bool(later) and tuple(messages[:known]) == turn.messages and all(m["role"] != "assistant" for m in later)
