"""Tools in worker processes: what comes back, what goes wrong, and that the next call is answered."""

import asyncio
from pathlib import Path

import pytest

from partita.tasks.tools.runner import LONGEST, ToolResult, ToolRunner, shown
from partita.tasks.tools.schema import Tool, tools_of

SOURCE = '''
import os, signal, time

def add(a: int, b: int):
    """Add.

    Args:
        a: A.
        b: B.
    """
    return {"sum": a + b}

def wrong(kind: str):
    """Fail.

    Args:
        kind: How.
    """
    if kind == "hang":
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "memory":
        return len(bytearray(8 << 30))
    if kind == "exit":
        raise SystemExit(3)
    raise ValueError("no such kind\\n" + kind)

async def waits(seconds: float):
    """Wait.

    Args:
        seconds: S.
    """
    import asyncio
    if seconds < 0:
        raise ValueError("backwards")
    await asyncio.sleep(seconds)
    return seconds
'''


@pytest.fixture
def named(tmp_path: Path) -> list[Tool]:
    (tmp_path / "tools.py").write_text(SOURCE)
    return list(tools_of([f"{tmp_path}/tools.py:{name}" for name in ("add", "wrong", "waits")]))


def results(tools: list[Tool], calls: list[tuple[int, dict]], seconds: float = 5.0) -> list[ToolResult]:
    runner = ToolRunner(tools, timeout_seconds=seconds, processes=2, memory_gb=1.0)

    async def all_of_them() -> list[ToolResult]:
        return [await runner.call(tools[which], arguments) for which, arguments in calls]

    try:
        return asyncio.run(all_of_them())
    finally:
        runner.close()


def test_what_goes_wrong_is_text_and_the_next_call_is_answered(named: list[Tool]) -> None:
    kinds = ("other", "exit", "die", "memory", "hang")
    found = results(named, [*((1, {"kind": kind}) for kind in kinds), (0, {"a": 2, "b": 3})], seconds=1.0)
    assert [one.text for one in found] == [
        "Error: ValueError: no such kind",
        "Error: SystemExit: 3",
        "Error: the worker process ended during the call: signal 9 (SIGKILL)",
        "Error: the call needed more memory than it may have",
        "Error: no result within 1 seconds",
        '{"sum": 5}',
    ]
    assert [one.failed for one in found] == [True] * 5 + [False]


def test_coroutines_are_awaited_within_the_limit(named: list[Tool]) -> None:
    found = results(named, [(2, {"seconds": value}) for value in (0.0, -1.0, 9.0)], seconds=0.2)
    assert [one.text for one in found] == ["0.0", "Error: ValueError: backwards", "Error: no result within 0.2 seconds"]


def test_functions_as_objects_run_in_forked_workers() -> None:
    import os

    asked = os.getpid()

    def where(function: str) -> str:
        """Where it runs.

        Args:
            function: A name that the worker's own parameter must not clash with.
        """
        return f"{function} {'here' if os.getpid() == asked else 'elsewhere'}"

    assert results(list(tools_of([where])), [(0, {"function": "f"})]) == [ToolResult("f elsewhere")]


def test_a_result_is_text_that_can_be_tokenised() -> None:
    given = {"a": "a", "7": 7, "null": None, '[1, "é"]': [1, "é"], "{1}": {1}, "inf": float("inf")}
    assert [shown(value) for value in given.values()] == list(given)
    assert shown("a\ud800b") == "a?b"
    assert len(shown("x" * 10**6)) == LONGEST
