"""The learner: scores a rollout batch, then takes its optimizer steps as sums over micro-batches.

It knows an algorithm only by `needs`, `center.scored`, `weights`, `loss`, `has_signal`: no formula of any is here.

Shapes: T packed trained tokens, S samples.
Left out: more than one rank (a step is a plain sum, so ranks will add their parts), and the critic.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.stats import Stat, mean_over
from partita.algo.tokens import Current
from partita.models.packed import Against, PackedModel
from partita.ops.divergence import k3
from partita.ops.packing import micro_batches, pack
from partita.report.metrics import Metrics
from partita.train.batch import RolloutBatch
from partita.train.config import ActorConfig
from partita.train.minibatches import minibatches
from partita.train.record import LearnRecord, OptimizerStep, Outcome, detached, in_batch_order, weighed


class LearnerError(RuntimeError):
    """Training cannot go on; the last checkpoint is untouched."""


@dataclass
class Learner:
    """Owns the policy's master weights, its optimizer and the counters of skipped steps.

    reference: the frozen model of the KL terms, on the policy's device.
    """

    model: PackedModel
    config: ActorConfig
    compute_dtype: torch.dtype
    temperature: float
    total_steps: int
    seed: int
    reference: PackedModel | None = None
    skipped_in_a_row: int = 0
    optimizer: torch.optim.AdamW = field(init=False)
    _old: PackedModel | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        spec = self.config.optimizer
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay, fused=True,
        )  # fmt: skip

    @property
    def planned_steps(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.config.ppo_epochs * self.config.ppo_n_minibatches

    def score(self, rollout: RolloutBatch, algorithm: Algorithm) -> RolloutBatch:
        """Add what credit or several optimizer steps need from before the first of them, without gradient: the policy's
        log-probs and entropies, and the reference's log-probs.

        Raises LearnerError for an algorithm that needs a critic.
        """
        needs, streams = algorithm.needs, dict[str, Tensor | None]()
        if "values" in needs:
            raise LearnerError(
                "the algorithm reads values (actor.credit=gae), which come from a critic: this version composes and explains "
                "PPO with a critic but cannot train it; take actor.credit=outcome or reward_to_go"
            )
        if needs & {"prox", "old_entropy"} or (self.planned_steps > 1 and algorithm.center.scored):
            against = Against(self.reference if "kl_full_score" in needs else None)
            scored = self._scored(self.model, rollout, entropy="old_entropy" in needs, against=against)
            streams |= {"prox_T": scored.logprobs_T, "entropy_T": scored.entropy_T, "kl_full_T": scored.kl_full_ref_T}
        if "ref" in needs:
            assert self.reference is not None, "composed with a reference, built without one"
            streams["ref_T"] = self._scored(self.reference, rollout).logprobs_T
        return rollout.with_batch(rollout.batch.with_(**streams))

    def learn(self, rollout: RolloutBatch, algorithm: Algorithm, step: int) -> tuple[Metrics, LearnRecord]:
        """All optimizer steps of one rollout batch. Raises LearnerError after too many non-finite steps in a row."""
        metrics, steps = Metrics(), list[OptimizerStep]()
        rate = self.config.optimizer.rate(step, self.total_steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        metrics.put("lr", rate)
        if not rollout.rows:  # the filter left nothing
            metrics.count("dead_steps")
        against, unmoved = self._against(algorithm), True
        for epoch in range(self.config.ppo_epochs):
            split = (self.config.ppo_n_minibatches, self.config.minibatch_split, (self.seed, step, epoch))
            for chosen in minibatches(rollout.group_of_sample, *split):
                mini = rollout.select(chosen)
                mini = mini.with_batch(weighed(mini.batch, algorithm, unmoved))
                now = replace(against, old=None) if unmoved else against
                parts, loss = self._accumulate(mini, algorithm, now, metrics)
                outcome = self._move(loss, metrics, step) if parts else "dead"
                current = in_batch_order(parts, mini.batch.length_S) if parts else None
                steps.append(OptimizerStep(tuple(chosen), current, loss, outcome, unmoved))
                unmoved = unmoved and outcome != "stepped"
        if "kl_after" in algorithm.needs:
            metrics.add({"kl_after/k3": self._moved_by(rollout)})
        return metrics, LearnRecord(tuple(steps))

    def _moved_by(self, rollout: RolloutBatch) -> Stat:
        """KL(old ‖ new) per valid token, after the last optimizer step."""
        assert rollout.batch.prox_T is not None, "who reads the divergence afterwards has the old log-probs scored"
        log_ratio_T = rollout.batch.prox_T - self._scored(self.model, rollout).logprobs_T
        valid_T = rollout.batch.valid_S[rollout.batch.seq_T] & torch.isfinite(log_ratio_T)
        return mean_over(k3(torch.where(valid_T, log_ratio_T, 0.0)), valid_T)

    def _against(self, algorithm: Algorithm) -> Against:
        """The models whose whole distributions the loss reads. The policy of now is copied only if it will move under
        the loss's feet: before the first optimizer step the old policy is the current one.

        The copy has the master weights' own precision, and autocast does to it what it does to them. Rounded weights
        alone are 0.0015 nats away from SmolLM2-135M in bfloat16, of the size of the divergence that is to be held.
        """
        reference = self.reference if "kl_full_ref" in algorithm.needs else None
        if "kl_full_old" not in algorithm.needs or self.planned_steps == 1:
            return Against(reference)
        if self._old is None:
            self._old = copy.deepcopy(self.model).requires_grad_(False).eval()
        with torch.no_grad():
            for old, now in zip(self._old.parameters(), self.model.parameters(), strict=True):
                old.copy_(now)
        return Against(reference, self._old)

    def _accumulate(
        self, mini: RolloutBatch, algorithm: Algorithm, against: Against, metrics: Metrics
    ) -> tuple[list[tuple[list[int], Current]], float]:
        """Add the gradients of a minibatch. Gives what the policy said in each micro-batch, and the loss; nothing where
        nothing could move.
        """
        parts, loss = list[tuple[list[int], Current]](), 0.0
        if not bool(algorithm.has_signal(mini.batch)):
            metrics.count("dead_steps")
            return parts, loss
        for chosen in micro_batches(mini.rows, mini.group_of_sample, self.config.mb_spec.max_tokens_per_mb):
            micro = mini.select(chosen)
            current = self._current(micro, algorithm, against)
            part = algorithm.loss(micro.batch, current)
            part.value.backward()
            loss += float(part.value.detach())
            parts.append((chosen, detached(current)))
            metrics.add(part.stats)
            assert micro.batch.weight_T is not None, "weights come before micro-batches"
            metrics.count("effective_tokens", float((micro.batch.weight_T != 0).sum()))
        return parts, loss

    def _current(self, micro: RolloutBatch, algorithm: Algorithm, against: Against) -> Current:
        """The policy's streams with gradient."""
        packed = pack(micro.rows, micro.group_of_sample)
        with self._precision():
            streams = self.model(packed, temperature=self.temperature, entropy=True, against=against)
        old_T = streams.kl_full_old_T
        if "kl_full_old" in algorithm.needs and against.old is None:
            # the policy against itself, where the divergence is at its minimum: 0, with gradient 0
            old_T = torch.zeros_like(streams.logprobs_T.detach())
        return Current(streams.logprobs_T, streams.entropy_T, streams.kl_full_ref_T, old_T)

    def _move(self, loss: float, metrics: Metrics, step: int) -> Outcome:
        """Take the optimizer step, or skip it where the loss or the gradient is not finite."""
        norm = self._clip()
        metrics.put("loss", loss)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizer.step()
            self.skipped_in_a_row = 0
            metrics.put("grad_norm", norm)
            metrics.count("optimizer_steps")
        else:
            self._skip(metrics, step, loss, norm)
        self.optimizer.zero_grad(set_to_none=False)
        return "stepped" if finite else "skipped"

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
    def _scored(
        self, model: PackedModel, rollout: RolloutBatch, *, entropy: bool = False, against: Against | None = None
    ) -> Current:
        """Log-probs [T], and what else is asked, of the whole batch in its own token order, whatever the micro-batches."""
        parts: list[tuple[list[int], Current]] = []
        for chosen in micro_batches(rollout.rows, rollout.group_of_sample, self.config.mb_spec.max_tokens_per_mb):
            micro = rollout.select(chosen)
            with self._precision():
                packed = pack(micro.rows, micro.group_of_sample)
                streams = model(packed, temperature=self.temperature, entropy=entropy, against=against)
            current = Current(streams.logprobs_T, streams.entropy_T, streams.kl_full_ref_T)
            parts.append((chosen, detached(current)))
        return in_batch_order(parts, rollout.batch.length_S)

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
