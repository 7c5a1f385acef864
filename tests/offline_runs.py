"""What the tests of runs on data share: files of rows, the words of a command line, runs that are killed, how one came out."""

import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

import running
from running import Ended, call

QUESTIONS = [f"What is {n} and {n * 7}?" for n in range(12)]
PAIRS = [
    {"prompt": asked, "chosen": f"It is {n * 8}.", "rejected": f"Who knows {n * 5}" + "!" * (n % 4), "margin": n / 8}
    for n, asked in enumerate(QUESTIONS)
]
ROWS = {
    "sft": [{"prompt": one["prompt"], "completion": one["chosen"]} for one in PAIRS],
    "rm": PAIRS,
    "dpo": PAIRS,
    "kto": [
        {"prompt": one["prompt"], "completion": one["chosen" if n % 3 else "rejected"], "label": n % 3 > 0}
        for n, one in enumerate(PAIRS)
    ],
}


def written(folder: Path, rows: list[dict], name: str = "rows") -> Path:
    """A file of these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return file


def settings(root: Path, model: Path, **changed: object) -> list[str]:
    """Overrides of a small run below `root`; `actor__path` stands for `actor.path`. None leaves one out."""
    given = {
        "experiment_name": "tiny", "output_dir": root, "trial_name": "one", "seed": 3, "report.console": "plain",
        "actor.path": model, "actor.dtype": "float32", "actor.optimizer.lr": 0.003, "train_dataset.batch_size": 4,
        "checkpoint.freq_steps": 1, "checkpoint.keep_last": 9,
    } | {name.replace("__", "."): value for name, value in changed.items()}  # fmt: skip
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def folder_of(words: list[str]) -> Path:
    """Where these words put the run."""
    given = dict(word.split("=", 1) for word in words)
    return Path(given["output_dir"]) / given["experiment_name"] / given["trial_name"]


def finished(kind: str, file: Path, words: list[str]) -> tuple[Path, Ended]:
    """The folder of a run that came to its end, and what it said."""
    ended = call(kind, file, *words)
    assert ended.code == 0, ended.err
    return folder_of(words), ended


def lines_of(folder: Path) -> list[dict]:
    """Metrics by step, without wall-clock values."""
    untimed = ("time/", "tokens_per_second")
    return [{k: v for k, v in x.items() if not k.startswith(untimed)} for x in running.lines_of(folder)]


def outcome(folder: Path) -> tuple[list[dict], dict[str, bytes]]:
    """Metrics, and all files that were exported."""
    return lines_of(folder), {file.name: file.read_bytes() for file in (folder / "export").iterdir()}


def command(words: tuple[str, ...]) -> None:
    """A command as a process of its own: what it says goes nowhere."""
    ended = call(*words)
    sys.exit(f"{words[0]} ended with {ended.code}: {ended.err}" if ended.code else 0)


def forked(*words: object) -> multiprocessing.Process:
    """Start a command in a process that was forked from one in which the program is imported: what a start takes is seconds,
    what a tiny run takes is less.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["partita.cli"])
    process = forks.Process(target=command, args=(tuple(map(str, words)),))
    process.start()
    return process


def killed(kind: str, file: Path, words: list[str], step: int, wait: float = 0.0) -> Path:
    """The folder of a run that was killed `wait` seconds after its metrics had the line of `step`."""
    process, folder = forked(kind, file, *words), folder_of(words)
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and process.is_alive():
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= step:
            break
        time.sleep(0.0005)
    time.sleep(wait)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (folder / "export").exists()
    return folder


def resumed(kind: str, folder: Path, *words: object) -> None:
    """Go on with a run to its end, in a process of its own."""
    process = forked(kind, "--resume", folder, *words)
    process.join(120)
    assert process.exitcode == 0
