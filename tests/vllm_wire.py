"""A server that speaks vLLM's wire and samples by counting: token n of a completion is 3 + n, its log-prob that of the weights.

It runs in threads of the test's process and remembers what it was asked. `hold`: completions stop after `held` tokens and wait
for an abort. `queue`: they wait for /resume before their first token, as those do that come while it is paused. `hangs`: paths
that are not answered. Beside it: a client's engine over such servers.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import torch

from partita.engine.api import Draw, Request, Sampling
from partita.engine.config import ServerConfig
from partita.engine.servers.addresses import Given
from partita.engine.servers.api import Served
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.published import Publisher
from partita.engine.servers.vllm import DIALECT

SERVED = Served(model="/model", dtype="float32", context=64, slots=8, python="python")
CONFIG = ServerConfig(start_timeout=5)


@dataclass
class Server:
    """What a test sees and sets. logprob: what the weights make of every token. told: log-probs in a mode of another name."""

    label: str = "default"
    logprob: float = -1.0
    told: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None
    chunked: bool = False
    lacks: set[str] = field(default_factory=set)
    hold: bool = False
    held: int = 2
    queue: bool = False
    hangs: set[str] = field(default_factory=set)
    refuse: int | None = None
    calls: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    waiting: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    resumed: threading.Event = field(default_factory=threading.Event)
    http: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def paths(self) -> list[str]:
        """What was asked since the last look, without looks at its health."""
        seen, self.calls = [path for path, _ in self.calls if path not in ("/health", "/inference/v1/generate")], []
        return seen


def start(**state: Any) -> Server:
    """A running server; `server.http.shutdown()` ends it."""
    server = Server(**state)

    class Bound(Handler):
        here = server

    server.http = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.http.daemon_threads = True
    threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True).start()
    return server


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    here: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.route(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.route(json.loads(raw) if raw else None)

    def route(self, body: Any) -> None:
        here, path = self.here, urlsplit(self.path).path
        here.calls.append((path, body))
        while path in here.hangs:
            time.sleep(0.01)
        if path in here.lacks:
            return self.answer(404, {"detail": "Not Found"})
        if path == "/server_info":
            model = {"logprobs_mode": "processed_logprobs", "dtype": "torch.float32", "max_model_len": 64, **here.told}
            config = {"model_config": model, "lora_config": here.lora, "device_config": {"device": "cpu"}}
            config["scheduler_config"] = {"enable_chunked_prefill": here.chunked}
            return self.answer(200, {"vllm_config": config, "vllm_env": here.env})
        if path == "/pause":
            here.released.set()
        if path == "/resume":
            here.resumed.set()
        if path == "/update_weight_version":
            here.label = body["new_version"]
        if path == "/inference/v1/generate":
            return self.generate(body)
        return self.answer(200, {"success": True, "data": []})

    def generate(self, body: Any) -> None:
        here = self.here
        here.asked.append(body)
        if here.refuse is not None:
            return self.answer(here.refuse, {"error": {"message": "no, because"}})
        if here.queue:
            here.waiting.set()
            here.resumed.wait(10)
        label, asked, reason = here.label, body["sampling_params"], "length"
        tokens = asked["max_tokens"]
        if here.hold:
            here.waiting.set()
            here.released.wait(10)
            tokens, reason = here.held, "abort"
        ids = [3 + n for n in range(tokens)]
        content = [{"token_id": one, "logprob": here.logprob} for one in ids]
        spans = [{"version": label, "start": 0, "end": tokens}]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason, "weight_versions": spans}
        return self.answer(200, {"choices": [choice]})

    def answer(self, code: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def some_weights():
    return [("weight", torch.ones(2))]


def open_engine(
    servers, tokenizer, tmp_path, probe=None, adapter=None, transfer=None, config=CONFIG, **changed
) -> ServerEngine:
    """An engine over servers; changed: fields of `SERVED`."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    publisher = Publisher(tmp_path / "weights", model, torch.float32, adapter)
    given = Given([one.url for one in servers])
    asked = Servers(DIALECT, replace(SERVED, **changed), given, config, transfer)
    return ServerEngine(asked, tokenizer, publisher, probe)


def request(tokens: int, sample: int = 0, **sampling) -> Request:
    return Request((7, 8), Sampling(tokens, **sampling), Draw(1, 2, 3, sample))
