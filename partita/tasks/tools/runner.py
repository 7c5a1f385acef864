"""Runs tools: functions in processes that can be killed, coroutines on the event loop, each call within a limit.

Whatever goes wrong in a tool becomes text for the model. Functions that were named are imported by a fresh process; those handed
over as objects are forked from this one (`tasks.pool`): then make the runner before models are loaded.
Left out: reading calls (`tasks.tools.calls`), and state: two calls of a trajectory may run in two processes.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from partita.tasks.functions import load_object
from partita.tasks.pool import Pool
from partita.tasks.reward_call import Call, Outcome
from partita.tasks.reward_threads import Threads
from partita.tasks.tools.schema import Tool

RESULT = "result"
LONGEST = 100_000
"""Characters of a result that travel; what the model sees of them is bounded in tokens."""


@dataclass(frozen=True)
class ToolResult:
    """What the model is told. failed: it is an error's text."""

    text: str
    failed: bool = False


def error_result(why: str) -> ToolResult:
    """An error as the model sees it."""
    return ToolResult(_sent(f"Error: {why}"), failed=True)


class ToolRunner:
    """Owns the worker processes of some tools. processes: at most so many, started when needed. memory_gb: what a call may add
    to a worker; None for no limit.
    """

    def __init__(
        self, tools: Sequence[Tool], *, timeout_seconds: float, processes: int = 4, memory_gb: float | None = 1.0
    ) -> None:
        self._seconds = timeout_seconds
        self._placed = [tool for tool in tools if not tool.awaited]
        self._threads = Threads[list[Outcome]](processes)
        sources = [tool.source for tool in self._placed if tool.source is not None]
        # One process cannot be both fresh and forked: with an object among them, all of them are forked.
        self._by_name = len(sources) == len(self._placed)
        functions: Sequence[str] | Sequence[Callable[..., Any]] = [f"{__name__}:told_by_name", *sources]
        if not self._by_name:
            functions = [partial(told, tool.function) for tool in self._placed]
        self._pool = Pool(functions, processes=processes, memory_gb=memory_gb) if self._placed else None
        self.close: Callable[[], object] = weakref.finalize(self, _end, self._pool, self._threads)

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool with arguments that fit it. Raises PoolError when there are no workers any more."""
        if tool.awaited:
            return await self._await(tool, arguments)
        assert self._pool is not None, "a tool of this runner"
        if self._by_name:
            call = Call(0, keywords={"name": tool.source, "arguments": dict(arguments)})
        else:
            call = Call(self._placed.index(tool), keywords=dict(arguments))
        (outcome,) = await self._threads.run(partial(self._pool.ask, call, self._seconds))
        return self._of(outcome)

    def _of(self, outcome: Outcome) -> ToolResult:
        if not outcome.failed:
            return ToolResult(outcome.notes[RESULT])
        if outcome.timed_out:
            return self._late()
        first, _, rest = outcome.error.partition("\n")
        if rest.startswith("MemoryError"):  # what the pool says before it names keys of rewards
            return error_result("the call needed more memory than it may have")
        return error_result(first)

    async def _await(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return ToolResult(shown(await tool.function(**arguments)))
        except Exception as error:  # whatever a tool raises is text for the model
            return self._late() if limit.expired() else error_result(f"{type(error).__name__}: {error}".split("\n")[0])

    def _late(self) -> ToolResult:
        return error_result(f"no result within {self._seconds:g} seconds")


def _end(pool: Pool | None, threads: Threads[Any]) -> None:
    if pool is not None:
        pool.close()
    threads.close()


def told(function: Callable[..., Any], /, **arguments: Any) -> dict[str, Any]:
    """In a worker: call a tool, and give what came back as the note of a reward of 0, which is all that a worker can send."""
    return {"score": 0.0, RESULT: shown(function(**arguments))}


def told_by_name(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`told` for a function that the worker has imported."""
    return told(load_object(name), **arguments)


def shown(value: Any) -> str:
    """A result as text: itself, else JSON, else what `str` makes of it."""
    if isinstance(value, str):
        return _sent(value)
    try:
        return _sent(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError):
        return _sent(str(value))


def _sent(text: str) -> str:
    """What can travel and be tokenised: a bounded text without halves of characters."""
    return text[:LONGEST].encode("utf-8", "replace").decode()
