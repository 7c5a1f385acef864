"""A server that speaks OpenAI's chat protocol, in a process of its own, and does what the judged response says.

A response is `[fault[*times]] verdict [seconds]`: that often the fault, then the verdict as a score, after so many seconds. The
model `vowels` judges any response.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FENCED = re.compile(r'<response id="\w+">\n(.*)\n</response id="\w+">', re.DOTALL)


class Seen:
    """What the server has seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = self.most_open = self.requests = 0
        self.responses = Counter[str]()
        self.bodies: list[dict] = []
        self.keys: list[str] = []
        self.times: list[float] = []


SEEN = Seen()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        with SEEN.lock:
            names = ("open", "most_open", "requests", "bodies", "keys", "times")
            self.answer(200, {name: getattr(SEEN, name) for name in names})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = FENCED.search(body["messages"][-1]["content"])[1]
        with SEEN.lock:
            SEEN.open, SEEN.requests = SEEN.open + 1, SEEN.requests + 1
            SEEN.most_open = max(SEEN.most_open, SEEN.open)
            SEEN.bodies.append(body)
            SEEN.keys.append(self.headers.get("Authorization", ""))
            SEEN.times.append(time.monotonic())
            SEEN.responses[said] += 1
            number = SEEN.responses[said]
        try:
            self.judge(said, number, body)
        finally:
            with SEEN.lock:
                SEEN.open -= 1

    def judge(self, said: str, number: int, body: dict) -> None:
        if body["model"] == "vowels":
            return self.answer(200, vowels(said))
        words = said.split()
        fault, _, times = words.pop(0).partition("*") if not re.match(r"[01](\.\d+)?$|<", words[0]) else ("", "", "")
        if fault and number <= int(times or 1_000_000):
            return self.fail(fault)
        if len(words) > 1:
            time.sleep(float(words[1]))
        steps = re.findall(r'<step \d+ id="\w+">\n(\S+)', said)
        content = json.dumps({"scores": [float(one) for one in steps]} if steps else {"score": float(words[0])})
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        self.answer(200, {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "usage": usage})

    def fail(self, fault: str) -> None:
        if fault == "hang":
            time.sleep(20)
        elif fault == "reset":
            self.close_connection = True
            self.connection.close()
        elif fault == "garbage":
            self.answer(200, b"<html>busy</html>")
        elif fault == "wrong":
            self.answer(200, {"result": "fine", "choices": []})
        elif fault == "mute":
            self.answer(200, {"choices": [{"message": {"content": "I will not say."}}]})
        elif fault == "leak":
            self.answer(401, {"error": {"message": f"bad key {self.headers['Authorization']}"}})
        else:
            code, _, after = fault.partition("/")
            headers = {"Retry-After": after} if after else {}
            self.answer(int(code), {"error": {"message": f"scripted {code}"}}, headers)

    def answer(self, code: int, value: object, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(code)
            for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)


def vowels(said: str) -> dict:
    """A completion that scores any text, or each of its steps, by its vowels."""
    texts = re.findall(r'<step \d+ id="\w+">\n(.*?)\n</step', said, re.DOTALL)
    scores = [sum(c in "aeiou" for c in text.lower()) / (1 + len(text)) for text in texts or [said]]
    content = json.dumps({"scores": scores} if texts else {"score": scores[0]})
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "usage": usage}


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: object) -> None: ...


class Running:
    """The server's process, from outside."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"

    def stats(self) -> dict:
        """What it has seen: open and most_open requests, requests, bodies, keys, times."""
        with urllib.request.urlopen(f"{self.url}/stats") as answer:
            return json.load(answer)


@contextlib.contextmanager
def serving() -> Iterator[Running]:
    """A server on a free port, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    )
    try:
        yield Running(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
