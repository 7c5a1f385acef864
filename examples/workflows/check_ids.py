"""Was trained on what was sampled? Puts a record around a run's engine, and compares it with the run's files.

For every trajectory: the ids, log-probs and weight versions that the engine returned, call by call, against the rows in
`samples/` and the numbers in `batches/` that the optimizer steps were computed from. What stands between two turns must be
untrained: no weight, no log-prob, no version.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.build import build
from partita.engine.api import Completion, Engine, Request
from partita.extras import Extras
from partita.loop import train as train_loop
from partita.replay.saved import read_step
from partita.run import RunConfig

Calls = list[tuple[Request, "Future[Completion]"]]


@dataclass
class Recorder:
    """An engine that keeps what the engine in it was asked and has returned, by group and sample."""

    engine: Engine
    calls: dict[tuple[int, int], Calls] = field(default_factory=dict[tuple[int, int], Calls])

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """See `Engine`."""
        futures = self.engine.submit(requests)
        for request, future in zip(requests, futures, strict=True):
            self.calls.setdefault((request.draw.serial, request.draw.sample), []).append((request, future))
        return futures

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Engine`."""
        self.engine.publish(weights, version)

    def close(self) -> None:
        """See `Engine`."""
        self.engine.close()


@dataclass
class Checked:
    """What was compared. told: untrained tokens after the prompts, which tools and templates put there."""

    folder: Path
    trajectories: int = 0
    calls: int = 0
    trained: int = 0
    told: int = 0
    differences: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        counted = (
            f"{self.trajectories} trajectories, {self.calls} turns, {self.trained} trained tokens, {self.told} of tools"
        )
        return "\n".join([f"{len(self.differences)} differences in {counted}", *self.differences[:5]])


def recorded(config: RunConfig) -> tuple[Path, Recorder]:
    """A run by this config: its folder, and all that its engine was asked for training."""

    async def whole() -> tuple[Path, Recorder]:
        with build(config, Extras()) as run:
            recorder = Recorder(run.rollouts.engine)
            run.rollouts.engine = recorder
            await train_loop(run)
            return run.folder, recorder

    return asyncio.run(whole())


def check(folder: Path, recorder: Recorder) -> Checked:
    """Compare all samples that a run trained on with the record. The run keeps samples and numbers of every step."""
    checked = Checked(folder)
    for path in sorted((folder / "samples").glob("step_*.jsonl")):
        samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        said = [[future.result() for _, future in recorder.calls[one["group"], one["sample"]]] for one in samples]
        asked = [[request for request, _ in recorder.calls[one["group"], one["sample"]]] for one in samples]
        for sample, requests, completions in zip(samples, asked, said, strict=True):
            name = f"{path.name}, group {sample['group']}, sample {sample['sample']}"
            checked.trajectories += 1
            checked.calls += len(completions)
            checked.differences += [f"{name}: {what}" for what in _row_differences(sample, requests, completions)]
            (row,) = sample["rows"]
            checked.trained += sum(row["trained"])
            checked.told += len(row["ids"]) - sum(row["trained"]) - len(requests[0].prompt_ids)
        step = int(path.stem.removeprefix("step_"))
        checked.differences += [f"step {step}: {what}" for what in _batch_differences(folder, step, said)]
    return checked


def _row_differences(sample: dict[str, Any], requests: Sequence[Request], said: Sequence[Completion]) -> list[str]:
    """Of one trajectory: each request must be what stands in the row before the turn, each turn must stand there as it came back,
    and nothing else may be trained.
    """
    (row,) = sample["rows"]
    wanted = {"trained": list[bool](), "behaviour_logprobs": list[float](), "versions": list[int](), "ids": list[int]()}
    for request, completion in zip(requests, said, strict=True):
        between = list(request.prompt_ids[len(wanted["ids"]) :])
        if list(request.prompt_ids[: len(wanted["ids"])]) != wanted["ids"]:
            return ["a turn was not sampled from what came before it"]
        wanted["ids"] += [*between, *completion.ids]
        wanted["trained"] += [*[False] * len(between), *[True] * len(completion.ids)]
        wanted["behaviour_logprobs"] += [*[0.0] * len(between), *completion.logprobs]
        wanted["versions"] += [*[-1] * len(between), *completion.versions]
    found = [f"{name} differ" for name, values in wanted.items() if row[name] != values]
    if sample["advantages"] is not None and len(sample["advantages"]) != sum(len(one.ids) for one in said):
        found.append("advantages are not of the sampled tokens alone")
    return found


def _batch_differences(folder: Path, step: int, said: Sequence[Sequence[Completion]]) -> list[str]:
    """Of the numbers that the step was computed from: its tokens are all that was sampled, and nothing else."""
    saved = read_step(folder, step)
    flat = [one for turns in said for one in turns]
    lengths = [sum(len(one.ids) for one in turns) for turns in said]
    logprobs = [value for one in flat for value in one.logprobs]
    pairs = {
        "tokens": (saved.ids_T.tolist(), [value for one in flat for value in one.ids]),
        "lengths": (saved.batch.length_S.tolist(), lengths),
        "log-probs": (None if saved.batch.behaviour_T is None else saved.batch.behaviour_T.tolist(), logprobs),
        "versions": (None if saved.batch.version_T is None else saved.batch.version_T.tolist(),
                     [value for one in flat for value in one.versions]),
    }  # fmt: skip
    return [
        f"{name} of the batch differ"
        for name, (found, wanted) in pairs.items()
        if found is not None and found != wanted
    ]
