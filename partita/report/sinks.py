"""Where a run's records are kept: one strict-JSON line per step, files of samples and numbers per step, the trackers.

A run that is killed and resumed leaves the same files as one that is not: what was written after the step it resumes
from is removed when a sink opens. Left out: the console, which keeps nothing.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save
from torch import Tensor

from partita.ops.threads import release_threads
from partita.report.config import ReportConfig
from partita.report.records import StepRecord
from partita.report.trackers import open_tracker

SAMPLE_FILE = re.compile(r"step_(\d+)\.jsonl(?:\.gz)?")
BATCH_FILE = re.compile(r"step_(\d+)\.safetensors")
BATCHES, HEADER = "batches", "partita"
"""The folder of batch files, and the one entry of their metadata. The library writes several in any order."""


class ReportFileError(ValueError):
    """A file of a run's report holds something that this program did not write."""


class Sink(Protocol):
    """Takes the metrics of each step, in order, until it is closed."""

    def step(self, record: StepRecord) -> None:
        """Keep the metrics of one finished step."""
        ...

    def close(self) -> None:
        """Write out what is held back and let go of files and connections."""
        ...


def open_sinks(
    config: ReportConfig, folder: Path, *, run_name: str, settings: Mapping[str, Any], resume_step: int = 0
) -> list[Sink]:
    """`metrics.jsonl` and the trackers of a run folder. `settings` is the resolved config, shown by the trackers.

    resume_step: the last finished step of the run that is continued; 0 starts from nothing. Where one cannot be opened,
    those before it are closed.
    """
    sinks: list[Sink] = []
    with ExitStack() as opened:
        sinks.append(JsonlSink(folder / "metrics.jsonl", resume_step))
        opened.callback(sinks[0].close)
        for name in config.trackers:
            given = {"project": config.tracker_project, "run_name": run_name, "settings": settings}
            sinks.append(open_tracker(name, folder, **given, resume_step=resume_step))
            opened.callback(sinks[-1].close)
        opened.pop_all()  # all of them are open: they stay so
    return sinks


class JsonlSink:
    """One line per step: `{"step": 3, "reward/mean": 0.25, ...}`, on disk before `step` returns.

    A value that is not finite becomes null; `nan_values` then counts them on that line. Raises ReportFileError when a
    complete line of the file that is continued is not a step's record.
    """

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = b"".join(line for line, record in _lines(path) if record.step <= resume_step)
            write_atomic(path, kept)
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def step(self, record: StepRecord) -> None:
        """Append one line."""
        values = {"step": record.step, **record.metrics}
        bad = sum(not math.isfinite(value) for value in record.metrics.values())
        self._file.write(strict_json(values | ({"nan_values": bad} if bad else {})) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[StepRecord]:
    """The records of a `metrics.jsonl`, null as NaN. A last line that a kill cut short is left out.

    Raises ReportFileError for another line that is not a step's record.
    """
    return [record for _, record in _lines(path)]


class SampleSink:
    """All samples of a step as `step_000012.jsonl`, one per line, complete or absent.

    Files after `resume_step` are removed when it opens.
    """

    def __init__(self, folder: Path, *, every: int = 1, compress: bool = False, resume_step: int = 0) -> None:
        self.folder, self.every, self.suffix = folder, every, ".jsonl.gz" if compress else ".jsonl"
        for step, path in numbered(folder, SAMPLE_FILE):
            if step > resume_step:
                path.unlink()

    def due(self, step: int) -> bool:
        """Whether the samples of this step are kept; with `every` 0 none are."""
        return self.every > 0 and step % self.every == 0

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write the rows of one step (see `records.sample_rows`) and return the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:06d}{self.suffix}"
        data = b"".join((strict_json({"step": step, **row}) + "\n").encode() for row in rows)
        # mtime 0: the same samples give the same bytes
        write_atomic(path, gzip.compress(data, mtime=0) if self.suffix.endswith(".gz") else data)
        return path


class BatchSink:
    """The numbers of a step as `step_000012.safetensors`, tensors beside a header of strict JSON; complete or absent.

    The newest `keep` steps stay, all of them for None. Files after `resume_step` are removed when it opens.
    """

    def __init__(self, folder: Path, *, keep: int | None = None, resume_step: int = 0) -> None:
        self.folder, self.keep = folder, keep
        for step, path in numbered(folder, BATCH_FILE):
            if step > resume_step:
                path.unlink()

    def write(self, step: int, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
        """Write one step, remove those that are no longer kept, and return the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:06d}.safetensors"
        # copies: two streams may be one tensor, which the format refuses
        own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        release_threads()  # the thread that writes is not the one that computes: threads of its own would wait for work and spin
        write_atomic(path, save(own, {HEADER: strict_json(header)}))
        for old, file in numbered(self.folder, BATCH_FILE):
            if self.keep is not None and old <= step - self.keep:
                file.unlink()
        return path


def numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The files of a folder whose whole name matches, each with the step in its name, the first step first."""
    found = [(name.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(match[1]), path) for match, path in found if match)


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The rows of one sample file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def strict_json(value: object) -> str:
    """JSON that every parser reads: NaN and infinities as null, text unescaped where it can be encoded."""
    plain = _finite(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    return text if _encodable(text) else json.dumps(plain, allow_nan=False)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves the old content or the new, never a part."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _lines(path: Path) -> Iterator[tuple[bytes, StepRecord]]:
    """Each complete line with its record."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # a kill cut the last line short; its step is run again
            try:
                values = json.loads(line)
                step = int(values.pop("step"))
                metrics = {name: math.nan if value is None else float(value) for name, value in values.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ReportFileError(
                    f"{path}:{number}: not the record of a step ({type(error).__name__}: {error}). Remove this line to go on"
                ) from error
            yield line, StepRecord(step, metrics)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only hold escaped
        return False
    return True
