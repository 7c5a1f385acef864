"""The numbers of one train step in a file: everything from which its credit and its losses can be computed again.

What has one value for all tokens of a sample (the advantage, mostly) is kept once per sample; whole numbers are kept in
32 bits. Both are undone exactly.
Shapes: T packed trained tokens, S samples, K optimizer steps, M trained tokens of a minibatch.
Left out: prompts, texts and gradients. `samples/` has the first two; the model is needed for the third.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.keys import AlgorithmKeys
from partita.algo.shape import PartsNorm
from partita.algo.tokens import Current
from partita.config.schema import plain
from partita.records import Batch
from partita.report.sinks import BATCH_FILE, BATCHES, HEADER, numbered
from partita.run import RunConfig
from partita.runfolder import RunFolderError
from partita.train.batch import RolloutBatch
from partita.train.record import LearnRecord, OptimizerStep

FORMAT = 2
READS = (1, 2)
"""Format 1 had no samples that were left out of an optimizer step."""
PER_SAMPLE = "@S"
"""Ends the name of a token stream that is kept once per sample."""
SAMPLED = ("n_samples", "max_new_tokens", "temperature")
"""The keys of `gconfig` that an algorithm is composed with, and log-probs are taken at."""


@dataclass(frozen=True)
class Setting:
    """What a step's algorithm was made of, in the stage `stage`.

    keys: dotted path to value of every algorithm key and of what `gconfig` tells it. part_weights: those of the reward
    functions, where it normalises them one by one. controls: what its rules remembered when the optimizer steps began.
    """

    step: int
    stage: int
    algorithm: str | None
    keys: Mapping[str, Any]
    part_weights: tuple[float, ...]
    controls: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class SavedStep:
    """A train step as it was: its setting, the credited rollout batch, and what each optimizer step did.

    ids_T: the tokens themselves.
    """

    setting: Setting
    ids_T: Tensor
    batch: Batch
    record: LearnRecord


def setting_of(
    step: int, stage: int, config: RunConfig, algorithm: Algorithm, controls: Mapping[str, Mapping[str, float]]
) -> Setting:
    """The setting of train step `step` (counted from 1) under a stage's config."""
    keys = {f"actor.{item.name}": plain(getattr(config.actor, item.name)) for item in fields(AlgorithmKeys)}
    keys |= {f"gconfig.{name}": getattr(config.gconfig, name) for name in SAMPLED}
    weights = next((part.weights for part in algorithm.shape if isinstance(part, PartsNorm)), ())
    return Setting(step, stage, config.algorithm, keys, weights, controls)


