"""Runs of the real program on a tiny random model: in this process, or in one of its own where that counts."""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Something a random model can earn, with variance inside most groups.
VOWELS = """
def vowels(response):
    letters = [c for c in response.lower() if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / (1 + len(letters))
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def call(*words: object) -> Ended:
    """The command `partita`, run inside this process."""
    main = importlib.import_module("partita.cli").main  # here, not above: unit tests need not wait for it
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tests run side by side, and threads that wait for a core spin
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["partita", *map(str, words)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    return Ended(code, out.getvalue(), err.getvalue())


def start(*command: object) -> subprocess.Popen[str]:
    """Python with these arguments, in a process of its own: one thread, no hub."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # a shell makes its background jobs ignore interrupts, and this suite may be one
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end."""
    out, err = process.communicate(timeout=300)
    return Ended(process.returncode, out, err)


def settings(root: Path, **changed: object) -> list[str]:
    """Overrides of a small GRPO run below `root`; `actor__path` stands for `actor.path`. None leaves one out."""
    given = {
        "experiment_name": "tiny", "output_dir": root, "seed": 3, "total_train_steps": 1,
        "train_dataset.path": "addition", "train_dataset.size": 40, "train_dataset.batch_size": 2,
        "gconfig.n_samples": 4, "gconfig.max_new_tokens": 8, "report.console": "plain",
        "actor.dtype": "float32", "rollout.dtype": "float32", "ref.dtype": "float32",
    } | {name.replace("__", "."): value for name, value in changed.items()}  # fmt: skip
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def lines_of(folder: Path) -> list[dict]:
    """The metrics of a run's steps, in order."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
