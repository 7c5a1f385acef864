"""The HTTP side with plain requests: addresses, errors in OpenAI's words, streams, and what is not let in."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from serving import END, Model, session_of
from talking import CHATML, chat_with

from partita.rollout.served.server import Server
from partita.rollout.served.session import Session

pytestmark = pytest.mark.slow
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CHAT = chat_with(CHATML, END)
HI = [{"role": "user", "content": "Hi"}]


@dataclass
class Answer:
    """What came back."""

    status_code: int
    headers: Any
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


def fetch(url: str, body: bytes | None = None) -> Answer:
    """A GET, or a POST of a body."""
    try:
        with DIRECT.open(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=30) as answer:
            return Answer(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read().decode())


class Rollout:
    """A session on an event loop of its own, served."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.server = Server(max_request_bytes=2000)
        self.model = Model(CHAT, ["one", "two", "three"])
        self.session: Session = asyncio.run_coroutine_threadsafe(self._session(), self.loop).result()
        self.url, self.token = self.server.open(self.session)

    async def _session(self) -> Session:
        return session_of(self.model)

    def post(self, path: str = "chat/completions", content: bytes | None = None, **body: Any) -> Answer:
        data = json.dumps(body).encode() if content is None else content
        return fetch(f"{self.url}/{path}", data)

    def get(self, path: str) -> Answer:
        return fetch(f"{self.url}/{path}")


@pytest.fixture
def rollout() -> Iterator[Rollout]:
    made = Rollout()
    yield made
    made.server.close()
    made.loop.call_soon_threadsafe(made.session.close)
    made.loop.call_soon_threadsafe(made.loop.stop)


def test_a_chat(rollout: Rollout) -> None:
    answer = rollout.post(messages=HI, logprobs=True).json()
    assert answer["object"] == "chat.completion" and answer["model"] == "policy"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one"} and choice["finish_reason"] == "stop"
    assert [(one["token"], one["logprob"]) for one in choice["logprobs"]["content"]] == [
        ("o", -1.0), ("n", -1.01), ("e", -1.02), ("", -1.03)
    ]  # fmt: skip
    prompt = len(CHAT.opening(HI))
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4}


def test_a_stream_says_the_same(rollout: Rollout) -> None:
    answer = rollout.post(messages=HI, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    parts = [json.loads(event) for event in events]
    deltas = [choice["delta"] for part in parts for choice in part["choices"]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "one"}, {}]
    assert parts[2]["choices"][0]["finish_reason"] == "stop" and parts[3]["usage"]["completion_tokens"] == 4


def test_a_text(rollout: Rollout) -> None:
    answer = rollout.post("completions", prompt="Hi", max_tokens=2, logprobs=0).json()
    assert answer["choices"][0] | {"logprobs": None} == {
        "index": 0, "text": "on", "finish_reason": "length", "logprobs": None
    }  # fmt: skip
    assert answer["choices"][0]["logprobs"] == {"tokens": ["o", "n"], "token_logprobs": [-1.0, -1.01]}
    streamed = rollout.post("completions", prompt="Hi", stream=True).text
    assert json.loads(streamed.split("\n\n")[0].removeprefix("data: "))["choices"][0]["text"] == "two"


def test_models_and_health(rollout: Rollout) -> None:
    assert [one["id"] for one in rollout.get("models").json()["data"]] == ["policy"]
    assert rollout.get("models/policy").json()["id"] == "policy"
    assert rollout.get("models/gpt").status_code == 404
    root = rollout.url.partition("/s/")[0]
    assert root.startswith("http://127.0.0.1:")
    assert fetch(f"{root}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("content", "status", "why"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[" * 1500, 400, "the body is not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * 3000 + b'"}]}', 413, "more than 2000 bytes"),
        (b'{"messages": [{"role": "<script>", "content": ""}]}', 400, "role must be one of"),
    ],
)
def test_what_is_not_let_in(rollout: Rollout, content: bytes, status: int, why: str) -> None:
    answer = rollout.post(content=content)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert why in answer.json()["error"]["message"] and "<script>" not in answer.text
    assert rollout.model.calls == []


@pytest.mark.parametrize("path", ["embeddings", "responses", "chat"])
def test_what_is_not_served(rollout: Rollout, path: str) -> None:
    answer = rollout.post(path, input="x")
    assert answer.status_code == 404 and "is not served" in answer.json()["error"]["message"]
    assert rollout.get("chat/completions").status_code == 405


def test_an_address_ends_with_its_sample(rollout: Rollout) -> None:
    rollout.server.forget(rollout.token)
    answer = rollout.post(messages=HI)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_session"
    assert answer.headers["x-should-retry"] == "false"


def test_a_call_that_waits_when_its_sample_ends(rollout: Rollout) -> None:
    rollout.model.gate = asyncio.Event()
    rollout.loop.call_soon_threadsafe(rollout.loop.call_later, 0.5, rollout.session.close)
    answer = rollout.post(messages=HI)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_session"
    assert rollout.session.rows() == []


def test_a_loop_that_is_gone(rollout: Rollout) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    rollout.session.loop = loop
    assert rollout.post(messages=HI).json()["error"]["code"] == "unknown_session"


def test_an_engine_that_fails(rollout: Rollout) -> None:
    rollout.model.lines = [RuntimeError("broken")]
    answer = rollout.post(messages=HI)
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
