"""A process that answers as SGLang's documentation and source (0.5) say that its server does; it computes nothing.

Token i of a prompt's completion is a fixed function of the tokens before it and of the weights' version, one every few
milliseconds. A field that SGLang does not document is refused. Everything that is asked is written to a file, a line each.
"""

import json
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

SAMPLING = {
    "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "sampling_seed", "stop_token_ids", "stop",
}  # fmt: skip
FIELDS = {"input_ids", "sampling_params", "return_logprob", "logprob_start_len", "lora_path"}
TOKEN_SECONDS = 0.004
INFO = {"dtype": "float32", "context_length": 128, "enable_lora": True, "max_lora_rank": 16, "model_path": "m"}


class State:
    """What the server holds."""

    lock = threading.Condition()
    version = "default"
    paused = False
    running = 0
    adapters: ClassVar[dict[str, str]] = {}
    starting = 2  # looks at its health that find it not ready


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            State.starting -= 1
            self.say(503 if State.starting >= 0 else 200, "")
        elif self.path == "/server_info":
            self.say(200, INFO)
        else:
            self.say(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        with RECORD.open("a") as record:
            record.write(json.dumps({"path": self.path, **body}) + "\n")
        answer = getattr(self, self.path.strip("/"), None)
        if answer is None:
            self.say(404, {"detail": "Not Found"})
        else:
            answer(body)

    def generate(self, body) -> None:
        if unknown := (body.keys() - FIELDS) | (body["sampling_params"].keys() - SAMPLING):
            return self.refuse(f"Unexpected keyword argument {sorted(unknown)}")
        ids, sampling, adapter = body["input_ids"], body["sampling_params"], body.get("lora_path")
        if adapter is not None and adapter not in State.adapters:
            return self.refuse(f"Got LoRA adapter that has never been loaded: {adapter}")
        if len(ids) >= INFO["context_length"]:
            return self.refuse(f"The input ({len(ids)} tokens) is longer than the model's context length")
        pairs, reason = self.sampled(ids, sampling)
        meta = {
            "id": "1", "finish_reason": reason, "prompt_tokens": len(ids), "weight_version": State.version,
            "num_retractions": 0, "input_token_logprobs": [], "output_token_logprobs": pairs,
            "output_token_logprobs_length": len(pairs), "completion_tokens": len(pairs), "cached_tokens": 0,
            "e2e_latency": 0.1,
        }  # fmt: skip
        self.say(200, {"text": "?", "output_ids": [pair[1] for pair in pairs], "meta_info": meta})
        with State.lock:
            State.running -= 1
            State.lock.notify_all()
        return None

    def sampled(self, ids, sampling):
        with State.lock:
            State.lock.wait_for(lambda: not State.paused)
            State.running += 1
        pairs = []
        while len(pairs) < sampling["max_new_tokens"]:
            time.sleep(TOKEN_SECONDS)
            if State.paused:
                return pairs, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            token = (sum(ids) + sum(pair[1] for pair in pairs) + len(State.version)) % 40 + 3
            pairs.append([-0.01 * token, token, None])
            if token in sampling["stop_token_ids"]:
                return pairs, {"type": "stop", "matched": token}
        return pairs, {"type": "length", "length": sampling["max_new_tokens"]}

    def pause_generation(self, body) -> None:
        assert body == {"mode": "abort"}, body
        with State.lock:
            State.paused = True
            State.lock.wait_for(lambda: State.running == 0)
        self.say(200, {"message": "Generation paused successfully.", "status": "ok"})

    def continue_generation(self, body) -> None:
        with State.lock:
            State.paused = False
            State.lock.notify_all()
        self.say(200, {"message": "Generation continued successfully.", "status": "ok"})

    def update_weights_from_disk(self, body) -> None:
        if not list(Path(body["model_path"]).glob("*.safetensors")):
            self.say(400, {"success": False, "message": "Failed to load weights: no files", "num_paused_requests": 0})
            return
        State.version = body["weight_version"]
        self.say(200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    def update_weight_version(self, body) -> None:
        State.version = body["new_version"]
        self.say(200, {"success": True, "message": "Weight version updated", "new_version": State.version})

    def load_lora_adapter(self, body) -> None:
        if body["lora_name"] in State.adapters:
            said = f"LoRA adapter {body['lora_name']} already exists"
            self.say(400, {"success": False, "error_message": said, "loaded_adapters": State.adapters})
            return
        State.adapters[body["lora_name"]] = body["lora_path"]
        self.say(200, {"rid": None, "success": True, "error_message": "", "loaded_adapters": State.adapters})

    def unload_lora_adapter(self, body) -> None:
        del State.adapters[body["lora_name"]]
        self.say(200, {"rid": None, "success": True, "error_message": "", "loaded_adapters": State.adapters})

    def flush_cache(self, body) -> None:
        self.say(200 if State.running == 0 else 400, "Cache flushed.\nPlease check backend logs for more details.\n")

    def refuse(self, message) -> None:
        self.say(400, {"error": {"message": message}})

    def say(self, status, body) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        with suppress(ConnectionError):  # whoever asked may have given it up
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


if __name__ == "__main__":
    RECORD = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
