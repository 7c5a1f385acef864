"""The client when servers hang, answer late, or stop by themselves: nobody waits for ever, and no token has a wrong version."""

import threading
import time
import warnings

import pytest
import vllm_wire
from vllm_wire import open_engine, request, some_weights

from partita.engine.config import ServerConfig
from partita.engine.servers import pool
from partita.engine.servers.api import EngineError
from partita.engine.servers.vllm import GENERATE


@pytest.fixture
def server():
    made = vllm_wire.start()
    yield made
    made.hangs.clear()
    made.http.shutdown()


@pytest.fixture
def opened(server, tokenizer, tmp_path):
    """Makes an engine over the server that holds version 0."""
    engines = []

    def make(**config):
        changed = {name: config.pop(name) for name in ("slots",) if name in config}
        engines.append(open_engine([server], tokenizer, tmp_path, config=ServerConfig(**config), **changed))
        engines[-1].publish(some_weights(), 0)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def until(happened):
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("timeout", "lacks", "said"),
    [
        pytest.param(
            3.0,
            set(),
            "says that it is well, but has not begun to sample with the weights of version 0 for 3 s",
            marks=pytest.mark.slow,
        ),
        (60.0, {"/health"}, "/health answered 404"),
    ],
)
def test_a_server_that_came_back_and_hangs_over_its_weights_ends_the_run(opened, server, timeout, lacks, said):
    engine = opened(start_timeout=timeout, health_seconds=0.1)
    server.paths()
    server.hangs.add("/pause")
    server.label = "default"  # started again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [future] = engine.submit([request(3)])
        until(lambda: engine.stats().lost and "/pause" in server.paths())
        server.lacks |= lacks
        with pytest.raises(EngineError, match=said):
            future.result(20)


def test_a_server_that_is_well_and_answers_nothing_is_lost_and_its_requests_are_asked_again(opened, server):
    engine = opened(health_seconds=0.05, answer_timeout=0.5)
    server.hangs.add(GENERATE)
    with pytest.warns(UserWarning, match="it has answered nothing for 0.5 s .rollout.server.answer_timeout., though"):
        [future] = engine.submit([request(3)])
        until(lambda: engine.stats().lost)
    server.hangs.clear()
    assert future.result(10).ids == (3, 4, 5)
    assert engine.stats().reissued >= 1


@pytest.mark.slow
def test_a_server_that_answers_one_request_after_another_is_not_lost(opened, server):
    engine = opened(health_seconds=0.05, answer_timeout=2)
    time.sleep(2.2)  # asked nothing
    server.queue = True
    server.resumed.clear()
    [first] = engine.submit([request(3, 0)])
    assert server.waiting.wait(5)
    server.hangs.add(GENERATE)
    [second] = engine.submit([request(3, 1)])
    time.sleep(1.2)
    server.resumed.set()
    assert first.result(5).ids == (3, 4, 5)
    time.sleep(1.2)  # more than the time-out since the first was asked, less since it was answered
    server.hangs.clear()
    assert second.result(5).ids == (3, 4, 5)
    assert engine.stats().lost == 0


def test_a_server_that_fails_for_good_while_weights_are_written_is_not_waited_for(opened, server):
    engine = opened()

    def weights():
        server.refuse, server.told = 500, {"dtype": "torch.bfloat16"}
        with pytest.warns(UserWarning, match="was lost"), pytest.raises(EngineError, match="--dtype is bfloat16"):
            engine.submit([request(3)])[0].result(10)
        yield from some_weights()

    with pytest.raises(EngineError, match="--dtype is bfloat16"):
        engine.publish(weights(), 1)


def test_a_request_that_reached_the_server_after_newer_weights_is_asked_again_and_nobody_was_lost(opened, server):
    engine = opened()
    server.queue = True
    server.resumed.clear()
    [future] = engine.submit([request(3)])
    assert server.waiting.wait(5)
    engine.publish(some_weights(), 1)
    assert future.result(5).versions == (1, 1, 1)
    assert (engine.stats().lost, engine.stats().reissued, engine.stats().continued) == (0, 0, 1)


def test_a_server_that_stops_by_itself_again_and_again_ends_the_run(opened, server):
    engine = opened()
    server.hold = True
    server.released.set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(EngineError, match="it ended requests before their end, without new weights"):
            engine.submit([request(40)])[0].result(20)


def test_closing_ends_a_publication_that_a_server_does_not_take(opened, server):
    engine, said = opened(), []

    def publish():
        try:
            engine.publish(some_weights(), 1)
        except RuntimeError as error:
            said.append(str(error))

    server.paths()
    server.hangs.add("/pause")
    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    until(lambda: "/pause" in server.paths())
    engine.close()
    thread.join(10)
    assert said == ["the engine was closed meanwhile"]


def test_no_more_requests_are_at_a_server_than_it_has_places_and_cancelled_ones_leave(opened, server, monkeypatch):
    monkeypatch.setattr(pool, "AHEAD", 0)
    engine = opened(slots=2)
    server.queue = True
    server.resumed.clear()
    futures = engine.submit([request(3, sample) for sample in range(6)])
    until(lambda: len(server.asked) == 2)
    assert futures[5].cancel()
    time.sleep(0.2)
    assert len(server.asked) == 2
    server.resumed.set()
    assert all(future.result(5).ids == (3, 4, 5) for future in futures[:5])
    assert len(server.asked) == 5
    until(lambda: engine._pool.members[0].load == 0)
