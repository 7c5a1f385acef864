"""The learner: scores a rollout batch, then takes its optimizer steps as sums over micro-batches.

It knows an algorithm only by `needs`, `center.scored`, `weights`, `loss`, `moving_S`: no formula of any is here.

Shapes: T packed trained tokens, S samples.
Left out: more than one rank (a step is a plain sum, so ranks will add their parts), and a critic of its own weights, which
is `train.critic`; one that shares the policy's learns here, in the same backward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.stats import Stat, Stats, mean_over
from partita.algo.tokens import Current
from partita.models.offload import resident
from partita.models.packed import Against, PackedModel
from partita.ops.divergence import k3
from partita.ops.packing import Packed, micro_batches, pack
from partita.records import Batch
from partita.report.metrics import Metrics, Timer
from partita.train.batch import RolloutBatch
from partita.train.config import ActorConfig
from partita.train.minibatches import minibatches
from partita.train.record import LearnRecord, OptimizerStep, detached, in_batch_order, weighed
from partita.train.stepper import Stepper


@dataclass(frozen=True)
class _Reading:
    """How one model reads a batch without gradient: whether its entropies are asked for, and what it is compared with."""

    model: PackedModel
    entropy: bool = False
    against: Against | None = None


@dataclass
class Learner:
    """Owns the policy's master weights and takes their optimizer steps.

    reference: the frozen model of the KL terms; where it waits elsewhere than the policy is, it is fetched for each use.
    vf_coef: weight of the value loss where the policy carries the value head, else None. timer: seconds in models
    (`forward_backward`, the loss included) and in the optimizer's steps (`optimizer`).
    """

    model: PackedModel
    config: ActorConfig
    compute_dtype: torch.dtype
    temperature: float
    total_steps: int
    seed: int
    reference: PackedModel | None = None
    vf_coef: float | None = None
    timer: Timer = field(default_factory=Timer)
    stepper: Stepper = field(init=False)
    _old: PackedModel | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.stepper = Stepper(
            self.model, self.config.optimizer, self.compute_dtype, self.config.max_nonfinite_steps, self.timer
        )

    @property
    def planned_steps(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.config.ppo_epochs * self.config.ppo_n_minibatches

    def score(self, rollout: RolloutBatch, algorithm: Algorithm) -> RolloutBatch:
        """Add what credit or several optimizer steps need from before the first of them, without gradient: the policy's
        log-probs and entropies, and the reference's log-probs. Values are the critic's to add.
        """
        needs, readings, streams = algorithm.needs, dict[str, _Reading](), dict[str, Tensor | None]()
        if needs & {"prox", "old_entropy"} or (self.planned_steps > 1 and algorithm.center.scored):
            against = Against(self.reference if "kl_full_score" in needs else None)
            readings["policy"] = _Reading(self.model, "old_entropy" in needs, against)
        if "ref" in needs:
            assert self.reference is not None, "composed with a reference, built without one"
            readings["reference"] = _Reading(self.reference)
        with self._fetched(bool(needs & {"ref", "kl_full_score"})):
            said = self._scored(rollout, readings)
        if "policy" in said:
            old = said["policy"]
            streams |= {"prox_T": old.logprobs_T, "entropy_T": old.entropy_T, "kl_full_T": old.kl_full_ref_T}
        if "reference" in said:
            streams["ref_T"] = said["reference"].logprobs_T
        return rollout.with_batch(rollout.batch.with_(**streams))

    def learn(
        self, rollout: RolloutBatch, algorithm: Algorithm, step: int, *, whole: bool = False
    ) -> tuple[Metrics, LearnRecord]:
        """All optimizer steps of one rollout batch; `whole`: all samples pass through the model, as something may read
        metrics of the loss. Raises LearnerError after too many non-finite steps in a row.
        """
        metrics = Metrics()
        self.stepper.spec = self.config.optimizer  # a stage may have its own
        self.stepper.schedule(step, self.total_steps, metrics)
        if not rollout.rows:  # the filter left nothing
            metrics.count("dead_steps")
        with self._fetched("kl_full_ref" in algorithm.needs):
            steps = self._steps(rollout, algorithm, metrics, step, whole)
        if "kl_after" in algorithm.needs:
            metrics.add({"kl_after/k3": self._moved_by(rollout)})
        return metrics, LearnRecord(tuple(steps))

    def _fetched(self, used: bool) -> AbstractContextManager[None]:
        """The reference beside the policy, where it is used."""
        return resident(self.reference, self.model.device) if used else nullcontext()

    def _steps(
        self, rollout: RolloutBatch, algorithm: Algorithm, metrics: Metrics, step: int, whole: bool
    ) -> list[OptimizerStep]:
        """One for each minibatch of each epoch."""
        against, unmoved, steps = self._against(algorithm), True, list[OptimizerStep]()
        vf_coef = None if algorithm.value is None else self.vf_coef  # a stage may need no critic
        for epoch in range(self.config.ppo_epochs):
            split = (self.config.ppo_n_minibatches, self.config.minibatch_split, (self.seed, step, epoch))
            for chosen in minibatches(rollout.group_of_sample, *split):
                mini = rollout.select(chosen)
                mini = mini.with_batch(weighed(mini.batch, algorithm, unmoved))
                now = replace(against, old=None) if unmoved else against
                moving_S = algorithm.moving_S(mini.batch)
                if vf_coef is not None:
                    moving_S = moving_S | algorithm.valued_S(mini.batch)
                moves = bool(moving_S.any())
                everything = not self.config.skip_dead_samples or (whole and moves)
                computed_S = torch.ones_like(moving_S) if everything else moving_S
                _count(mini.batch, computed_S, metrics)
                computed = mini.select(_places(computed_S))
                current, loss, value_loss = self._accumulate(computed, algorithm, now, vf_coef, metrics)
                if vf_coef is not None and moves:
                    metrics.put("critic/loss", value_loss / vf_coef)
                outcome = self.stepper.move(loss + value_loss, metrics, step) if moves else self.stepper.stay(metrics)
                left_out = tuple(chosen[place] for place in _places(~computed_S))
                steps.append(OptimizerStep(tuple(chosen), current, loss, outcome, unmoved, left_out))
                unmoved = unmoved and outcome != "stepped"
        return steps

    def _moved_by(self, rollout: RolloutBatch) -> Stat:
        """KL(old ‖ new) per valid token, after the last optimizer step."""
        assert rollout.batch.prox_T is not None, "who reads the divergence afterwards has the old log-probs scored"
        now = self._scored(rollout, {"policy": _Reading(self.model)})["policy"]
        log_ratio_T = rollout.batch.prox_T - now.logprobs_T
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
            # what is frozen under adapters is the same before and after
            same: dict[int, Any] = {id(p): p for p in self.model.parameters() if not p.requires_grad}
            self._old = copy.deepcopy(self.model, same).requires_grad_(False).eval()
        with torch.no_grad():
            for old, now in zip(self._old.parameters(), self.model.parameters(), strict=True):
                old.copy_(now)
        return Against(reference, self._old)

    def _accumulate(
        self, computed: RolloutBatch, algorithm: Algorithm, against: Against, vf_coef: float | None, metrics: Metrics
    ) -> tuple[Current | None, float, float]:
        """Add the gradients of what is to be computed of a minibatch. Gives what the policy said about it, None where it is
        nothing, the policy's loss, and the value loss beside it, times its weight.
        """
        parts, losses, stats = list[tuple[list[int], Current]](), list[Tensor](), list[Stats]()
        for chosen, micro, packed in self._micro_batches(computed):
            with self.timer.timed("forward_backward"):
                current, values_T = self._current(packed, algorithm, against, valued=vf_coef is not None)
                loss, beside = algorithm.loss(micro.batch, current), None
                if values_T is not None and vf_coef is not None:
                    valued = algorithm.value_loss(micro.batch, values_T)
                    beside = vf_coef * valued.value
                    stats.append(valued.stats)
                (loss.value if beside is None else loss.value + beside).backward()
            parts.append((chosen, detached(current)))
            both = (loss.value, torch.zeros_like(loss.value) if beside is None else beside)
            losses.append(torch.stack(both).detach())
            stats.append(loss.stats)
        if not losses:
            return None, 0.0, 0.0
        with self.timer.timed("forward_backward"):  # no number is read before: a device would be waited for
            of_policy, of_values = (sum(column) for column in zip(*torch.stack(losses).tolist(), strict=True))
        for found in stats:
            metrics.add(found)
        return in_batch_order(parts, computed.batch.length_S), of_policy, of_values

    def _micro_batches(self, rollout: RolloutBatch) -> Iterator[tuple[list[int], RolloutBatch, Packed]]:
        """The samples of each micro-batch, the micro-batch, and its model input."""
        chosen = micro_batches(rollout.rows, rollout.group_of_sample, self.config.mb_spec.max_tokens_per_mb)
        for samples, micro in zip(chosen, rollout.split(chosen), strict=True):
            yield samples, micro, pack(micro.rows, micro.group_of_sample)

    def _current(
        self, packed: Packed, algorithm: Algorithm, against: Against, *, valued: bool
    ) -> tuple[Current, Tensor | None]:
        """The policy's streams with gradient, and values where they are asked for."""
        asked: dict[str, Any] = {"entropy": True, "against": against}
        if valued:
            asked["values"] = True
        with self.stepper.precision():
            streams = self.model(packed, temperature=self.temperature, **asked)
        old_T = streams.kl_full_old_T
        if "kl_full_old" in algorithm.needs and against.old is None:
            # the policy against itself, where the divergence is at its minimum: 0, with gradient 0
            old_T = torch.zeros_like(streams.logprobs_T.detach())
        return Current(streams.logprobs_T, streams.entropy_T, streams.kl_full_ref_T, old_T), streams.values_T

    @torch.no_grad()
    def _scored(self, rollout: RolloutBatch, readings: Mapping[str, _Reading]) -> dict[str, Current]:
        """What each model says of the whole batch, in its own token order, whatever the micro-batches; all of them read the
        same packed input.
        """
        parts = {name: list[tuple[list[int], Current]]() for name in readings}
        for chosen, _, packed in self._micro_batches(rollout) if readings else ():
            for name, reading in readings.items():
                with self.timer.timed("forward_backward"), self.stepper.precision():
                    asked = {"entropy": reading.entropy, "against": reading.against}
                    streams = reading.model(packed, temperature=self.temperature, **asked)
                said = Current(streams.logprobs_T, streams.entropy_T, streams.kl_full_ref_T)
                parts[name].append((chosen, detached(said)))
        with self.timer.timed("forward_backward"):  # a device is waited for here
            return {name: in_batch_order(found, rollout.batch.length_S) for name, found in parts.items()}

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return self.stepper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.stepper.load_state_dict(state)


def _count(batch: Batch, computed_S: Tensor, metrics: Metrics) -> None:
    """What of a weighed minibatch is left out.

    The weights have their denominators from all samples, so to leave one out that adds nothing to the sum is exact.
    """
    length_S, left_out_S = batch.length_S, (~computed_S).long()
    metrics.add(
        {
            "skipped_samples": (left_out_S.sum(), torch.tensor(len(computed_S))),
            "skipped_tokens": ((left_out_S * length_S).sum(), length_S.sum()),
        }
    )
    if bool(computed_S.any()):
        assert batch.weight_T is not None, "weights come before micro-batches"
        metrics.count("effective_tokens", float((batch.weight_T != 0).sum()))


def _places(flag_S: Tensor) -> list[int]:
    return flag_S.nonzero().flatten().tolist()
