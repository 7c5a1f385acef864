"""An agent's own seconds: those in which none of its calls waits."""

import asyncio

from partita.rollout.served.clock import Clock


def test_time_that_calls_wait_does_not_count() -> None:
    now = 0.0
    clock = Clock(lambda: now)
    now = 2.0
    with clock.stopped():
        now = 10.0
        assert clock.seconds == 2.0
        with clock.stopped():
            now = 11.0
        now = 12.0
        assert clock.seconds == 2.0
    now = 13.5
    assert clock.seconds == 3.5


def test_reaching_waits_for_what_counts() -> None:
    async def whole() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        clock, began = Clock(loop.time), loop.time()
        reached = asyncio.ensure_future(clock.reach(0.1))
        with clock.stopped():
            await asyncio.sleep(0.3)
            early = reached.done()
        await reached
        return early, loop.time() - began

    early, seconds = asyncio.run(whole())
    assert not early and seconds >= 0.4
