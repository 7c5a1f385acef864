"""The client over real server processes of the built-in engine: the tokens of this process, whatever happens to a server."""

import json
import threading
import time
import urllib.request
from dataclasses import replace

import pytest
import torch
from engine_servers import Fleet, engine_here, loaded

from partita.engine.api import Draw, Request, Sampling
from partita.engine.servers.api import EngineError
from partita.engine.servers.probe import Probe
from partita.models.packed import weights
from partita.ops.packing import pack
from partita.records import Row

pytestmark = pytest.mark.slow
PROMPTS = [tuple(3 + (7 * p + 3 * i) % 40 for i in range(length)) for p, length in enumerate((9, 3, 14, 6))]
WAIT = 60.0


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the servers have: sums in another order give other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleet(tiny, tokenizer, tmp_path_factory):
    """Two servers."""
    model = tmp_path_factory.mktemp("model")
    tiny(dtype=torch.float32).save_pretrained(model)
    tokenizer.save_pretrained(model)
    made = Fleet(tmp_path_factory.mktemp("launch"), model)
    try:
        made.start(0, 1)
        yield made
    finally:
        made.kill(*made.running)


@pytest.fixture
def opened(fleet, tokenizer, tmp_path):
    """Clients of the first servers, closed when the test ends."""
    clients = []

    def make(count, probe=None, **config):
        clients.append(fleet.client(tokenizer, tmp_path / f"weights-{len(clients)}", count, probe, **config))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def model(fleet):
    """The model of the servers, here."""
    return loaded(fleet.model)


@pytest.fixture(scope="module")
def other(fleet, tiny):
    """Other weights for it."""
    made = loaded(fleet.model)
    made.model.load_weights((name, weight + 0.05 * torch.randn_like(weight)) for name, weight in weights(made.model))
    return made


def _groups(sampling, n, prompts=PROMPTS):
    return [Request(prompt, sampling, Draw(11, 0, p, k)) for p, prompt in enumerate(prompts) for k in range(n)]


def _results(futures):
    return [future.result(WAIT) for future in futures]


def _expected(model, requests, version):
    engine = engine_here(model, version)
    try:
        return _results(engine.submit(requests))
    finally:
        engine.close()


def _trainer(model, prompt, ids, temperature=1.0):
    n = len(ids)
    row = Row([*prompt, *ids], [False] * len(prompt) + [True] * n, [0.0] * (len(prompt) + n), [-1] * (len(prompt) + n))
    with torch.no_grad():
        return model.model(pack([[row]], [0]), temperature=temperature).logprobs_T.tolist()


def _stats(fleet, index):
    with urllib.request.urlopen(f"{fleet.url(index)}/stats") as answer:
        return json.load(answer)


def _until(happened):
    deadline = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_one_server_gives_the_bits_of_the_engine_in_this_process(opened, model):
    engine = opened(1)
    engine.publish(weights(model.model), 3)
    mixed = [Sampling(7), Sampling(18, temperature=0.8, stop_ids=(9, 12)), Sampling(12, top_p=0.9, stop_strings=("b",))]
    requests = [replace(r, sampling=mixed[i % 3]) for i, r in enumerate(_groups(Sampling(1), 3))]
    too_long = Request(tuple([5] * 128), Sampling(4), Draw(0, 0, 0, 0))
    *futures, refused = engine.submit([*requests, too_long])
    found = _results(futures)
    assert found == _expected(model, requests, 3)
    assert {completion.stop_reason for completion in found} == {"stop", "length"}
    with pytest.raises(ValueError, match="128 tokens leaves no room in a context of 128"):
        refused.result(WAIT)
    assert engine.stats().tokens == sum(len(completion.ids) for completion in found)


def test_two_servers_share_a_round_by_groups(fleet, opened, model):
    engine = opened(2)
    engine.publish(weights(model.model), 1)
    requests, before = _groups(Sampling(10), 4), [_stats(fleet, i) for i in (0, 1)]
    found, expected = _results(engine.submit(requests)), _expected(model, requests, 1)
    assert [one.ids for one in found] == [one.ids for one in expected]
    for one, same in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(same.logprobs, abs=1e-5)
    after = [_stats(fleet, i) for i in (0, 1)]
    done = [{key: now[key] - then[key] for key in then} for now, then in zip(after, before, strict=True)]
    assert [one["tokens"] for one in done] == [80, 80]  # two groups each
    assert [one["prompt_tokens"] for one in done] == [9 + 14, 3 + 6]  # each prompt is computed once, by one of them


