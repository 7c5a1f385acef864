"""Blocking calls for an event loop: results come back as they are ready, errors as themselves."""

import asyncio
import threading
import time

import pytest

from partita.tasks.reward_threads import Threads


def test_calls_overlap_and_keep_their_results_apart():
    threads = Threads[int](3)

    async def run():
        def slow(n: int) -> int:
            time.sleep(0.2)
            return n

        return await asyncio.gather(*(threads.run(lambda n=n: slow(n)) for n in range(6)))

    started = time.monotonic()
    assert asyncio.run(run()) == list(range(6))
    assert 0.4 <= time.monotonic() - started < 1.1  # one after the other: 1.2
    assert asyncio.run(run()) == list(range(6))  # another loop
    threads.close()


def test_a_slow_call_keeps_no_finished_one_back():
    threads, release = Threads[str](2), threading.Event()

    async def run():
        slow = asyncio.ensure_future(threads.run(lambda: (release.wait(10) and "slow") or "late"))
        quick = [await asyncio.wait_for(threads.run(lambda: "quick"), 5) for _ in range(20)]
        release.set()
        return quick, await slow

    assert asyncio.run(run()) == (["quick"] * 20, "slow")
    threads.close()


def test_what_a_call_raises_reaches_whoever_waits():
    threads = Threads[int](1)

    async def run():
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        return await threads.run(lambda: 7)

    assert asyncio.run(run()) == 7
    threads.close()


def test_a_call_that_nobody_waits_for_any_more_harms_no_other():
    threads, release = Threads[int](1), threading.Event()

    async def given_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run(lambda: int(release.wait(10))), 0.05)

    asyncio.run(given_up())
    release.set()  # it ends when its loop is closed

    async def run():
        return await threads.run(lambda: 7)

    assert asyncio.run(run()) == 7
    threads.close()
