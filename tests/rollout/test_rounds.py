"""What goes to the engine together: never a matter of who was fast, who asked twice, or who gave up."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from toy import TableEngine

from partita.engine.api import Completion, Draw, Request, Sampling
from partita.rollout.rounds import Rounds, together

Ask = Callable[[int], Awaitable[Completion]]
Body = Callable[[Ask], Coroutine[Any, Any, Any]]


def rounds_of(*bodies: Body, engine: TableEngine | None = None) -> list[list[tuple[int, int]]]:
    """(sample, call) of each round when these samples of one group run side by side."""
    engine = engine or TableEngine()

    async def main() -> None:
        rounds = Rounds(engine)
        rounds.enter(len(bodies))

        async def one(k: int, body: Body) -> None:
            def ask(call: int) -> Awaitable[Completion]:
                return rounds.generate(Request((1,), Sampling(2), Draw(0, 0, 0, k, call)))

            try:
                await body(ask)
            finally:
                rounds.leave(0, k)

        await asyncio.wait_for(together(one(k, body) for k, body in enumerate(bodies)), timeout=5)

    asyncio.run(main())
    return [[(r.draw.sample, r.draw.call) for r in sent] for sent in engine.rounds]


async def once(ask: Ask) -> None:
    await ask(0)


def after(seconds: float) -> Body:
    async def body(ask: Ask) -> None:
        await asyncio.sleep(seconds)
        await ask(0)

    return body


async def two_at_once(ask: Ask) -> None:
    await asyncio.gather(ask(0), ask(1))


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_two_calls_of_one_sample_do_not_stand_for_two_samples(seconds: float) -> None:
    assert rounds_of(two_at_once, after(seconds)) == [[(0, 0), (0, 1), (1, 0)]]
    assert rounds_of(after(seconds), two_at_once) == [[(0, 0), (1, 0), (1, 1)]]
    assert rounds_of(two_at_once, two_at_once, after(seconds)) == [[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]]


def test_a_sample_alone_may_ask_twice_at_once() -> None:
    assert rounds_of(two_at_once) == [[(0, 0), (0, 1)]]


async def impatient(ask: Ask) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask(0), 0.01)
    await ask(1)


def test_two_calls_of_the_last_sample_that_everybody_waited_for_go_out_together() -> None:
    async def rests_and_asks_twice(ask: Ask) -> None:
        await asyncio.sleep(0.02)
        await two_at_once(ask)

    assert rounds_of(rests_and_asks_twice, once) == [[(0, 0), (0, 1), (1, 0)]]


def test_a_call_that_was_given_up_is_not_sent() -> None:
    assert rounds_of(impatient, after(0.03)) == [[(0, 1), (1, 0)]]


def test_a_call_that_was_given_up_does_not_make_a_round() -> None:
    async def gives_up_and_rests(ask: Ask) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(0), 0.01)
        await asyncio.sleep(0.05)
        await ask(1)

    # at 0.02 s sample 1 waits and sample 0 has one dead call in the queue: nobody may go yet
    assert rounds_of(gives_up_and_rests, after(0.02)) == [[(0, 1), (1, 0)]]


def test_what_a_finished_sample_still_asks_for_is_not_sent() -> None:
    async def leaves_one_behind(ask: Ask) -> None:
        left = asyncio.ensure_future(ask(0))
        await asyncio.sleep(0.01)
        assert not left.done()

    assert rounds_of(leaves_one_behind, after(0.03), after(0.05)) == [[(1, 0), (2, 0)]]


class Closed(TableEngine):
    def submit(self, requests):
        raise RuntimeError("the engine is closed")


def test_an_engine_that_takes_nothing_is_heard_of_by_those_who_wait() -> None:
    with pytest.raises(RuntimeError, match="the engine is closed"):
        rounds_of(once, after(0.01), engine=Closed())


def test_a_second_round_waits_for_everybody_again() -> None:
    async def twice(ask: Ask) -> None:
        await ask(0)
        await ask(1)

    async def slow_twice(ask: Ask) -> None:
        await ask(0)
        await asyncio.sleep(0.02)
        await ask(1)

    assert rounds_of(twice, slow_twice, once) == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1)]]
