"""Counts an agent's own seconds: those in which none of its calls waits for the model.

A round of completions waits for every sample, so the wall time of a call says nothing about the agent that made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Runs while nothing stops it. now: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._since, self._before, self._stops = now, now(), 0.0, 0
        self._running = asyncio.Event()
        self._running.set()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time in the block does not count; several blocks may be open at once."""
        if not self._stops:
            self._before = self.seconds
            self._running.clear()
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self._since = self._now()
                self._running.set()

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return self._before if self._stops else self._before + self._now() - self._since

    async def reach(self, seconds: float) -> None:
        """Wait until so many have been counted."""
        while (left := seconds - self.seconds) > 0:
            await (asyncio.sleep(left) if self._running.is_set() else self._running.wait())
