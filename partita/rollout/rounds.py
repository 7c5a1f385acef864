"""Hands requests to the engine in rounds, so that what is decoded together never depends on who arrived first.

A round goes out when every live sample waits for the model, with one call or with several at once. A slow tool or
reward delays the round; it cannot change it. A reward model is asked in the same way: about all answers that wait for it at
once, when nothing else can go on.
Left out: a sample that waits for the model and for a tool at the same time. It counts as waiting, so what the tool asks
for next comes a round later if the tool is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from partita.engine.api import Completion, Draw, Engine, Request
from partita.tasks.pool import Outcome
from partita.tasks.reward import Answer, Judge

T = TypeVar("T")


@dataclass
class Rounds:
    """One owner: the rollouts of one step. Takes requests from samples, gives completions, wakes them by their futures; and
    the same with answers and the reward model's scores. in_flight: requests or answers that were sent and have not come
    back. judging: held, as the loop forgets its tasks.
    """

    engine: Engine
    judge: Judge | None = None
    live: int = 0
    in_flight: int = 0
    queued: list[tuple[Request, asyncio.Future[Completion]]] = field(default_factory=list)
    asked: list[tuple[Draw, Answer, asyncio.Future[Outcome]]] = field(default_factory=list)
    judging: asyncio.Future[None] | None = None

    def enter(self, samples: int) -> None:
        """Announce samples before any of them runs."""
        self.live += samples

    def leave(self, serial: int, sample: int) -> None:
        """A sample is finished (or failed): the others need not wait for it, and what it still asks for is not sent."""
        self.live -= 1
        waiters = [(request.draw, waiter) for request, waiter in self.queued]
        for draw, waiter in (*waiters, *((draw, waiter) for draw, _, waiter in self.asked)):
            if _sample_of(draw) == (serial, sample):
                waiter.cancel()
        self._look_soon()

    async def generate(self, request: Request) -> Completion:
        """Queue a request for the next round and wait for its completion."""
        waiter: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.queued.append((request, waiter))
        self._look_soon()
        return await waiter

    async def ask(self, draw: Draw, answer: Answer) -> Outcome:
        """Queue an answer for the reward model and wait for its score. draw: whose it is; its call counts answers."""
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.asked.append((draw, answer, waiter))
        self._look_soon()
        return await waiter

    def _look_soon(self) -> None:
        # not now: a sample that makes several calls at once (asyncio.gather) has queued only the first of them yet
        asyncio.get_running_loop().call_soon(self._send_when_all_wait)

    def _send_when_all_wait(self) -> None:
        # cancelled: gone
        self.queued = [(request, waiter) for request, waiter in self.queued if not waiter.done()]
        self.asked = [(draw, answer, waiter) for draw, answer, waiter in self.asked if not waiter.done()]
        waiting = {_sample_of(draw) for draw in (*(r.draw for r, _ in self.queued), *(d for d, _, _ in self.asked))}
        if self.in_flight or not waiting or len(waiting) < self.live:
            return
        if self.asked:
            self._send_answers()
        else:
            self._send_requests()

    def _send_answers(self) -> None:
        assert self.judge is not None, "only a scorer that was given a judge asks it"
        self.asked.sort(key=lambda item: _order(item[0]))
        sent, self.asked = self.asked, []
        self.in_flight = len(sent)
        self.judging = asyncio.ensure_future(self._judged(self.judge, sent))

    async def _judged(self, judge: Judge, sent: Sequence[tuple[Draw, Answer, asyncio.Future[Outcome]]]) -> None:
        waiters = [waiter for _, _, waiter in sent]
        try:
            outcomes = await judge.ask([answer for _, answer, _ in sent])
        except Exception as error:  # whoever waits must hear of it: nobody waits for this task itself
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        else:
            for waiter, outcome in zip(waiters, outcomes, strict=True):
                if not waiter.done():
                    waiter.set_result(outcome)
        self.in_flight = 0
        self._look_soon()

    def _send_requests(self) -> None:
        # by identity, not by arrival: the tools of a sample may be fast today and slow tomorrow
        self.queued.sort(key=lambda item: _order(item[0].draw))
        sent, self.queued = self.queued, []
        try:
            futures = self.engine.submit([request for request, _ in sent])
        except Exception as error:  # closed or crashed: whoever waits must hear of it, this is a callback of the loop
            for _, waiter in sent:
                waiter.set_exception(error)
            return
        self.in_flight = len(sent)
        for future, (_, waiter) in zip(futures, sent, strict=True):
            asyncio.wrap_future(future).add_done_callback(lambda done, waiter=waiter: self._arrived(done, waiter))

    def _arrived(self, done: asyncio.Future[Completion], waiter: asyncio.Future[Completion]) -> None:
        self.in_flight -= 1
        if waiter.cancelled():
            done.exception()  # retrieved: the waiting sample is gone
        elif (error := done.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(done.result())
        self._look_soon()


def _sample_of(draw: Draw) -> tuple[int, int]:
    return draw.serial, draw.sample


def _order(draw: Draw) -> tuple[int, int, int]:
    return draw.serial, draw.sample, draw.call


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in the given order. The first failure cancels the others and travels up as itself, not as one of a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in coroutines]
    except BaseExceptionGroup as group:
        raise _first(group) from None
    return [task.result() for task in running]


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
