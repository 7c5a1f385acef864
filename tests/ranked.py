"""The same jobs on one rank and on several: real processes over gloo, each of which writes down what it found."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
PATIENCE = 600.0


def on_ranks(count: int, script: str, folder: Path, *words: str) -> None:
    """Run `tests/<script> <folder> <words>` in so many processes that join as ranks. The first that fails ends the others, and
    what it said is the error.
    """
    said = [folder / f"rank-{rank}.log" for rank in range(count)]
    running = [
        subprocess.Popen(
            [sys.executable, f"{TESTS / script}", f"{folder}", *words],
            env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT,
        )
        for environment, log in zip(environments(count), said, strict=True)
    ]  # fmt: skip
    try:
        _wait(running, said)
    finally:
        for process in running:
            process.kill()
            process.wait()


def environments(count: int) -> list[dict[str, str]]:
    """By which so many processes find each other as ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": f"{count}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([f"{TESTS}", f"{TESTS.parent}", os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    return [os.environ | shared | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(count)]


def _wait(running: list[subprocess.Popen[bytes]], said: list[Path]) -> None:
    until = time.monotonic() + PATIENCE
    while (codes := [process.poll() for process in running]) != [0] * len(running):
        bad = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        assert not bad, f"rank {bad[0]} ended with {codes[bad[0]]}:\n{said[bad[0]].read_text()[-4000:]}"
        assert time.monotonic() < until, f"ranks still run after {PATIENCE} s: {codes}"
        time.sleep(0.05)
