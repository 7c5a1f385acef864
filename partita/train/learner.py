"""The learner: scores a rollout batch, then takes its optimizer steps as sums over micro-batches.

It knows an algorithm only by `needs`, `center.scored`, `weights`, `loss`, `moving_S`: no formula of any is here.

Shapes: T packed trained tokens, S samples.
On several ranks each gets the whole batch and goes through its share of the micro-batches (`train.shares`); what it gives is
the same on all of them.
Left out: a critic of its own weights, which is `train.critic`; one that shares the policy's learns here, in the same backward
pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.stats import Stat, Stats, mean_over
from partita.algo.tokens import Current
from partita.models.offload import resident
from partita.models.packed import Against, PackedModel, Streams
from partita.models.parallel import follow, settle, twin
from partita.ops.divergence import k3
from partita.ops.packing import Packed
from partita.ops.ranks import ALONE, Ranks
from partita.records import Batch
from partita.report.metrics import Metrics, Timer
from partita.train.batch import RolloutBatch
from partita.train.config import ActorConfig
from partita.train.minibatches import minibatches
from partita.train.record import LearnRecord, OptimizerStep, detached, in_batch_order, weighed
from partita.train.shares import MicroBatch, in_order, nothing, own_share
from partita.train.stepper import Stepper


@dataclass(frozen=True)
class _Reading:
    """How one model reads a batch without gradient: whether its entropies are asked for, and what it is compared with."""

    model: PackedModel
    entropy: bool = False
    against: Against | None = None


@dataclass(frozen=True)
class _Part:
    """What a micro-batch was: its samples, what the policy said about them, the loss and the value loss beside it, [2]."""

    samples: list[int]
    current: Current
    losses: Tensor
    stats: tuple[Stats, ...]


@dataclass
class Learner:
    """Owns the policy's master weights and takes their optimizer steps.

    reference: the frozen model of the KL terms; where it waits elsewhere than the policy is, it is fetched for each use.
    vf_coef: weight of the value loss where the policy carries the value head, else None. timer: seconds in models
    (`forward_backward`, the loss included) and in the optimizer's steps (`optimizer`). ranks: over which the models are
    sharded.
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
    ranks: Ranks = ALONE
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
        with self._used(bool(needs & {"ref", "kl_full_score"})):
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
        with self._used("kl_full_ref" in algorithm.needs):
            steps = self._steps(rollout, algorithm, metrics, step, whole)
            if "kl_after" in algorithm.needs:
                metrics.add({"kl_after/k3": self._moved_by(rollout)})
        return metrics, LearnRecord(tuple(steps))

    @contextmanager
    def _used(self, reference: bool) -> Iterator[None]:
        """Inside, the reference lies beside the policy, if it is used; afterwards the parameters of sharded models are their
        parts again.
        """
        with resident(self.reference, self.model.device) if reference else nullcontext():
            yield
        for model in filter(None, (self.model, self.reference, self._old)):
            settle(model)

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
            self._old = twin(self.model)
        follow(self._old, self.model)
        return Against(reference, self._old)

    def _accumulate(
        self, computed: RolloutBatch, algorithm: Algorithm, against: Against, vf_coef: float | None, metrics: Metrics
    ) -> tuple[Current | None, float, float]:
        """Add the gradients of what is to be computed of a minibatch. Gives what the policy said about it, None where it is
        nothing, the policy's loss, and the value loss beside it, times its weight.
        """
        found = list[_Part | None]()
        for chosen, micro, packed in self._micro_batches(computed):
            with self.timer.timed("forward_backward"):
                streams = self._streams(packed, algorithm, against, valued=vf_coef is not None)
                if micro is None:
                    nothing(*streams).backward()
                    found.append(None)
                else:
                    found.append(_descend(chosen, micro.batch, streams, algorithm, vf_coef))
        with self.timer.timed("forward_backward"):  # no number is read before: a device would be waited for
            parts = in_order(found, self.ranks)
            losses = torch.stack([part.losses for part in parts]).tolist() if parts else [[0.0, 0.0]]
        for stats in (stats for part in parts for stats in part.stats):
            metrics.add(stats)
        said = [(part.samples, part.current) for part in parts]
        of_policy, of_values = (sum(column) for column in zip(*losses, strict=True))
        return in_batch_order(said, computed.batch.length_S) if said else None, of_policy, of_values

    def _micro_batches(self, rollout: RolloutBatch) -> Iterator[MicroBatch]:
        return own_share(rollout, self.config.mb_spec.max_tokens_per_mb, self.ranks)

    def _streams(self, packed: Packed, algorithm: Algorithm, against: Against, *, valued: bool) -> Streams:
        """The policy's streams with gradient, and values where they are asked for."""
        asked: dict[str, Any] = {"entropy": True, "against": against}
        if valued:
            asked["values"] = True
        with self.stepper.precision():
            streams: Streams = self.model(packed, temperature=self.temperature, **asked)
        if "kl_full_old" in algorithm.needs and against.old is None:
            # the policy against itself, where the divergence is at its minimum: 0, with gradient 0
            return streams._replace(kl_full_old_T=torch.zeros_like(streams.logprobs_T.detach()))
        return streams

    @torch.no_grad()
    def _scored(self, rollout: RolloutBatch, readings: Mapping[str, _Reading]) -> dict[str, Current]:
        """What each model says of the whole batch, in its own token order, whatever the micro-batches; all of them read the
        same packed input.
        """
        found = list[tuple[list[int], dict[str, Current]] | None]()
        for chosen, micro, packed in self._micro_batches(rollout) if readings else ():
            said = dict[str, Current]()
            for name, reading in readings.items():
                with self.timer.timed("forward_backward"), self.stepper.precision():
                    asked = {"entropy": reading.entropy, "against": reading.against}
                    streams = reading.model(packed, temperature=self.temperature, **asked)
                said[name] = detached(_current(streams))
            found.append(None if micro is None else (chosen, said))
        with self.timer.timed("forward_backward"):  # a device is waited for here
            parts, length_S = in_order(found, self.ranks), rollout.batch.length_S
            return {name: in_batch_order([(s, said[name]) for s, said in parts], length_S) for name in readings}

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return self.stepper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.stepper.load_state_dict(state)


def _descend(samples: list[int], batch: Batch, streams: Streams, algorithm: Algorithm, vf_coef: float | None) -> _Part:
    """The backward pass of a micro-batch."""
    current, stats = _current(streams), list[Stats]()
    loss, beside = algorithm.loss(batch, current), None
    if streams.values_T is not None and vf_coef is not None:
        valued = algorithm.value_loss(batch, streams.values_T)
        beside = vf_coef * valued.value
        stats.append(valued.stats)
    (loss.value if beside is None else loss.value + beside).backward()
    both = (loss.value, torch.zeros_like(loss.value) if beside is None else beside)
    return _Part(samples, detached(current), torch.stack(both).detach(), (*stats, loss.stats))


def _current(streams: Streams) -> Current:
    return Current(streams.logprobs_T, streams.entropy_T, streams.kl_full_ref_T, streams.kl_full_old_T)


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
