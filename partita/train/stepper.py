"""Optimizer steps of one model: its precision, the gradient's norm, and steps that are skipped as something is not finite.

Left out: what the loss is. Whoever adds up gradients calls `move` once per optimizer step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from partita.models.parallel import device_kind, full, is_sharded
from partita.report.metrics import Metrics, Timer
from partita.train.config import OptimizerConfig

Outcome = Literal["stepped", "skipped", "dead"]


class LearnerError(RuntimeError):
    """Training cannot go on; the last checkpoint is untouched."""


def precision(model: nn.Module, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Of a forward pass of the model: autocast, where that is not float32."""
    if dtype == torch.float32:
        return nullcontext()
    # gathered weights are used once, and what is kept of them would undo that they are dropped
    kind = device_kind(next(model.parameters()))
    return torch.autocast(kind, dtype=dtype, cache_enabled=not is_sharded(model))


@dataclass
class Stepper:
    """Owns the optimizer of a model's float32 master weights, or of this rank's part of them, and the count of steps that were
    skipped. A step is taken by all ranks or by none: they know the same loss, and the norm of the whole gradient.

    section: where the model's keys stand in the config. prefix: of its metrics. timer: seconds of the steps as `optimizer`,
    the gradient's norm included.
    """

    model: nn.Module
    spec: OptimizerConfig
    compute_dtype: torch.dtype
    max_nonfinite_steps: int
    timer: Timer
    section: str = "actor"
    prefix: str = ""
    skipped_in_a_row: int = 0
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay, fused=True,
        )  # fmt: skip

    def precision(self) -> AbstractContextManager[Any]:
        """Of a forward pass."""
        return precision(self.model, self.compute_dtype)

    def schedule(self, step: int, total_steps: int, metrics: Metrics) -> None:
        """Set the learning rate of train step `step`, counted from 0."""
        rate = self.spec.rate(step, total_steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        metrics.put(f"{self.prefix}lr", rate)

    def move(self, loss: float, metrics: Metrics, step: int) -> Outcome:
        """Take the optimizer step, or skip it where the loss or the gradient is not finite.

        Raises LearnerError after too many skipped steps in a row.
        """
        with self.timer.timed("optimizer"):
            norm = self._clip()
            finite = math.isfinite(loss) and math.isfinite(norm)
            if finite:
                self.optimizer.step()
            self.optimizer.zero_grad()  # to None: the next gradients are kept where they are made
        metrics.put(f"{self.prefix}loss", loss)
        if not finite:
            self._skip(metrics, step, loss, norm)
            return "skipped"
        self.skipped_in_a_row = 0
        metrics.put(f"{self.prefix}grad_norm", norm)
        metrics.count(f"{self.prefix}optimizer_steps")
        return "stepped"

    def stay(self, metrics: Metrics) -> Outcome:
        """Take no step where nothing could move; what passed through the model all the same left gradients of zero."""
        self.optimizer.zero_grad()
        metrics.count(f"{self.prefix}dead_steps")
        return "dead"

    def _skip(self, metrics: Metrics, step: int, loss: float, norm: float) -> None:
        self.skipped_in_a_row += 1
        metrics.count(f"{self.prefix}nonfinite_steps")
        told = f"loss {loss}, gradient norm {norm}"
        warnings.warn(f"step {step + 1}: optimizer step of {self.section} skipped, {told}", stacklevel=3)
        if self.skipped_in_a_row >= self.max_nonfinite_steps:
            raise LearnerError(
                f"{self.skipped_in_a_row} optimizer steps in a row had a non-finite loss or gradient (last: step {step + 1}, "
                f"{told}). The weights are those before the first of them. Lower {self.section}.optimizer.lr or set "
                f"{self.section}.dtype=float32, and resume from the last checkpoint"
            )

    def _clip(self) -> float:
        """The norm of the gradient, which is brought down to the limit where it is above it, and else left alone."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = full(torch.nn.utils.get_total_norm([p.grad for p in parameters]))
        limit, size = self.spec.gradient_clipping, float(norm)
        if limit is not None and size > limit:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return size

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return {"skipped_in_a_row": self.skipped_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.skipped_in_a_row = state["skipped_in_a_row"]
