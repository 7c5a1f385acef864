"""The client over vLLM itself, where $PARTITA_VLLM_PYTHON names an interpreter that has it: a tiny model on this CPU."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import tiny_model
import torch

from partita.engine.api import Completion, Draw, Request, Sampling
from partita.engine.config import ServerConfig
from partita.engine.servers.addresses import Given
from partita.engine.servers.api import Served
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.probe import Probe
from partita.engine.servers.published import Publisher
from partita.engine.servers.vllm import DIALECT
from partita.models.adapters import LoraConfig
from partita.models.load import load_causal_lm
from partita.models.lora import add_adapters, export_adapter, trained_parameters
from partita.models.packed import tied_names, weights
from partita.train.probed import logprobs_after
from partita.train.stepper import precision

PYTHON = os.environ.get("PARTITA_VLLM_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="PARTITA_VLLM_PYTHON names no interpreter that has vLLM"),
]
PROMPT = tuple(b"What is the largest number?")
CLOSE = 1e-3  # two ways of computing float32
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


class Process:
    """A server, started by the dialect's own command line."""

    def __init__(self, served: Served) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start_of = DIALECT.command(served, "127.0.0.1", self.port)
        self.start()

    def start(self) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            self.start_of.command, env=env | self.start_of.env, start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Heads of 32 numbers are the smallest that vLLM computes on a CPU."""
    folder = tiny_model.make(tmp_path_factory.mktemp("tiny") / "model", hidden=128)
    return folder, load_causal_lm(str(folder), dtype=torch.float32)


@pytest.fixture(scope="module")
def server(model):
    served = Served(str(model[0]), "float32", 512, 16, str(PYTHON), adapter_rank=8, args=("--enforce-eager",), env=ENV)
    made = Process(served)
    yield served, made
    made.kill()


@pytest.fixture
def opened(model, server, tmp_path):
    """Makes an engine over the server that is compared with a model of ours."""
    engines: list[ServerEngine] = []

    def make(policy, adapter=None) -> ServerEngine:
        served, process = server
        probe = Probe(scored(policy), PROMPT, tokens=8, temperature=0.7, limit=CLOSE)
        publisher = Publisher(tmp_path / "weights", model[0], torch.float32, adapter, tied_names(policy))
        asked = Servers(DIALECT, served, Given([f"http://127.0.0.1:{process.port}"]), ServerConfig(start_timeout=300))
        engines.append(ServerEngine(asked, model[1].tokenizer, publisher, probe))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def scored(policy):
    """Log-probs by a model of ours, in float32."""
    return lambda *asked: logprobs_after(policy, precision(policy, torch.float32), *asked)


def asked(engine: ServerEngine, samples: int, sampling: Sampling):
    return engine.submit([Request(PROMPT, sampling, Draw(1, 0, 5, n)) for n in range(samples)])


def apart(policy, completion: Completion, temperature: float, version: int) -> float:
    """Largest difference of log-probs from those of a model of ours, over the tokens of one version."""
    places = [at for at, one in enumerate(completion.versions) if one == version]
    ours = scored(policy)([*PROMPT, *completion.ids[: places[0]]], completion.ids[places[0] :], temperature)
    return max(abs(ours[at - places[0]] - completion.logprobs[at]) for at in places)


def changed(model, seed: int):
    """The policy with other weights."""
    folder = model[0].with_name(f"other-{seed}")
    return load_causal_lm(str(tiny_model.make(folder, seed=seed, hidden=128)), dtype=torch.float32).model


def test_logprobs_are_of_the_full_softmax_at_the_sampling_temperature_and_draws_can_be_had_again(model, opened):
    policy = model[1].model
    engine = opened(policy)
    engine.publish(weights(policy), 0)
    for temperature in (1.0, 0.7):
        done = [one.result(120) for one in asked(engine, 4, Sampling(24, temperature=temperature))]
        assert max(apart(policy, one, temperature, 0) for one in done) < CLOSE
        assert len({one.ids for one in done}) == 4
        again = [one.result(120) for one in asked(engine, 4, Sampling(24, temperature=temperature))]
        assert [one.ids for one in again] == [one.ids for one in done]
        assert all(len(one.ids) == 24 and one.stop_reason == "length" for one in done)
    stop = done[0].ids[5]
    ended = asked(engine, 1, Sampling(24, temperature=0.7, stop_ids=(stop,)))[0].result(120)
    assert ended.ids == done[0].ids[: done[0].ids.index(stop) + 1] and ended.stop_reason == "stop"
    string = next(one for one in done[0].text[1:] if one.isascii() and one.isprintable())
    cut = asked(engine, 1, Sampling(24, temperature=0.7, stop_strings=(string,)))[0].result(120)
    assert cut.stop_reason == "stop" and string not in cut.text and cut.ids == done[0].ids[: len(cut.ids)]


def test_weights_that_change_in_the_middle_are_told_apart_token_by_token(model, opened):
    policy, other = model[1].model, changed(model, 1)
    engine = opened(policy)
    engine.publish(weights(policy), 3)
    futures = asked(engine, 3, Sampling(400))
    time.sleep(1)
    engine.probe.score = scored(other)
    engine.publish(weights(other), 4)
    done = [one.result(300) for one in futures]
    assert all(sorted(one.versions) == list(one.versions) for one in done)
    both = [one for one in done if set(one.versions) == {3, 4}]
    assert both and engine.stats().continued >= len(both)
    for one in both:
        assert apart(other, one, 1.0, 4) < CLOSE
        assert apart(policy, replace(one, ids=one.ids[: one.versions.index(4)]), 1.0, 3) < CLOSE


def test_adapters_go_alone_and_change_what_is_sampled(model, opened):
    loaded = load_causal_lm(str(model[0]), dtype=torch.float32)
    base = opened(loaded.model)
    base.publish(weights(loaded.model), 0)  # whatever the server held before
    add_adapters(loaded.model, LoraConfig(rank=8), seed=1)
    with torch.no_grad():
        for parameter in trained_parameters(loaded.model).values():
            parameter.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    engine = opened(loaded.model, partial(export_adapter, loaded.model))
    for version in (1, 2):
        engine.publish(iter(()), version)
        [done] = [one.result(120) for one in asked(engine, 1, Sampling(24))]
        assert apart(loaded.model, done, 1.0, version) < CLOSE
        with torch.no_grad():
            for parameter in trained_parameters(loaded.model).values():
                parameter.mul_(1.5)


def test_a_killed_server_is_given_the_newest_weights_and_asked_again(model, server, opened):
    other = changed(model, 2)
    engine = opened(other)
    engine.publish(weights(other), 7)
    futures = asked(engine, 3, Sampling(400))
    time.sleep(1)
    with pytest.warns(UserWarning, match="was lost"):
        server[1].kill()
        server[1].start()
        done = [one.result(300) for one in futures]
    assert all(set(one.versions) == {7} and apart(other, one, 1.0, 7) < CLOSE for one in done)
    assert engine.stats().reissued == 3 and engine.stats().lost == 1
