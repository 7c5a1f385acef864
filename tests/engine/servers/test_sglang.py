"""What SGLang is asked, and how its answers are read: the documented shapes, played by a process. Not run against SGLang itself."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
import sglang_shapes
import torch

from partita.engine.api import Draw, Request, Sampling
from partita.engine.config import ServerConfig
from partita.engine.servers import pool
from partita.engine.servers.addresses import Given
from partita.engine.servers.api import Ask, EngineError, Served, ServerLost, Weights, seed_of
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.published import Publisher
from partita.engine.servers.sglang import DIALECT, read_generated, sampling_params

SERVED = Served("m", "float32", 128, 8, "py", tensor_parallel=2, adapter_rank=16)
WAIT = 60.0


@pytest.fixture
def process(tmp_path):
    """The server, and the file of what it was asked."""
    record = tmp_path / "asked.jsonl"
    process = subprocess.Popen([sys.executable, sglang_shapes.__file__, str(record)], stdout=subprocess.PIPE, text=True)
    try:
        yield process, record
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def played(process):
    """The server's address and what it was asked."""
    return f"http://127.0.0.1:{process[0].stdout.readline().strip()}", process[1]


@pytest.fixture
def engine(played, tokenizer, tmp_path, request):
    url, _ = played
    model = tmp_path / "model"
    model.mkdir()
    publisher = Publisher(tmp_path / "weights", model, torch.float32)
    servers = Servers(DIALECT, SERVED, Given([url]), ServerConfig(**getattr(request, "param", {"health_seconds": 0.5})))
    made = ServerEngine(servers, tokenizer, publisher)
    yield made
    made.close()


def _asked(record: Path, path: str) -> list[dict]:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return [line for line in lines if line["path"] == path]


def test_the_command_names_documented_arguments():
    start = DIALECT.command(SERVED, "0.0.0.0", 30000)
    assert start.command[:3] == ("py", "-m", "sglang.launch_server")
    said = " ".join(start.command[3:])
    assert "--model-path m --host 0.0.0.0 --port 30000 --dtype float32 --context-length 128" in said
    assert "--max-running-requests 8 --tp-size 2 --sampling-defaults openai --device cpu --max-lora-rank 16" in said
    assert said.endswith("--lora-target-modules all --enable-lora")


def test_sampling_is_told_in_sglangs_terms():
    ask = Ask((3, 4), Sampling(9, 2, 0.7, 0, 0.9, 0.1, (5, 6), ("END",)), Draw(1, 2, 3, 4, 5), 7)
    assert sampling_params(ask) == {
        "max_new_tokens": 9, "min_new_tokens": 2, "temperature": 0.7, "top_k": -1, "top_p": 0.9, "min_p": 0.1,
        "sampling_seed": seed_of(ask.draw, 7, 31), "stop_token_ids": [5, 6], "stop": ["END"],
    }  # fmt: skip
    assert 0 <= seed_of(ask.draw, 7, 31) < 1 << 31


def test_what_runs_is_aborted_at_an_update_and_goes_on_with_the_new_weights(engine, played):
    _, record = played
    weights = [("w", torch.zeros(2))]
    engine.publish(weights, 1)
    sampling = Sampling(40, temperature=0.5, stop_ids=(50,))
    prompt = (3, 4, 5)
    futures = engine.submit([Request(prompt, sampling, Draw(1, 0, 0, k)) for k in range(2)])
    deadline = time.monotonic() + WAIT
    while len(_asked(record, "/generate")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.05)
    engine.publish(weights, 2)
    found = [future.result(WAIT) for future in futures]
    again = _asked(record, "/generate")[2:]
    for one in found:
        assert len(one.ids) == 40 and one.stop_reason == "length"
        assert list(one.versions) == sorted(one.versions) and set(one.versions) == {1, 2}
        assert one.logprobs == tuple(-0.01 * token for token in one.ids)
        done = one.versions.count(1)
        [went_on] = [a for a in again if a["input_ids"] == [*prompt, *one.ids[:done]]][:1]
        assert went_on["sampling_params"]["max_new_tokens"] == 40 - done
    seeds = {asked["sampling_params"]["sampling_seed"] for asked in _asked(record, "/generate")}
    assert len(seeds) == 4  # of two samples, each from its beginning and from where it went on
    assert engine.stats().continued == 2 and engine.stats().lost == 0
    order = [json.loads(line)["path"] for line in record.read_text().splitlines()]
    update = [path for path in order if path != "/generate"][-4:]
    assert update == ["/pause_generation", "/update_weights_from_disk", "/flush_cache", "/continue_generation"]
    told = _asked(record, "/update_weights_from_disk")[-1]
    assert told["flush_cache"] is True and Path(told["model_path"]).name == told["weight_version"]


