"""Threads that make blocking calls one after another, for an event loop that waits for very many of them.

What a call came to goes back to its loop together with what else was ready by then: waking a loop takes longer than a fast
reward. Left out: what is called, and its limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_Ended = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Threads(Generic[T]):
    """At most `most` threads, which start when needed; they take calls in the order in which these were handed in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[tuple[Callable[[], T], asyncio.Future[T]] | None] = SimpleQueue()
        self._lock = Lock()
        self._unfinished = 0
        self._threads: list[Thread] = []
        self._ended: dict[asyncio.AbstractEventLoop, list[_Ended]] = {}

    async def run(self, call: Callable[[], T]) -> T:
        """What the call returns, or raises. A call that was handed in is made, also where nobody waits for it any more."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._unfinished += 1
            more = self._unfinished > len(self._threads) < self._most
        if more:
            self._threads.append(Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        self._queue.put((call, future))
        return await future

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            call, future = job
            try:
                ended: _Ended = (future, call(), None)
            except BaseException as error:  # it belongs to whoever waits
                ended = (future, None, error)
            loop = future.get_loop()
            with self._lock:
                self._unfinished -= 1
                of_loop = self._ended.setdefault(loop, [])
                of_loop.append(ended)
                first = len(of_loop) == 1
            if first:  # else the loop knows already that something has ended
                with suppress(RuntimeError):  # closed: nobody waits there
                    loop.call_soon_threadsafe(self._deliver, loop)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            ended = self._ended.pop(loop)
        for future, result, error in ended:
            if future.done():  # cancelled
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def close(self) -> None:
        """Wait until running calls are over, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
