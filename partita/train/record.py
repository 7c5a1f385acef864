"""What learning did with one rollout batch: enough to compute every loss again without the model.

Shapes: T packed trained tokens, S samples.
Left out: the rollout batch itself, and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm, Loss
from partita.algo.tokens import Current
from partita.records import Batch
from partita.train.stepper import Outcome


@dataclass(frozen=True)
class OptimizerStep:
    """One minibatch. samples: indices into the rollout batch, in the minibatch's order. left_out: those of them that did not
    pass through the model, as nothing of them could move.

    current: what the policy said about the tokens of the others before the step, in that order, detached and on the CPU;
    None where nothing was computed. loss: the policy's, the sum over the micro-batches. outcome: "stepped"; "skipped", as the
    loss or the gradient was not finite; "dead", as nothing could move, whether it passed through the model or not. unmoved: no
    earlier minibatch of the rollout batch had moved the weights, so the policy's own log-prob was the clip centre.
    """

    samples: tuple[int, ...]
    current: Current | None
    loss: float
    outcome: Outcome
    unmoved: bool
    left_out: tuple[int, ...] = ()

    @property
    def computed(self) -> tuple[int, ...]:
        """The samples that `current` is about, in its order."""
        gone = set(self.left_out)
        return tuple(s for s in self.samples if s not in gone)


@dataclass(frozen=True)
class LearnRecord:
    """The optimizer steps of one rollout batch, in the order in which they were taken."""

    steps: tuple[OptimizerStep, ...] = ()


def weighed(batch: Batch, algorithm: Algorithm, unmoved: bool) -> Batch:
    """A minibatch as its loss reads it: weights first, for they may compare the proximal log-probs with the sampler's.

    Only then is `prox_T` dropped where the weights have not moved: the policy's own log-prob is the clip centre.
    """
    batch = algorithm.weights(batch)
    return batch.with_(prox_T=None) if unmoved else batch


def as_computed(batch: Batch, algorithm: Algorithm, step: OptimizerStep) -> Batch:
    """The minibatch of a step as its loss read it: weighed over all its samples, then without those that were left out."""
    gone = set(step.left_out)
    kept = [place for place, sample in enumerate(step.samples) if sample not in gone]
    return weighed(batch.select(step.samples), algorithm, step.unmoved).select(kept)


def replay(batch: Batch, algorithm: Algorithm, step: OptimizerStep) -> Loss | None:
    """The loss of a step once more, from the credited rollout batch; None where nothing was computed.

    Equal to `step.loss` up to the rounding of a sum that was taken over micro-batches.
    """
    if step.current is None:
        return None
    return algorithm.loss(as_computed(batch, algorithm, step), step.current)


def detached(current: Current) -> Current:
    """The streams without their graph."""

    def held(stream_T: Tensor | None) -> Tensor | None:
        return None if stream_T is None else stream_T.detach()

    return Current(
        current.logprobs_T.detach(),
        held(current.entropy_T),
        held(current.kl_full_ref_T),
        held(current.kl_full_old_T),
    )


def in_token_order(parts: Sequence[tuple[Sequence[int], Tensor]], length_S: Tensor) -> Tensor:
    """One stream [T] of micro-batches, each beside its samples, in the token order of the batch that they were cut from, on
    the CPU.
    """
    if not parts:
        return torch.zeros(0)
    return _ordered([stream_T for _, stream_T in parts], _token_order([samples for samples, _ in parts], length_S))


def in_batch_order(parts: Sequence[tuple[Sequence[int], Current]], length_S: Tensor) -> Current:
    """The streams of micro-batches, each beside its samples, in the token order of the batch that they were cut from, on the
    CPU.
    """
    if not parts:
        return Current(torch.zeros(0))
    order_T = _token_order([samples for samples, _ in parts], length_S)

    def joined(streams: Sequence[Tensor | None]) -> Tensor | None:
        found = [stream_T for stream_T in streams if stream_T is not None]
        return _ordered(found, order_T) if found else None

    return Current(
        _ordered([current.logprobs_T for _, current in parts], order_T),
        joined([current.entropy_T for _, current in parts]),
        joined([current.kl_full_ref_T for _, current in parts]),
        joined([current.kl_full_old_T for _, current in parts]),
    )


def _token_order(parts: Sequence[Sequence[int]], length_S: Tensor) -> Tensor:
    """Where each token of the batch lies among those of the parts, one after the other."""
    spans = torch.arange(int(length_S.sum())).split(length_S.tolist())
    return torch.cat([spans[s] for samples in parts for s in samples]).argsort()


def _ordered(streams: Sequence[Tensor], order_T: Tensor) -> Tensor:
    return torch.cat(list(streams)).cpu()[order_T]  # one copy from the device, after the last micro-batch
