"""The built-in engine's server: what it answers, what it refuses in which words, and how it ends."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

import pytest
import torch
from engine_servers import Fleet
from safetensors.torch import load_file, save_file

from partita.engine.api import Draw, Sampling
from partita.engine.servers import serve
from partita.engine.servers.api import Ask, EngineError, Served, ServerLost, Weights
from partita.engine.servers.builtin import DIALECT
from partita.engine.servers.wire import WireError, answers_body, read_answers, read_round, round_body
from partita.models.packed import PackedModel, weights

httpx2 = pytest.importorskip("httpx2")
ASKS = [Ask((3, 4, 5), Sampling(6, stop_ids=(9,), stop_strings=("END.",)), Draw(1, 2, 3, k)) for k in range(2)]
SERVED = Served("tiny", "float32", 128, 8, sys.executable)


def test_a_round_and_its_answers_survive_the_wire():
    name, requests = read_round(json.loads(json.dumps(round_body(ASKS, "w7"))))
    assert name == "w7"
    assert [(r.prompt_ids, r.sampling, r.draw) for r in requests] == [(a.prompt_ids, a.sampling, a.draw) for a in ASKS]
    told = json.loads(
        '[{"at": 1, "ids": [5, 9], "logprobs": [-0.1, -1e-300], "versions": [7, 7], "stop_reason": "stop"}]'
    )
    [(at, answer)] = read_answers(told)
    assert (at, answer.ids, answer.logprobs) == (1, (5, 9), (-0.1, -1e-300))
    [(at, error)] = read_answers(answers_body([(0, ValueError("too long"))]))
    assert at == 0 and str(error) == "too long"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"requests": []}, "KeyError: 'weights'"),
        ({"weights": "w", "requests": [{"prompt_ids": ["x"]}]}, "not a round of requests"),
        (
            {"weights": "w", "requests": [{"prompt_ids": [1], "sampling": {"n": 2}, "draw": [1] * 5}]},
            r"keys \['n'\]; this",
        ),
    ],
)
def test_what_is_no_round_is_said(body, said):
    with pytest.raises(WireError, match=said):
        read_round(body)


def test_answers_of_unequal_lengths_are_refused():
    one = {"at": 0, "ids": [1, 2], "logprobs": [-1.0], "versions": [0, 0], "stop_reason": "stop"}
    with pytest.raises(WireError, match="2 ids, 1 log-probs and 2 versions"):
        read_answers([one])


def test_the_command_says_everything_that_the_server_must_know():
    start = DIALECT.command(
        Served("m", "bfloat16", 99, 7, "py", prefill_tokens=5, apart=True, args=("--compile",)), "h", 1
    )
    assert start.command[:3] == ("py", "-m", "partita.engine.servers.serve")
    asked = serve.arguments(start.command[3:])
    assert asked == argparse.Namespace(
        model="m", device="cpu", dtype="bfloat16", slots=7, context=99, prefill_tokens=5, apart=True, compile=True,
        trust_remote_code=False, host="h", port=1,
    )  # fmt: skip
    with pytest.raises(EngineError, match="tensor_parallel=2: the built-in engine runs on one device"):
        DIALECT.command(Served("m", "float32", 99, 7, "py", tensor_parallel=2), "h", 1)


def test_an_answer_to_what_was_not_asked_means_that_the_server_is_not_to_be_believed():
    one = {"ids": [5], "logprobs": [-0.1], "versions": [7], "stop_reason": "stop"}

    async def ask(*places):
        lines = "".join(json.dumps([{"at": at, **one}]) + "\n" for at in places)
        answer = httpx2.MockTransport(lambda _: httpx2.Response(200, text=lines))
        async with httpx2.AsyncClient(base_url="http://s", transport=answer) as http:
            return [at async for at, _ in DIALECT.generate(http, ASKS, Weights("w", 7, Path("f")))]

    assert asyncio.run(ask(1, 0)) == [1, 0]
    for places in ((0, 0), (-1, 0), (0, 2)):
        with pytest.raises(ServerLost, match="which was not asked or was done"):
            asyncio.run(ask(*places))
    with pytest.raises(ServerLost, match="ended before 1 of 2"):
        asyncio.run(ask(1))


def test_a_mistake_while_answers_are_sent_is_not_kept_back():
    async def lines():
        yield 1
        raise ZeroDivisionError

    async def ask():
        async def send(_):
            pass

        await serve.Lines(lines())({}, asyncio.Event().wait, send)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_another_kind_of_server_is_told_apart():
    async def ask(answer):
        async with httpx2.AsyncClient(base_url="http://s", transport=httpx2.MockTransport(lambda _: answer)) as http:
            await DIALECT.check(http, SERVED)

    for answer, said in (
        (httpx2.Response(200, text=""), "is no server of the built-in"),
        (httpx2.Response(404), "404"),
    ):
        with pytest.raises(EngineError, match=said):
            asyncio.run(ask(answer))
    with pytest.raises(ServerLost, match="503"):
        asyncio.run(ask(httpx2.Response(503)))


def test_weights_that_do_not_fit_are_refused_before_anything_changes(tiny, tmp_path):
    found = {name: weight.contiguous() for name, weight in weights(PackedModel(tiny(), kind="plain"))}
    shapes = {name: tuple(weight.shape) for name, weight in found.items()}
    file, first = tmp_path / "a.safetensors", next(iter(found))

    def refused(said):
        with pytest.raises(serve.WeightsError, match=said), serve.opened(tmp_path, shapes):
            pass

    refused("no safetensors file is there")
    save_file({**{name: found[name] for name in found if name != first}, "strange": torch.zeros(2)}, file)
    refused(r"1 are missing \['model.* 1 are unknown or of another shape \['strange")
    file.write_bytes(b"x")
    refused("cannot be read")
    save_file(found, file)
    with serve.opened(tmp_path, shapes) as given:
        file.unlink()  # by a trainer that ends meanwhile
        assert all(torch.equal(weight, found.pop(name)) for name, weight in given) and not found


def test_without_the_packages_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(sys, "argv", ["serve", "--model", "m"])
    assert serve.main() == 2
    assert "pip install 'partita[serve]'" in capsys.readouterr().err
    with pytest.raises(EngineError, match=r"pip install 'partita\[serve\]'"):
        DIALECT.command(SERVED, "h", 1)


def test_a_model_that_is_not_there_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["serve", "--model", str(tmp_path / "none")])
    assert serve.main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot serve {tmp_path / 'none'}: ") and "no such folder" in line


def test_an_address_that_cannot_be_had_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serve", "--model", "m", "--host", "256.0.0.1"])
    assert serve.main() == 2
    assert capsys.readouterr().err.startswith("cannot listen at 256.0.0.1:0: ")


@pytest.fixture
def fleet(tiny, tokenizer, tmp_path):
    """One server that answers each completion when it is done."""
    model = tmp_path / "model"
    tiny(dtype=torch.float32).save_pretrained(model)
    tokenizer.save_pretrained(model)
    made = Fleet(tmp_path / "launch", model, apart=False)
    try:
        made.start(0)
        yield made
    finally:
        made.kill(*made.running)


@pytest.mark.slow
def test_a_server_from_its_first_round_to_its_end(fleet, tmp_path):
    async def ask() -> list[str]:
        said = []
        async with httpx2.AsyncClient(base_url=fleet.url(0), timeout=60) as http:
            await DIALECT.check(http, fleet.served)
            for wrong in (Served("m", "bfloat16", 64, 8, "py"), Served("m", "float32", 4096, 8, "py")):
                with pytest.raises(EngineError) as caught:
                    await DIALECT.check(http, wrong)
                said.append(str(caught.value))
            here = Weights("first", 3, fleet.model)
            with pytest.raises(
                ServerLost, match="asked for the weights first; here are those that the server began with"
            ):
                _ = [one async for one in DIALECT.generate(http, ASKS, here)]
            await DIALECT.renew(http, here)
            long = Ask((3,), Sampling(120), Draw(0, 0, 0, 0))
            order = [at async for at, _ in DIALECT.generate(http, [long, *ASKS], here)]
            assert order[-1] == 0  # the others did not wait for it
            answers = DIALECT.generate(http, [long] * 50 + ASKS[:1], here)
            await anext(answers)
            await answers.aclose()  # hangs up
            with pytest.raises(EngineError, match="no safetensors file is there"):
                await DIALECT.renew(http, Weights("second", 4, tmp_path))
            response = await http.post("/generate", json={"weights": "first", "requests": [{}]})
            assert response.status_code == 400 and "not a round of requests" in response.json()["error"]
            assert (await http.get("/stats")).json()["tokens"] < 50 * 120  # slots of the one that hung up are free
            with pytest.raises(ServerLost, match="the engine has failed there: FloatingPointError: non-finite logits"):
                await DIALECT.renew(http, Weights("broken", 5, broken))
                _ = [one async for one in DIALECT.generate(http, ASKS, Weights("broken", 5, broken))]
        return said

    broken = tmp_path / "broken"
    broken.mkdir()
    stored = load_file(fleet.model / "model.safetensors")
    save_file({name: torch.full_like(weight, torch.nan) for name, weight in stored.items()}, broken / "a.safetensors")
    dtype, context = asyncio.run(ask())
    assert "serves in float32, and rollout.dtype means bfloat16" in dtype
    assert "serves 128 tokens of context, and the run needs 4096" in context
    assert fleet.running[0].wait(30) == 1
    assert fleet.log(0).read_text().splitlines()[-1].startswith("the engine has failed: FloatingPointError: non-finite")
