"""Work that nobody waits for: done by one thread, in the order in which it was handed over.

Left out: what the work is. A step's records go to a disk and over networks while the next step is sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# What is handed over faster than it is done waits in memory, and is no more than so much of it.
MOST = 32


class Background:
    """One thread. What it failed at is raised where something is next handed over, waited for or closed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "report")
        self._given = deque[Future[object]]()

    def do(self, job: Callable[[], object]) -> None:
        """Hand a job over. Waits only where `MOST` others are still to be done."""
        while self._given and (self._given[0].done() or len(self._given) >= MOST):
            self._given.popleft().result()
        self._given.append(self._thread.submit(job))

    def wait(self) -> None:
        """Until all that was handed over is done."""
        while self._given:
            self._given.popleft().result()

    def close(self) -> None:
        """Wait, and end the thread also where something had failed."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
