import asyncio
import time
import warnings
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
import vllm_wire
from vllm_wire import SERVED, open_engine, request, some_weights

from partita.engine.api import Draw, Request, Sampling
from partita.engine.config import ServerConfig
from partita.engine.servers.addresses import Given
from partita.engine.servers.api import Ask, EngineError, Weights, seed_of
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.probe import Probe
from partita.engine.servers.published import Publisher
from partita.engine.servers.vllm import DIALECT, read_choice, sampling_params

DRAW = Draw(1, 2, 3, 4)


@pytest.fixture
def server():
    made = vllm_wire.start()
    yield made
    made.http.shutdown()


@pytest.fixture
def engine(server, tokenizer, tmp_path):
    """An engine over the server that holds version 0."""
    made = open_engine([server], tokenizer, tmp_path)
    made.publish(some_weights(), 0)
    yield made
    made.close()


def test_the_command_line_says_what_the_run_needs():
    start = DIALECT.command(replace(SERVED, adapter_rank=12, args=("--enforce-eager",), env={"A": "1"}), "host", 81)
    line = " ".join(start.command)
    assert line.startswith(
        "python -m vllm.entrypoints.openai.api_server --model /model --host host --port 81 --dtype float32"
    )
    for words in ("--max-model-len 64", "--max-num-seqs 8", "--logprobs-mode processed_logprobs", "--enable-scale-out"):
        assert words in line
    assert "--enable-lora" in line and "--max-lora-rank 16" in line and line.endswith("--enforce-eager")
    assert start.env["VLLM_SERVER_DEV_MODE"] == "1" and start.env["A"] == "1"
    assert "lora" not in " ".join(DIALECT.command(SERVED, "host", 81).command)


def test_requests_ask_for_the_sampled_token_alone_and_read_text_only_for_stop_strings():
    plain = sampling_params(Ask((7,), Sampling(5, min_new_tokens=2, stop_ids=(2, 9)), DRAW))
    assert (plain["logprobs"], plain["detokenize"], plain["ignore_eos"]) == (0, False, True)
    assert (plain["max_tokens"], plain["min_tokens"], plain["stop_token_ids"]) == (5, 2, [2, 9])
    assert sampling_params(Ask((7,), Sampling(5, stop_strings=("END",)), DRAW))["detokenize"] is True


def test_seeds_differ_with_every_number_of_a_draw_and_with_the_tokens_that_are_there():
    draws = [DRAW, *(replace(DRAW, **{name: 77}) for name in ("seed", "stream", "serial", "sample", "call"))]
    seeds = {seed_of(draw, done) for draw in draws for done in (0, 1)}
    assert len(seeds) == 12 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(DRAW, 1) == seed_of(replace(DRAW), 1) and seed_of(DRAW, 1, bits=31) < 2**31


def test_completions_carry_ids_logprobs_versions_and_our_own_text(engine, server):
    [one, two] = [
        future.result(5) for future in engine.submit([request(3), request(3, sample=1, stop_strings=("END.",))])
    ]
    assert (one.ids, one.logprobs, one.versions, one.stop_reason) == ((3, 4, 5), (-1.0,) * 3, (0,) * 3, "length")
    assert one.text == "aEND.EN"
    assert (two.ids, two.text, two.stop_reason) == ((3, 4), "a", "stop")  # the server went on past the string
    assert server.asked[0]["token_ids"] == [7, 8] and "model" not in server.asked[0]


def test_a_weight_update_pauses_loads_drops_caches_and_names_the_weights(engine, server):
    engine.publish(some_weights(), 1)
    first, second = (server.paths()[-5:], server.label)
    assert first == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert second.startswith("partita-") and second.endswith("-1")


def test_a_weight_update_in_the_middle_goes_on_from_the_tokens_that_are_there(engine, server):
    server.hold = True
    [future] = engine.submit([request(6, min_new_tokens=5)])
    assert server.waiting.wait(5)
    server.hold, server.logprob = False, -2.0
    server.released.clear()
    engine.publish(some_weights(), 1)
    done = future.result(5)
    assert done.versions == (0, 0, 1, 1, 1, 1) and done.logprobs == (-1.0, -1.0, -2.0, -2.0, -2.0, -2.0)
    before, after = server.asked
    assert after["token_ids"] == [7, 8, 3, 4]
    assert (after["sampling_params"]["max_tokens"], after["sampling_params"]["min_tokens"]) == (4, 3)
    assert before["sampling_params"]["seed"] != after["sampling_params"]["seed"]
    assert engine.stats().continued == 1 and engine.stats().reissued == 0


