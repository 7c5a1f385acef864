"""Calls reward functions: each where it must run, within its limit, again where it may, and once where that is enough.

Left out: which responses belong together (`tasks.reward`), and the processes (`tasks.pool`).
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from partita.tasks.adapters import Answer, RewardSetupError
from partita.tasks.binding import RewardFunction
from partita.tasks.functions import ReturnedError, error_text
from partita.tasks.pool import Pool, PoolError
from partita.tasks.reward_call import Call, Outcome, TrainerState
from partita.tasks.reward_readings import run, run_awaited
from partita.tasks.reward_settings import RewardConfig
from partita.tasks.reward_threads import Threads

PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before the second try of a call; twice as many before each further one."""
REMEMBERED = 100_000
"""Calls whose outcomes a cache keeps, the newest."""


class Calls:
    """Owns the worker processes and threads of some bound functions, and what was remembered of their calls.

    given: the names or objects that the functions were bound from. Make it before models are loaded, see `tasks.pool`.
    """

    def __init__(
        self, functions: Sequence[RewardFunction], given: Sequence[str | Callable[..., Any]], config: RewardConfig
    ) -> None:
        self._functions, self._config = functions, config
        self._in_workers = [i for i, bound in enumerate(functions) if bound.place == "worker"]
        self._pool = self._make_pool(given) if self._in_workers else None
        self._threads = Threads[list[Outcome]](config.processes)
        self._known: OrderedDict[bytes, list[Outcome]] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[list[Outcome]]] = {}

    def _make_pool(self, given: Sequence[str | Callable[..., Any]]) -> Pool:
        names = [name for i in self._in_workers if isinstance(name := given[i], str)]
        # One process cannot be both fresh and forked: with an object among them, all of them are forked.
        by_name = len(names) == len(self._in_workers)
        memory = {which: self._functions[i].options.memory_gb for which, i in enumerate(self._in_workers)}
        return Pool(
            names if by_name else [self._functions[i].function for i in self._in_workers],
            processes=self._config.processes,
            memory_gb=self._config.memory_gb,
            start_seconds=self._config.start_seconds,
            own_memory_gb={which: limit for which, limit in memory.items() if limit is not None},
        )

    def start(self) -> None:
        """Wait until the functions are imported in a worker. Raises PoolError when they cannot be."""
        if self._pool is not None:
            self._pool.start()

    async def ask(self, index: int, answers: Sequence[Answer], state: TrainerState) -> list[Outcome]:
        """What function number `index` says of each answer, in one call. Raises PoolError when the workers are gone."""
        bound = self._functions[index]
        which = self._in_workers.index(index) if bound.place == "worker" else index
        try:
            call = bound.call(which, answers, state)
        except RewardSetupError as error:
            return [Outcome(None, error=str(error))] * len(answers)
        except Exception as error:  # a value of the row that cannot be copied
            return [Outcome(None, error=f"cannot be given this row: {error_text(error)}")] * len(answers)
        cached = self._config.cache if bound.options.cache is None else bound.options.cache
        return await (self._remembered(bound, call) if cached else self._tried(bound, call))

    async def _remembered(self, bound: RewardFunction, call: Call) -> list[Outcome]:
        """The outcomes of an equal call, also of one that is still running; a failed one is not kept."""
        try:
            key = hashlib.blake2b(pickle.dumps((bound.name, call)), digest_size=16).digest()
        except Exception:  # what cannot be pickled cannot be compared; the call itself says so where it matters
            return await self._tried(bound, call)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if (task := self._running.get(key)) is None:
            task = self._running[key] = asyncio.ensure_future(self._tried(bound, call))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        outcomes = await asyncio.shield(task)  # whoever else waits for it must not be cancelled with this one
        if not any(one.failed for one in outcomes):
            self._known[key] = outcomes
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return outcomes

    async def _tried(self, bound: RewardFunction, call: Call) -> list[Outcome]:
        retries = self._config.retries if bound.options.retries is None else bound.options.retries
        outcomes = await self._once(bound, call)
        for number in range(retries):
            if not any(one.again for one in outcomes):
                return outcomes
            await asyncio.sleep(min(PAUSE * 2**number, LONGEST_PAUSE))
            outcomes = await self._once(bound, call)
        tried = f"after {retries + 1} tries: " if retries else ""
        return [replace(one, error=tried + one.error) if one.again else one for one in outcomes]

    async def _once(self, bound: RewardFunction, call: Call) -> list[Outcome]:
        seconds = bound.options.timeout_seconds or self._config.timeout_seconds
        if bound.place == "here":
            return _call_here(bound, call)
        if bound.place == "loop":
            return await _await(bound, call, seconds)
        assert self._pool is not None
        return await self._threads.run(partial(self._pool.ask, call, seconds))

    def close(self) -> None:
        """End the worker processes, running calls included."""
        if self._pool is not None:
            self._pool.close()
        self._threads.close()


def _call_here(bound: RewardFunction, call: Call) -> list[Outcome]:
    try:
        return run(bound.function, call)
    except Exception as error:  # whatever a reward raises is the error of these samples, kept with its traceback
        return _failed(error, call)


async def _await(bound: RewardFunction, call: Call, seconds: float) -> list[Outcome]:
    if bound.own_limit:
        call, limit = replace(call, keywords={**call.keywords, "seconds": seconds}), asyncio.timeout(None)
    else:
        limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await run_awaited(bound.function, call)
    except BaseException as error:  # see _call_here; also SystemExit, with which a reward would end the run in silence
        if _must_travel(error):
            raise
        if limit.expired():
            why = f"no result within {seconds:g} seconds (reward.timeout_seconds)"
            return [Outcome(None, error=why, timed_out=True, again=True)] * call.count
        return _failed(error, call)


def _must_travel(error: BaseException) -> bool:
    """Whether an error is not the reward's own: workers that are gone, a key that was pressed, a run that is cancelled."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    return cancelled or isinstance(error, PoolError | KeyboardInterrupt)


def _failed(error: BaseException, call: Call) -> list[Outcome]:
    return [Outcome(None, error=error_text(error), again=not isinstance(error, ReturnedError))] * call.count
