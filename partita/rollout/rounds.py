"""Hands requests to the engine in rounds, so that what is decoded together never depends on who arrived first.

A round goes out when every live sample waits for the model, with one call or with several at once. A slow tool or
reward delays the round; it cannot change it.
Left out: a sample that waits for the model and for a tool at the same time. It counts as waiting, so what the tool asks
for next comes a round later if the tool is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from partita.engine.api import Completion, Engine, Request

T = TypeVar("T")


@dataclass
class Rounds:
    """One owner: the rollouts of one step. Takes requests from samples, gives completions, wakes them by their futures."""

    engine: Engine
    live: int = 0
    in_flight: int = 0
    queued: list[tuple[Request, asyncio.Future[Completion]]] = field(default_factory=list)

    def enter(self, samples: int) -> None:
        """Announce samples before any of them runs."""
        self.live += samples

    def leave(self, serial: int, sample: int) -> None:
        """A sample is finished (or failed): the others need not wait for it, and what it still asks for is not sent."""
        self.live -= 1
        for request, waiter in self.queued:
            if _sample_of(request) == (serial, sample):
                waiter.cancel()
        self._look_soon()

    async def generate(self, request: Request) -> Completion:
        """Queue a request for the next round and wait for its completion."""
        waiter: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.queued.append((request, waiter))
        self._look_soon()
        return await waiter

    def _look_soon(self) -> None:
        # not now: a sample that makes several calls at once (asyncio.gather) has queued only the first of them yet
        asyncio.get_running_loop().call_soon(self._send_when_all_wait)

    def _send_when_all_wait(self) -> None:
        self.queued = [(request, waiter) for request, waiter in self.queued if not waiter.done()]  # cancelled: gone
        waiting = {_sample_of(request) for request, _ in self.queued}
        if self.in_flight or not waiting or len(waiting) < self.live:
            return
        # by identity, not by arrival: the tools of a sample may be fast today and slow tomorrow
        self.queued.sort(key=lambda item: (item[0].draw.serial, item[0].draw.sample, item[0].draw.call))
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


def _sample_of(request: Request) -> tuple[int, int]:
    return request.draw.serial, request.draw.sample


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