def test_a_stop_id_ends_a_completion_and_is_kept(engine):
    engine.publish([("w", torch.zeros(2))], 1)
    [free] = [f.result(WAIT) for f in engine.submit([Request((3, 4), Sampling(6), Draw(0, 0, 0, 0))])]
    stop = free.ids[2]
    stopped = engine.submit([Request((3, 4), Sampling(6, stop_ids=(stop,)), Draw(0, 0, 0, 0))])[0].result(WAIT)
    assert stopped.stop_reason == "stop" and stopped.ids == free.ids[: free.ids.index(stop) + 1]


def test_adapters_are_loaded_alone_under_a_new_name_and_old_ones_leave(played, tmp_path):
    url, record = played

    async def ask():
        async with httpx2.AsyncClient(base_url=url, timeout=WAIT) as http:
            with pytest.raises(ServerLost, match="not ready"):
                await DIALECT.check(http, SERVED)
            first, second = (Weights(name, i, tmp_path, True) for i, name in enumerate(("first", "second")))
            asks = [Ask((3, 4), Sampling(5), Draw(0, 0, 0, 0))]
            await DIALECT.renew(http, first)
            [(_, answer)] = [one async for one in DIALECT.generate(http, asks, first)]
            assert answer.versions == (0,) * 5
            await DIALECT.renew(http, second)
            with pytest.raises(ServerLost, match="never been loaded: first"):
                _ = [one async for one in DIALECT.generate(http, asks, first)]
            [(_, answer)] = [one async for one in DIALECT.generate(http, asks, second)]
            assert answer.versions == (1,) * 5
            with pytest.raises(EngineError, match="load_lora_adapter answered 400: LoRA adapter second already exists"):
                await DIALECT.renew(http, second)

    asyncio.run(ask())
    assert _asked(record, "/generate")[-1]["lora_path"] == "second"
    assert [one["lora_name"] for one in _asked(record, "/unload_lora_adapter")] == ["first"]


def test_a_server_that_was_started_otherwise_is_told_what_is_wrong(played):
    url, _ = played

    async def ask():
        async with httpx2.AsyncClient(base_url=url, timeout=WAIT) as http:
            for _ in range(2):
                with pytest.raises(ServerLost):
                    await DIALECT.check(http, SERVED)
            await DIALECT.check(http, SERVED)
            with pytest.raises(EngineError, match=r"--dtype is float32.* --context-length is 128.* adapters have 32"):
                await DIALECT.check(http, Served("m", "bfloat16", 256, 8, "py", adapter_rank=32))
            with pytest.raises(EngineError, match="update_weights_from_disk answered 400: Failed to load weights"):
                await DIALECT.renew(http, Weights("w", 1, Path("/nowhere")))

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("engine", [{"health_seconds": 0.2, "start_timeout": 4.0}], indirect=True)
def test_a_server_that_takes_connections_and_says_nothing_is_lost_until_it_goes_on(engine, process, monkeypatch):
    monkeypatch.setattr(pool, "CONNECT_SECONDS", 0.4)
    engine.publish([("w", torch.zeros(2))], 1)
    asked = Request((3, 4, 5), Sampling(100), Draw(1, 0, 0, 0))
    with pytest.warns(UserWarning, match="was lost .*did not answer /health 3 times in a row"):
        [future] = engine.submit([asked])
        process[0].send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + WAIT
        while not engine.stats().lost:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process[0].send_signal(signal.SIGCONT)
        done = future.result(WAIT)
        assert len(done.ids) == 100 and engine.stats().reissued >= 1
        [future] = engine.submit([asked])
        process[0].send_signal(signal.SIGSTOP)
        with pytest.raises(
            EngineError, match=r"rollout.servers\[0\] at .* could not be asked for 4 s .*does not answer"
        ):
            future.result(WAIT)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"weight_version": "old", "finish_reason": {"type": "stop"}}, "samples with the weights old instead of w"),
        ({"weight_version": "w", "finish_reason": {"type": "error"}}, "ended a request with 'error'"),
        ({"weight_version": "w", "finish_reason": None}, "ended a request with 'None'"),
    ],
)
def test_answers_that_are_none_mean_that_the_server_was_lost(meta, said):
    http = httpx2.AsyncClient(base_url="http://s", verify=False)
    with pytest.raises(ServerLost, match=said):
        read_generated(http, {"meta_info": meta}, Weights("w", 1, Path("f")))
