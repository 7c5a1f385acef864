"""Our side of `servers.py`: the engine of a run by its public `submit` and `publish`, in this process or over vLLM's server.

usage (by the driver): served_rollout.py MODEL local|vllm PYTHON [SERVER'S ARGUMENT ...]    PYTHON: vLLM's interpreter
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import torch
from workers import Desk

from partita.engine.api import Completion, Draw, Request, Sampling
from partita.engine.config import compute_dtype
from partita.engine.servers.vllm import DIALECT
from partita.models.packed import weights
from partita.run import RunConfig, load_run_config
from partita.run_engine import served_of
from partita.run_models import open_engine
from partita.train.probed import logprobs_after
from partita.train.stepper import precision
from partita.trainer import QUICKSTART

CONTEXT, SLOTS = 1024, 128


class Side:
    """An engine with the policy that it samples from."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.loaded, self.engine, device = open_engine(config)
        self.dtype, self.version = compute_dtype(config.actor.dtype, device), 0

    def generate(self, prompts: list[list[int]], seeds: list[int], new_tokens: int) -> dict:
        """Seconds and tokens of one round, and how far its log-probs are from those that training computes."""
        sampling = Sampling(max_new_tokens=new_tokens)  # no stop ids: every response has the full length
        requests = [Request(tuple(p), sampling, Draw(s, 0, 0, 0)) for p, s in zip(prompts, seeds, strict=True)]
        began = time.perf_counter()
        done = [future.result() for future in self.engine.submit(requests)]
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "tokens": sum(len(one.ids) for one in done), **self._mismatch(prompts, done)}

    def publish(self) -> dict:
        """Seconds until the engine samples from new weights."""
        self.version += 1
        began = time.perf_counter()
        self.engine.publish(weights(self.loaded.model), self.version)
        return {"seconds": time.perf_counter() - began}

    def _mismatch(self, prompts: list[list[int]], done: list[Completion]) -> dict:
        """Mean |ratio - 1| and k3 of the first eight: training's probabilities over the engine's."""
        model, apart = self.loaded.model, list[float]()
        for prompt, one in zip(prompts[:8], done, strict=False):
            ours = logprobs_after(model, precision(model, self.dtype), prompt, one.ids, 1.0)
            apart += [said - told for said, told in zip(ours, one.logprobs, strict=True)]
        log_ratio = torch.tensor(apart, dtype=torch.float64)
        ratio = log_ratio.exp()
        return {"ratio": float((ratio - 1).abs().mean()), "k3": float((ratio - 1 - log_ratio).mean())}


def server(config: RunConfig, python: str, arguments: list[str], stack: ExitStack) -> str:
    """The address of a vLLM server that ends with the stack."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = DIALECT.command(served_of(config.actor, config.rollout, torch.device("cpu")), "127.0.0.1", port)
    command = [python, *start.command[1:], *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(command, env=env | start.env, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, signal.SIGKILL)
    return f"http://127.0.0.1:{port}"


def main() -> None:
    """Load, warm up, answer."""
    desk, (model, backend, python, *arguments) = Desk(), sys.argv[1:]
    words = [
        f"actor.path={model}", "rollout.dtype=bfloat16", f"rollout.max_concurrent_rollouts={SLOTS}",
        f"rollout.server.context={CONTEXT}",
    ]  # fmt: skip
    with ExitStack() as stack:
        if backend == "vllm":
            words += ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:1]"]
            url = server(load_run_config([QUICKSTART], words).value, python, arguments, stack)
            words[-1] = f"rollout.servers=[{url}]"
        side = Side(load_run_config([QUICKSTART], words).value)
        stack.callback(side.engine.close)
        for size in (8, 64):
            side.generate([[1, 2, 3 + k // 8] for k in range(size)], list(range(size)), 4)
        desk.ready()
        for question in desk.questions():
            desk.answer(side.publish() if question == {"publish": True} else side.generate(**question))


if __name__ == "__main__":
    main()
