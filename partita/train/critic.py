"""The critic: what each state is worth, scored before credit is given, and learned from the returns of credit.

It reads the same packed rows as the policy. Its targets, and the values around which its loss is clipped, are those of
before the first optimizer step, for all epochs (Schulman et al. 2017, arXiv 1707.06347, algorithm 1).

Shapes: T packed trained tokens, S samples.
Left out: what a return is (`algo.credit`), and the loss (`algo.value`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm, Loss
from partita.models.packed import PackedModel
from partita.models.parallel import settle
from partita.ops.ranks import ALONE, Ranks
from partita.report.metrics import Metrics, Timer
from partita.train.batch import RolloutBatch
from partita.train.config import CriticConfig
from partita.train.minibatches import minibatches
from partita.train.record import in_token_order, weighed
from partita.train.shares import MicroBatch, in_order, nothing, own_share
from partita.train.stepper import Stepper

NAME = "critic"


@dataclass
class Critic:
    """A model with a value head. Where it is the policy itself (`config.shared`), the learner takes its steps. ranks: over which
    it is sharded; all of them score and learn together, and get the same.
    """

    model: PackedModel
    config: CriticConfig
    compute_dtype: torch.dtype
    total_steps: int
    seed: int
    max_nonfinite_steps: int
    timer: Timer = field(default_factory=Timer)
    ranks: Ranks = ALONE
    stepper: Stepper = field(init=False)

    def __post_init__(self) -> None:
        self.stepper = Stepper(
            self.model,
            self.config.optimizer,
            self.compute_dtype,
            self.max_nonfinite_steps,
            self.timer,
            NAME,
            f"{NAME}/",
        )

    @torch.no_grad()
    def score(self, rollout: RolloutBatch) -> RolloutBatch:
        """Add `values_T`, and `bootstrap_value_S`: the value of each sample's last state."""
        found = list[tuple[list[int], Tensor, Tensor] | None]()
        for samples, micro, packed in self._micro_batches(rollout, whole=True):
            with self.timer.timed("forward_backward"), self.stepper.precision():
                values_T, end_S = self.model.values(packed, ends=True)
            assert end_S is not None, "asked for"
            found.append(None if micro is None else (samples, values_T, end_S))
        settle(self.model)
        parts = in_order(found, self.ranks)
        order = [sample for samples, _, _ in parts for sample in samples]
        ends = [end_S for _, _, end_S in parts]
        bootstrap_S = torch.cat(ends).cpu()[torch.tensor(order).argsort()] if ends else torch.zeros(0)
        values_T = in_token_order([(samples, values_T) for samples, values_T, _ in parts], rollout.batch.length_S)
        return rollout.with_batch(rollout.batch.with_(values_T=values_T, bootstrap_value_S=bootstrap_S))

    def learn(self, rollout: RolloutBatch, algorithm: Algorithm, step: int, epochs: int, count: int) -> Metrics:
        """All optimizer steps of one rollout batch: `epochs` passes over it, `count` minibatches each, unless the critic's
        section says otherwise. Raises LearnerError after too many non-finite steps in a row.
        """
        metrics, config = Metrics(), self.config
        self.stepper.schedule(step, self.total_steps, metrics)
        for epoch in range(config.ppo_epochs or epochs):
            split = (config.ppo_n_minibatches or count, config.minibatch_split, (self.seed, step, epoch))
            for chosen in minibatches(rollout.group_of_sample, *split):
                mini = rollout.select(chosen)
                mini = mini.with_batch(weighed(mini.batch, algorithm, unmoved=False))
                loss = self._accumulate(mini, algorithm, metrics)
                if loss is None:
                    self.stepper.stay(metrics)
                else:
                    self.stepper.move(loss, metrics, step)
        return metrics

    def _accumulate(self, mini: RolloutBatch, algorithm: Algorithm, metrics: Metrics) -> float | None:
        """Add the gradients of a minibatch; its loss, None where no token has a weight."""
        moving = [s for s, moves in enumerate(algorithm.valued_S(mini.batch).tolist()) if moves]
        mini, found = mini.select(moving), list[Loss | None]()
        for _, micro, packed in self._micro_batches(mini):
            with self.timer.timed("forward_backward"):
                with self.stepper.precision():
                    values_T, _ = self.model.values(packed)
                if micro is None:
                    nothing(values_T).backward()
                    found.append(None)
                    continue
                loss = algorithm.value_loss(micro.batch, values_T)
                loss.value.backward()
            found.append(Loss(loss.value.detach(), loss.stats))
        losses = in_order(found, self.ranks)
        for loss in losses:
            metrics.add(loss.stats)
        return sum(torch.stack([loss.value for loss in losses]).tolist()) if losses else None

    def _micro_batches(self, rollout: RolloutBatch, *, whole: bool = False) -> Iterator[MicroBatch]:
        return own_share(rollout, self.config.mb_spec.max_tokens_per_mb, self.ranks, whole=whole)

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return self.stepper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.stepper.load_state_dict(state)
