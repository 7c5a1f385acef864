"""True gradients: a step's first optimizer step through the model itself, for the trained algorithm and for others.

Shapes: T packed trained tokens, S samples.
Left out: optimizer steps after the first one that learned. The weights had moved by then, and are not kept. All is done
on the CPU, in the precision that the run was to be trained in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.tokens import Current
from partita.engine.config import compute_dtype
from partita.models.packed import PackedModel
from partita.ops.packing import micro_batches, pack
from partita.records import Row
from partita.replay.others import Other
from partita.replay.saved import SavedStep
from partita.report.sinks import SAMPLE_FILE, numbered, read_samples
from partita.run import RunConfig
from partita.run_models import load_policy
from partita.runfolder import CHECKPOINTS, RunFolderError
from partita.train.batch import RolloutBatch
from partita.train.checkpoint import load_checkpoint, whole_checkpoints
from partita.train.config import Precision
from partita.train.record import OptimizerStep, as_computed, in_batch_order

MOST = 500_000_000
"""Parameters of the largest model whose gradients are computed here: two of them, and the weights, are held at once."""


@dataclass(frozen=True)
class Gradient:
    """One algorithm's gradient: its norm, and its cosine with the one that was trained. Both None where `missing` says why."""

    norm: float | None
    cosine: float | None
    missing: str = ""


@dataclass(frozen=True)
class Exact:
    """True gradients of optimizer step `number` (counted from 1), at `weights`.

    apart: largest difference between the log-probs of this forward pass and those that were trained with.
    """

    number: int
    weights: str
    apart: float
    gradients: Mapping[str, Gradient]


def exact(folder: Path, config: RunConfig, saved: SavedStep, told: Sequence[Other]) -> Exact:
    """Gradients of several algorithms, the trained one first.

    Raises RunFolderError where the weights or the samples of the step are not there, and for a large model.
    """
    live = [(i, taken) for i, taken in enumerate(saved.record.steps) if taken.current is not None]
    if not live:
        raise RunFolderError(f"step {saved.setting.step} learned nothing: there is no gradient")
    index, taken = live[0]
    rows = _rows(folder, saved)
    model, where = _weights_before(folder, config, saved.setting.step)
    base, found, apart = None, dict[str, Gradient](), 0.0
    for place, other in enumerate(told):
        if other.algorithm is None or "kl_full_ref" in other.algorithm.needs:
            missing = ", and ".join(other.missing) or "the reference model, through which its gradient goes"
            found[other.name] = Gradient(None, None, missing)
            continue
        rollout = RolloutBatch(rows, tuple(other.batch.prompt_S.tolist()), other.batch)
        mine, current = gradient(model, rollout, other.algorithm, taken, config)
        base, apart = mine if place == 0 else base, _apart(current, taken)
        size = math.sqrt(_dot(mine, mine))
        scale = 0.0 if base is None else size * math.sqrt(_dot(base, base))
        found[other.name] = Gradient(size, None if base is None or scale == 0 else _dot(base, mine) / scale)
    return Exact(index + 1, where, apart, found)


def gradient(
    model: PackedModel, rollout: RolloutBatch, algorithm: Algorithm, taken: OptimizerStep, config: RunConfig
) -> tuple[list[Tensor], Current]:
    """The gradient of the loss of an optimizer step whose weights `model` has, by parameter, and the policy's log-probs.

    `rollout` is the whole rollout batch, credited by the algorithm, which moves no sample that the step left out.
    """
    mini = rollout.select(taken.computed).with_batch(as_computed(rollout.batch, algorithm, taken))
    model.zero_grad(set_to_none=True)
    parts = list[tuple[list[int], Current]]()
    for chosen in micro_batches(mini.rows, mini.group_of_sample, config.actor.mb_spec.max_tokens_per_mb):
        micro = mini.select(chosen)
        packed = pack(micro.rows, micro.group_of_sample)
        with precision(config.actor.dtype):
            streams = model(packed, temperature=config.gconfig.temperature, entropy=True)
        # the policy against itself: its divergence is at its minimum, with gradient 0
        old_T = torch.zeros_like(streams.logprobs_T.detach())
        current = Current(streams.logprobs_T, streams.entropy_T, None, old_T)
        algorithm.loss(micro.batch, current).value.backward()
        parts.append((chosen, Current(streams.logprobs_T.detach())))
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return found, in_batch_order(parts, mini.batch.length_S)


def precision(name: Precision) -> AbstractContextManager[Any]:
    """Autocast as the learner does it, on the CPU."""
    dtype = compute_dtype(name, torch.device("cpu"))
    return nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype=dtype)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The inner product in double precision, without whole gradients in it."""
    return sum(float(a.flatten().double() @ b.flatten().double()) for a, b in zip(one, other, strict=True))


def _apart(current: Current, taken: OptimizerStep) -> float:
    assert taken.current is not None, "chosen because it has one"
    return float((current.logprobs_T - taken.current.logprobs_T).abs().max())


def _weights_before(folder: Path, config: RunConfig, step: int) -> tuple[PackedModel, str]:
    """The model as it was before a train step, and what it was loaded from."""
    root, name = folder / CHECKPOINTS, f"step_{step - 1:06d}"
    whole = [path.name for path in whole_checkpoints(root)]
    if step > 1 and name not in whole:
        raise RunFolderError(
            f"--exact needs the weights from before step {step}, {root / name}, which is not there (there are: "
            f"{', '.join(whole) or 'none'}). Step 1 needs none; others need checkpoint.freq_steps=1 and a "
            "checkpoint.keep_last that reaches back to them"
        )
    model = load_policy(config, torch.device("cpu")).model
    size = sum(p.numel() for p in model.parameters())
    if size > MOST:
        raise RunFolderError(
            f"--exact is for small models: {config.actor.path} has {size / 1e6:.0f} M parameters, at most "
            f"{MOST / 1e6:.0f} M are taken. Leave it out: cosines from coefficients need no model"
        )
    if step == 1:
        return model, f"{config.actor.path}, the starting policy"
    load_checkpoint(root / name, model, torch.optim.AdamW(model.parameters()))
    return model, str(root / name)


def _rows(folder: Path, saved: SavedStep) -> tuple[tuple[Row, ...], ...]:
    """The token sequences of the step's samples, prompts included."""
    step = saved.setting.step
    files = dict(numbered(folder / "samples", SAMPLE_FILE))
    if step not in files:
        raise RunFolderError(
            f"--exact needs the prompts of step {step}: {folder / 'samples'} has no file of it (report.save_samples_every)"
        )
    rows = tuple(tuple(map(_row, sample["rows"])) for sample in read_samples(files[step]))
    flat = (row for of_sample in rows for row in of_sample)
    ids = [token for row in flat for token, trained in zip(row.ids, row.trained, strict=True) if trained]
    if ids != saved.ids_T.tolist():
        raise RunFolderError(f"{files[step]} holds other samples than step {step} was trained with")
    return rows


def _row(given: dict[str, Any]) -> Row:
    return Row(given["ids"], given["trained"], given["behaviour_logprobs"], given["versions"])