def saved(setting: Setting, rollout: RolloutBatch, record: LearnRecord) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the header, of a step whose `rollout` has been credited."""
    batch = rollout.batch
    tensors = {"length_S": _narrow(batch.length_S), "ids_T": _narrow(_trained_ids(rollout))}
    for item in fields(Batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor) and item.name != "seq_T":
            tensors |= _packed(f"batch/{item.name}", value, batch)
    for index, taken in enumerate(record.steps):
        tensors[_of_step(index, "samples")] = torch.tensor(taken.samples, dtype=torch.int32)
        if taken.left_out:
            tensors[_of_step(index, "left_out")] = torch.tensor(taken.left_out, dtype=torch.int32)
        if taken.current is not None:
            streams = {item.name: getattr(taken.current, item.name) for item in fields(Current)}
            tensors |= {_of_step(index, name): value for name, value in streams.items() if value is not None}
    tensors["losses_K"] = torch.tensor([taken.loss for taken in record.steps], dtype=torch.float64)
    header = {
        "format": FORMAT, "step": setting.step, "stage": setting.stage, "algorithm": setting.algorithm,
        "keys": setting.keys, "part_weights": setting.part_weights, "controls": setting.controls,
        "train_version": batch.train_version,
        "outcomes": [taken.outcome for taken in record.steps], "unmoved": [taken.unmoved for taken in record.steps],
    }  # fmt: skip
    return tensors, header


def read_step(folder: Path, step: int) -> SavedStep:
    """The numbers of train step `step` of the run in `folder`.

    Raises RunFolderError where they are not there or cannot be read, with the steps that are there.
    """
    files = dict(numbered(folder / BATCHES, BATCH_FILE))
    if step not in files:
        raise RunFolderError(
            f"{folder} has no numbers of step {step}; it has those of: {_spans(list(files))} (report.keep_batches says how "
            "many stay)"
        )
    try:
        with safe_open(files[step], "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        if header["format"] not in READS:
            raise ValueError(
                f"format {header['format']}, and this version of partita reads {' and '.join(map(str, READS))}"
            )
        return _assembled(tensors, header)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        others = _spans([one for one in files if one != step])
        reason = f"{type(error).__name__}: {error}"
        raise RunFolderError(f"{files[step]} cannot be read ({reason}); other steps there: {others}") from error


def _assembled(tensors: dict[str, Tensor], header: dict[str, Any]) -> SavedStep:
    length_S = tensors["length_S"].long()
    seq_T = torch.repeat_interleave(torch.arange(len(length_S)), length_S)
    streams: dict[str, Any] = {"seq_T": seq_T, "train_version": header["train_version"]}
    for name, value in tensors.items():
        if name.startswith("batch/"):
            stream, once, _ = name.removeprefix("batch/").partition(PER_SAMPLE)
            streams[stream] = _wide(value)[seq_T] if once else _wide(value)
    controls = {
        rule: {name: math.nan if number is None else number for name, number in state.items()}
        for rule, state in header["controls"].items()
    }
    setting = Setting(
        header["step"], header["stage"], header["algorithm"], header["keys"], tuple(header["part_weights"]), controls
    )
    taken = zip(header["outcomes"], header["unmoved"], tensors["losses_K"].tolist(), strict=True)
    steps = tuple(_optimizer_step(tensors, index, *facts) for index, facts in enumerate(taken))
    return SavedStep(setting, _wide(tensors["ids_T"]), Batch(**streams), LearnRecord(steps))


def _optimizer_step(tensors: dict[str, Tensor], index: int, outcome: Any, unmoved: bool, loss: float) -> OptimizerStep:
    streams = {item.name: tensors.get(_of_step(index, item.name)) for item in fields(Current)}
    logprobs_M = streams.pop("logprobs_T")
    current = None if logprobs_M is None else Current(logprobs_M, **streams)
    samples = tuple(tensors[_of_step(index, "samples")].tolist())
    left_out = tensors.get(_of_step(index, "left_out"))
    return OptimizerStep(samples, current, loss, outcome, unmoved, () if left_out is None else tuple(left_out.tolist()))


def _of_step(index: int, name: str) -> str:
    return f"step/{index:03d}/{name}"


def _trained_ids(rollout: RolloutBatch) -> Tensor:
    rows = (row for rows in rollout.rows for row in rows)
    return torch.tensor([token for row in rows for token in compress(row.ids, row.trained)], dtype=torch.long)


def _packed(name: str, value: Tensor, batch: Batch) -> dict[str, Tensor]:
    """The stream under its name; one value per sample where all its tokens have the same."""
    value = _narrow(value)
    if name.endswith("_T"):
        value_S = value.new_zeros(batch.samples)
        value_S[batch.seq_T] = value  # any one of the sample's tokens: they are equal, or the next line says no
        if torch.equal(value_S[batch.seq_T], value):
            return {name + PER_SAMPLE: value_S}
    return {name: value}


def _narrow(value: Tensor) -> Tensor:
    """Whole numbers in 32 bits where they fit."""
    if value.dtype != torch.long or value.numel() == 0:
        return value
    limits = torch.iinfo(torch.int32)
    fits = limits.min <= int(value.min()) and int(value.max()) <= limits.max
    return value.to(torch.int32) if fits else value


def _wide(value: Tensor) -> Tensor:
    return value.long() if value.dtype == torch.int32 else value


def _spans(steps: Sequence[int]) -> str:
    """The steps in words, runs of them joined: `1 to 4, 7`."""
    spans = list[list[int]]()
    for step in sorted(steps):
        if spans and step == spans[-1][-1] + 1:
            spans[-1][1:] = [step]
        else:
            spans.append([step])
    return ", ".join(" to ".join(map(str, span)) for span in spans) or "none"
