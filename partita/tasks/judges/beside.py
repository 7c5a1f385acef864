"""An event loop in a thread of its own, so that requests go on while other loops come, go, or wait for a train step.

Left out: what runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Beside:
    """Starts its thread when the first work comes: a process that is forked before has none."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises there. Cancelling the waiting cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="judges", daemon=True)
            self._thread.start()
        return self._loop

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what still runs, do the last work, and end the thread; nothing where there was none."""
        if self._loop is None or self._thread is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(_ended(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None


async def _ended(last: Coroutine[Any, Any, None]) -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await last
