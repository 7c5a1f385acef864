"""The learner: scores a rollout batch, then takes its optimizer steps as sums over micro-batches.

It knows an algorithm only by `needs`, `weights`, `loss`, `has_signal`: no formula of any algorithm is here.

Shapes: T packed trained tokens, S samples.
Left out: more than one rank. A step is a plain sum, so ranks will add their parts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.models.packed import PackedModel
from partita.ops.packing import micro_batches, pack
from partita.report.metrics import Metrics
from partita.train.batch import RolloutBatch
from partita.train.config import ActorConfig
from partita.train.minibatches import minibatches


class LearnerError(RuntimeError):
    """Training cannot go on; the last checkpoint is untouched."""


@dataclass
class Learner:
    """Owns the policy's master weights, its optimizer and the counters of skipped steps."""

    model: PackedModel
    config: ActorConfig
    compute_dtype: torch.dtype
    temperature: float
    total_steps: int
    seed: int
    reference: PackedModel | None = None
    skipped_in_a_row: int = 0
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        spec = self.config.optimizer
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay, fused=True,
        )  # fmt: skip

    def score(self, rollout: RolloutBatch, algorithm: Algorithm) -> RolloutBatch:
        """Add the streams that credit or several optimizer steps need: proximal and reference log-probs, no gradient."""
        streams: dict[str, Tensor] = {}
        steps = self.config.ppo_epochs * self.config.ppo_n_minibatches
        if "prox" in algorithm.needs or steps > 1:
            streams["prox_T"] = self._logprobs(self.model, rollout)
        if "ref" in algorithm.needs:
            assert self.reference is not None, "composed with a reference, built without one"
            streams["ref_T"] = self._logprobs(self.reference, rollout)
        return rollout.with_batch(rollout.batch.with_(**streams))

    def learn(self, rollout: RolloutBatch, algorithm: Algorithm, step: int) -> Metrics:
        """All optimizer steps of one rollout batch. Raises LearnerError after too many non-finite steps in a row."""
        metrics = Metrics()
        rate = self.config.optimizer.rate(step, self.total_steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        metrics.put("lr", rate)
        if not rollout.rows:  # the filter left nothing
            metrics.count("dead_steps")
        first = True
        for epoch in range(self.config.ppo_epochs):
            split = (self.config.ppo_n_minibatches, self.config.minibatch_split, (self.seed, step, epoch))
            for chosen in minibatches(rollout.group_of_sample, *split):
                mini = rollout.select(chosen)
                # nothing has moved yet: the trainer's own log-prob is the clip centre, and the ratio is exactly 1
                batch = mini.batch.with_(prox_T=None) if first else mini.batch
                self._optimizer_step(mini.with_batch(algorithm.weights(batch)), algorithm, metrics, step)
                first = False
        return metrics

    def _optimizer_step(self, mini: RolloutBatch, algorithm: Algorithm, metrics: Metrics, step: int) -> None:
        if not bool(algorithm.has_signal(mini.batch)):
            metrics.count("dead_steps")
            return
        loss = 0.0
        for chosen in micro_batches(mini.rows, mini.group_of_sample, self.config.mb_spec.max_tokens_per_mb):
            micro = mini.select(chosen)
            packed = pack(micro.rows, micro.group_of_sample)
            with self._precision():
                streams = self.model(packed, temperature=self.temperature, entropy=True)
            part = algorithm.loss(micro.batch, streams.logprobs_T, streams.entropy_T)
            part.value.backward()
            loss += float(part.value.detach())
            metrics.add(part.stats)
            assert micro.batch.weight_T is not None, "weights come before micro-batches"
            metrics.count("effective_tokens", float((micro.batch.weight_T != 0).sum()))
        norm = self._clip()
        metrics.put("loss", loss)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            self.skipped_in_a_row = 0
            metrics.put("grad_norm", norm)
            metrics.count("optimizer_steps")
        else:
            self._skip(metrics, step, loss, norm)
        self.optimizer.zero_grad(set_to_none=False)

    def _skip(self, metrics: Metrics, step: int, loss: float, norm: float) -> None:
        self.skipped_in_a_row += 1
        metrics.count("nonfinite_steps")
        warnings.warn(f"step {step + 1}: optimizer step skipped, loss {loss}, gradient norm {norm}", stacklevel=2)
        if self.skipped_in_a_row >= self.config.max_nonfinite_steps:
            raise LearnerError(
                f"{self.skipped_in_a_row} optimizer steps in a row had a non-finite loss or gradient (last: step {step + 1}, "
                f"loss {loss}, gradient norm {norm}). The weights are those before the first of them. Lower actor.optimizer.lr "
                "or set actor.dtype=float32, and resume from the last checkpoint"
            )

    def _clip(self) -> float:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        limit = self.config.optimizer.gradient_clipping
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        return float(norm)

    @torch.no_grad()
    def _logprobs(self, model: PackedModel, rollout: RolloutBatch) -> Tensor:
        """Log-probs [T] of the whole batch in its own token order, whatever the micro-batches."""
        starts = torch.cumsum(rollout.batch.length_S, 0) - rollout.batch.length_S
        out_T = torch.zeros(rollout.batch.seq_T.shape[0], dtype=torch.float32)
        for chosen in micro_batches(rollout.rows, rollout.group_of_sample, self.config.mb_spec.max_tokens_per_mb):
            micro = rollout.select(chosen)
            with self._precision():
                streams = model(pack(micro.rows, micro.group_of_sample), temperature=self.temperature)
            lengths = micro.batch.length_S.tolist()
            for s, values in zip(chosen, streams.logprobs_T.float().cpu().split(lengths), strict=True):
                out_T[starts[s] : starts[s] + len(values)] = values
        return out_T

    def _precision(self) -> AbstractContextManager[Any]:
        device = next(self.model.parameters()).device.type
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device, dtype=self.compute_dtype)

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return {"skipped_in_a_row": self.skipped_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.skipped_in_a_row = state["skipped_in_a_row"]
