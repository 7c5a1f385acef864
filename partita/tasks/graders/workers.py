"""Where graders work that do not just look at text: threads beside the event loop, and for what may take for ever small pools
of processes, one per function, made when needed.

Left out: the pools of a run's own reward functions; see `tasks.reward_calls`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Lock
from typing import Any

from partita.tasks.graders.sandbox.box import at_a_time
from partita.tasks.pool import Outcome, Pool, PoolError

MEMORY_GB = 0.75
PROCESSES = 2

_pools: dict[tuple[int, str], Pool] = {}
_lock = Lock()


def call(function: str, arguments: Mapping[str, Any], seconds: float) -> Outcome:
    """Call the function of this name in a process that ends after `seconds` or with too much memory.

    Safe to call from any thread. Raises PoolError when the function cannot be imported.
    """
    return _pool(function).call(0, arguments, seconds)


def _pool(function: str) -> Pool:
    """The pool of this process, ended with it. A forked child must not use its parent's."""
    with _lock:
        pool = _pools.get((os.getpid(), function))
        if pool is None:
            pool = Pool([function], processes=PROCESSES, memory_gb=MEMORY_GB)
            try:
                pool.start()
            except PoolError:
                pool.close()
                raise
            _pools[os.getpid(), function] = pool
    return pool


def in_thread(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A grader that keeps a limit of its own, `limit_seconds`, for an event loop: called with `seconds` for it."""

    async def call_in_thread(*, seconds: float, **arguments: Any) -> Any:
        asked = partial(function, **({"limit_seconds": seconds} | arguments))
        return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), asked)

    return call_in_thread


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of this process; a forked one has none of its parent's. Two more than there are programs under test at a time."""
    return ThreadPoolExecutor(at_a_time() + 2, f"graders-{process}")