def test_new_weights_in_the_middle_of_completions(fleet, opened, model, other):
    engine = opened(1)
    engine.publish(weights(model.model), 1)
    requests, before = _groups(Sampling(100), 12), _stats(fleet, 0)["tokens"]
    futures = engine.submit(requests)
    _until(lambda: _stats(fleet, 0)["tokens"] > before + 200)
    engine.publish(weights(other.model), 2)
    assert not all(future.done() for future in futures)
    found = _results(futures)
    assert {one.versions[0] for one in found} == {1, 2}
    assert any(len(set(one.versions)) == 2 for one in found)
    for request, one in zip(requests, found, strict=True):
        assert list(one.versions) == sorted(one.versions)
        told = {1: _trainer(model, request.prompt_ids, one.ids), 2: _trainer(other, request.prompt_ids, one.ids)}
        assert one.logprobs == pytest.approx([told[v][i] for i, v in enumerate(one.versions)], abs=1e-4)


def test_a_server_with_other_weights_than_the_trainers_is_found_out(opened, model, other):
    def scored(prompt, ids, temperature):
        return _trainer(model, prompt, ids, temperature)

    engine = opened(2, Probe(scored, PROMPTS[0], tokens=8, temperature=0.7, limit=0.02))
    engine.publish(weights(model.model), 4)
    assert 0 < engine.stats().probe_difference < 1e-4
    with pytest.raises(EngineError, match=r"server-[01] has taken the weights of version 5, .* differ by .* version 5"):
        engine.publish(weights(other.model), 5)
    with pytest.raises(EngineError, match="version 5"):
        engine.submit(_groups(Sampling(4), 1))


def test_cancelled_rounds_give_their_slots_back(fleet, opened, model):
    engine = opened(1)
    engine.publish(weights(model.model), 1)
    before = _stats(fleet, 0)["tokens"]
    futures = engine.submit(_groups(Sampling(110), 50))  # apart: nobody else is asked until it is done
    _until(lambda: _stats(fleet, 0)["tokens"] > before)
    assert all(future.cancel() for future in futures)
    [short] = _results(engine.submit(_groups(Sampling(3), 1, PROMPTS[:1])))
    assert len(short.ids) == 3
    assert _stats(fleet, 0)["tokens"] < before + 4 * 50 * 110


def test_killed_servers_change_no_bit_of_a_round(fleet, opened, model):
    engine = opened(2)
    engine.publish(weights(model.model), 6)
    requests = _groups(Sampling(100), 8)
    undisturbed = _results(engine.submit(requests))
    assert (engine.stats().lost, engine.stats().reissued) == (0, 0)

    before = [_stats(fleet, i)["tokens"] for i in (0, 1)]
    futures = engine.submit(requests)
    _until(lambda: all(_stats(fleet, i)["tokens"] > before[i] for i in (0, 1)))
    fleet.kill(0)  # the other one gets its share
    assert _results(futures) == undisturbed
    assert (engine.stats().lost, engine.stats().reissued) == (1, 16)

    before = _stats(fleet, 1)["tokens"]
    futures = engine.submit(requests)  # split as if both were there
    _until(lambda: _stats(fleet, 1)["tokens"] > before)
    fleet.kill(1)
    old = fleet.url(0)
    fleet.start(0)
    assert fleet.url(0) != old
    assert _results(futures) == undisturbed
    stats = engine.stats()
    assert stats.lost == 2 and 16 <= stats.reissued - 16 <= 32  # a share may not have been sent yet
    engine.publish(weights(model.model), 7)
    assert {one.versions[0] for one in _results(engine.submit(_groups(Sampling(3), 2)))} == {7}


def test_a_server_that_never_comes_back_is_named_with_its_last_lines(fleet, opened, model):
    engine = opened(1, start_timeout=1.0)
    engine.publish(weights(model.model), 1)
    before = _stats(fleet, 0)["tokens"]
    futures = engine.submit(_groups(Sampling(100), 12))
    _until(lambda: _stats(fleet, 0)["tokens"] > before)
    fleet.kill(0)
    threading.Timer(0.2, lambda: fleet.log(0).open("a").write("out of memory\n")).start()
    with pytest.raises(
        EngineError, match=r"(?s)server-0 could not be asked for 1 s .*ConnectError.*server-0.log:.*out of memory"
    ):
        futures[0].result(WAIT)