def test_a_server_that_was_started_again_behind_our_back_gets_the_weights_before_it_is_believed(engine, server):
    server.label = "default"
    with pytest.warns(UserWarning, match=r"was lost .*samples with the weights \['default'\]"):
        [future] = engine.submit([request(3)])
        assert future.result(5).ids == (3, 4, 5)
    assert server.label.startswith("partita-")
    counts = engine.take_counts()
    assert (counts["engine/reissued"], counts["engine/lost"]) == (1, 1)
    assert engine.take_counts()["engine/reissued"] == 0


def test_what_the_server_refuses_is_the_error_of_that_request_alone(engine, server):
    server.refuse = 400
    [future] = engine.submit([request(3)])
    with pytest.raises(ValueError, match="no, because"):
        future.result(5)
    server.refuse = None
    assert engine.submit([request(3)])[0].result(5).ids == (3, 4, 5)


def test_a_request_that_fails_each_time_ends_the_run(engine, server):
    server.refuse = 500
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [future] = engine.submit([request(3)])
        with pytest.raises(EngineError, match=r"lost 6 times over one request .*no, because"):
            future.result(10)
    with pytest.raises(EngineError, match="lost 6 times"):
        engine.submit([request(3)])


@pytest.mark.parametrize(
    ("state", "changed", "said"),
    [
        ({"told": {"logprobs_mode": "raw_logprobs"}}, {}, "--logprobs-mode is raw_logprobs"),
        ({"told": {"max_model_len": 32}}, {}, "--max-model-len is 32, and the run needs 64"),
        ({"told": {"dtype": "torch.bfloat16"}}, {}, "--dtype is bfloat16"),
        ({}, {"adapter_rank": 8}, "adapters of rank 8 need --enable-lora.*VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"chunked": True}, {}, "on a CPU it needs --no-enable-chunked-prefill"),
        ({"lacks": {"/server_info"}}, {}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_server_that_was_started_for_something_else_is_refused(state, changed, said, tokenizer, tmp_path):
    made = vllm_wire.start(**state)
    with pytest.raises(EngineError, match=said):
        open_engine([made], tokenizer, tmp_path, **changed)
    made.http.shutdown()


def test_a_server_that_never_answers_is_named(tokenizer, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    asked = Servers(DIALECT, SERVED, Given(["http://127.0.0.1:1"]), ServerConfig(start_timeout=0.3))
    with pytest.raises(EngineError, match=r"rollout.servers\[0\] at http://127.0.0.1:1 could not be asked for 0.3 s"):
        ServerEngine(asked, tokenizer, Publisher(tmp_path / "weights", model, torch.float32))


def test_weights_that_were_sent_past_the_folder_are_not_read_from_it(server, tokenizer, tmp_path):
    class Direct:
        def passing(self, servers, weights):
            assert servers == [(server.url, 0)]
            yield from weights

    engine = open_engine([server], tokenizer, tmp_path, transfer=Direct())
    server.paths()
    engine.publish(some_weights(), 0)
    assert server.paths() == ["/pause", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    server.label = "default"  # started again: now the folder is what it gets
    with pytest.warns(UserWarning, match="was lost"):
        assert engine.submit([request(2)])[0].result(5).ids == (3, 4)
    assert "/collective_rpc" in server.paths()
    engine.close()


def test_groups_stay_together_and_go_to_the_server_with_the_least_to_do(tokenizer, tmp_path):
    both = [vllm_wire.start(), vllm_wire.start()]
    engine = open_engine(both, tokenizer, tmp_path)
    engine.publish(some_weights(), 0)
    prompts = [(7,), (7,), (8,), (9,), (9,), (9,)]
    futures = engine.submit([Request(ids, Sampling(2), Draw(1, 2, 3, n)) for n, ids in enumerate(prompts)])
    assert all(future.result(5).ids == (3, 4) for future in futures)
    asked = [sorted(body["token_ids"][0] for body in one.asked) for one in both]
    assert asked == [[7, 7], [8, 9, 9, 9]]
    engine.close()
    for one in both:
        one.http.shutdown()


def test_adapters_go_alone_and_requests_name_them(tokenizer, tmp_path):
    made = vllm_wire.start(lora={"max_lora_rank": 16}, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True})
    engine = open_engine([made], tokenizer, tmp_path, adapter=lambda folder: folder.mkdir(), adapter_rank=8)
    made.paths()
    engine.publish(iter(()), 0)
    assert made.paths()[:2] == ["/pause", "/v1/load_lora_adapter"]
    engine.submit([request(2)])[0].result(5)
    assert made.asked[0]["model"] == made.label
    engine.close()
    made.http.shutdown()


def test_closing_gives_back_what_there_is_and_leaves_the_server(engine, server):
    server.hold = True
    [future] = engine.submit([request(6)])
    assert server.waiting.wait(5)
    engine.close()
    assert future.result(5).stop_reason == "abort"
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([request(6)])


def test_a_cancelled_request_frees_its_place(engine, server):
    server.hold = True
    [future] = engine.submit([request(6)])
    assert server.waiting.wait(5)
    assert future.cancel()
    deadline = time.monotonic() + 5
    while engine._open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine._open == 0


def test_a_probe_that_disagrees_ends_the_run_and_names_the_version(server, tokenizer, tmp_path):
    probe = Probe(lambda prompt, ids, temperature: [-3.0] * len(ids), (7,), tokens=4, temperature=0.5, limit=0.3)
    engine = open_engine([server], tokenizer, tmp_path, probe=probe)
    with pytest.raises(EngineError, match=r"weights of version 5, .* differ by 2 nats .*version 5 \(limit 0.3"):
        engine.publish(some_weights(), 5)
    assert server.asked[0]["sampling_params"]["temperature"] == 0.5
    with pytest.raises(EngineError, match="version 5"):
        engine.publish(some_weights(), 6)
    engine.close()


def test_what_is_no_answer_of_vllm_names_the_server_and_asks_what_it_is():
    async def ask(body, call):
        answer = httpx2.MockTransport(lambda _: httpx2.Response(200, json=body))
        async with httpx2.AsyncClient(base_url="http://s", transport=answer) as http:
            await call(http)

    async def sample(http):
        _ = [one async for one in DIALECT.generate(http, [Ask((7,), Sampling(2), DRAW)], Weights("w", 1, Path("f")))]

    with pytest.raises(EngineError, match=r"http://s/inference/v1/generate answers in another shape .*choices"):
        asyncio.run(ask({"text": "no"}, sample))
    with pytest.raises(EngineError, match=r"http://s/server_info answers in another shape .*vllm_config"):
        asyncio.run(ask({"dtype": "float32"}, lambda http: DIALECT.check(http, SERVED)))


@pytest.mark.parametrize(("logprobs", "spans"), [(1, [{"version": "w", "start": 0, "end": 2}]), (2, None)])
def test_tokens_without_logprobs_or_without_the_name_of_their_weights_are_not_taken(logprobs, spans):
    told = {"content": [{"logprob": -1.0}] * logprobs}
    choice = {"token_ids": [3, 4], "logprobs": told, "finish_reason": "length", "weight_versions": spans}
    with pytest.raises(ValueError, match="2 ids with"):
        read_choice(httpx2.AsyncClient(base_url="http://s", verify=False), choice, Weights("w", 1, Path("f")))


@pytest.mark.parametrize("state", [{"refuse": 400}, {"hold": True, "held": 0}])
def test_a_probe_that_gets_no_token_is_no_agreement(state, tokenizer, tmp_path):
    made = vllm_wire.start(**state)
    probe = Probe(lambda prompt, ids, temperature: [-1.0] * len(ids), (7,), tokens=4, temperature=1.0, limit=0.3)
    engine = open_engine([made], tokenizer, tmp_path, probe=probe)
    with pytest.raises(EngineError, match=r"rollout.servers\[0\] at .* samples nothing for the probe prompt"):
        engine.publish(some_weights(), 0)
    engine.close()
    made.http.shutdown()
