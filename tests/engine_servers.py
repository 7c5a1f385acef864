"""Built-in engine servers as real processes, with the endpoint files and logs that a launcher would write."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from partita.engine.config import ServerConfig
from partita.engine.local import LocalEngine
from partita.engine.servers.addresses import Started
from partita.engine.servers.api import Served
from partita.engine.servers.builtin import DIALECT
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.published import Publisher
from partita.models.load import LoadedModel, load_causal_lm
from partita.models.selfcheck import decoding_copy

READY = re.compile(r"serving .* at (http://\S+)")
START_SECONDS = 120.0


class Fleet:
    """Servers of one model in float32; `folder` is what a launch folder is to the client."""

    def __init__(self, folder: Path, model: Path, *, slots: int = 8, apart: bool = True) -> None:
        self.folder, self.model = folder, model
        self.served = Served(str(model), "float32", 128, slots, sys.executable, apart=apart)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        for name in ("endpoints", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self, *indices: int) -> None:
        """Start servers at new ports, and tell where they are when all of them serve."""
        for index in indices:
            start = DIALECT.command(self.served, "127.0.0.1", 0)
            with self.log(index).open("wb") as log:
                env = {**os.environ, "OMP_NUM_THREADS": "1", **start.env}
                self.running[index] = subprocess.Popen(start.command, env=env, stdout=log, stderr=log)
        for index in indices:
            where = json.dumps({"url": self.url(index)})
            part = self.folder / "endpoints" / f"server-{index}.part"
            part.write_text(where)
            part.rename(part.with_suffix(".json"))

    def log(self, index: int) -> Path:
        """What a server says."""
        return self.folder / "logs" / f"server-{index}.log"

    def url(self, index: int) -> str:
        """Where a server is, when it is there."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := READY.search(self.log(index).read_text())):
            said = self.log(index).read_text()
            assert self.running[index].poll() is None and time.monotonic() < deadline, said
            time.sleep(0.05)
        return found[1]

    def kill(self, *indices: int) -> None:
        """SIGKILL."""
        for index in indices:
            self.running[index].kill()
            self.running.pop(index).wait()

    def client(self, tokenizer, weights: Path, count: int, probe=None, **config) -> ServerEngine:
        """An engine over the first `count` servers; `weights` is a folder of its own."""
        publisher = Publisher(weights, self.model, torch.float32)
        settings = ServerConfig(health_seconds=0.5, **config)
        return ServerEngine(
            Servers(DIALECT, self.served, Started(self.folder, count), settings), tokenizer, publisher, probe
        )


def loaded(model: Path) -> LoadedModel:
    """The model in this process."""
    return load_causal_lm(str(model), dtype=torch.float32)


def engine_here(model: LoadedModel, version: int, slots: int = 8) -> LocalEngine:
    """The engine in this process, as the servers make theirs."""
    sampler, _ = decoding_copy(model.model, torch.float32, alone=False)
    return LocalEngine(sampler, model.tokenizer, slots=slots, context=128, version=version)
