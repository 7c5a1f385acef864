"""The tokens of one micro-batch as ratios, gates and penalties see them: selected before any arithmetic, so all finite.

Shapes: T packed trained tokens, S samples.
Left out: which samples belong to the loss. That is decided once per optimizer step, and is already in `weight_T`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.ops.segments import segment_all, segment_sum
from partita.records import Batch


@dataclass(frozen=True)
class Current:
    """What the policy says about the tokens of a micro-batch now, with gradient; None where nothing asks for it.

    kl_full_ref_T is KL(π ‖ reference) over the whole vocabulary, kl_full_old_T is KL(old ‖ π), both in nats.
    """

    logprobs_T: Tensor
    entropy_T: Tensor | None = None
    kl_full_ref_T: Tensor | None = None
    kl_full_old_T: Tensor | None = None


@dataclass(frozen=True)
class Tokens:
    """Per-token streams [T], 0 where not live.

    weighted_T: carries a weight in this optimizer step. live_T: and belongs to a sample whose log-probs are all finite.
    The current streams require grad; the others are constants. prox_T is the clip centre. correction_T is the behaviour
    weight and scale_T the objective's own factor, 1 where none is set.
    """

    seq_T: Tensor
    samples: int
    weight_T: Tensor
    weighted_T: Tensor
    live_T: Tensor
    logprobs_T: Tensor
    prox_T: Tensor
    advantages_T: Tensor
    correction_T: Tensor
    scale_T: Tensor
    behaviour_T: Tensor | None = None
    ref_T: Tensor | None = None
    entropy_T: Tensor | None = None
    kl_full_ref_T: Tensor | None = None
    kl_full_old_T: Tensor | None = None

    def sequence_sum(self, value_T: Tensor) -> Tensor:
        """The sum over the live tokens of each sample, on each of its tokens; differentiable, in the values' dtype."""
        total_S = segment_sum(torch.where(self.live_T, value_T, 0.0), self.seq_T, self.samples)
        return total_S[self.seq_T].to(value_T.dtype)

    def sequence_mean(self, value_T: Tensor) -> Tensor:
        """The mean over the live tokens of each sample, on each of its tokens."""
        count_S = segment_sum(self.live_T, self.seq_T, self.samples).clamp(min=1)
        return self.sequence_sum(value_T) / count_S[self.seq_T].to(value_T.dtype)


def present(stream: Tensor | None, name: str) -> Tensor:
    """The stream itself. Raises ValueError where the batch lacks one that the algorithm needs."""
    if stream is None:
        raise ValueError(f"this algorithm needs the stream {name}, which the batch does not have")
    return stream


def finite_samples(seq_T: Tensor, samples: int, *streams: Tensor | None) -> Tensor:
    """[S]: True where every token of the sample is finite in all the streams that are there."""
    finite_T = torch.ones_like(seq_T, dtype=torch.bool)
    for stream_T in streams:
        if stream_T is not None:
            finite_T = finite_T & torch.isfinite(stream_T.detach()).to(seq_T.device)
    return segment_all(finite_T, seq_T, samples)


def live_tokens(batch: Batch, current: Current, prox_T: Tensor, reads_entropy: bool = False) -> Tokens:
    """Select the tokens of a micro-batch for the loss, on the device of its log-probs; half precision becomes float32.

    `prox_T` is the clip centre. A sample with one non-finite value in a stream that the loss reads, a log-prob, a
    divergence or (`reads_entropy`) the entropy, is left out as a whole. The selection comes before
    the arithmetic: masking a loss after an exp still sends NaN into the gradient, as 0 · inf.
    """
    logprobs_T = current.logprobs_T.to(torch.promote_types(current.logprobs_T.dtype, torch.float32))
    seq_T = batch.seq_T.to(logprobs_T.device)
    weight_T = present(batch.weight_T, "weight_T").to(logprobs_T)
    weighted_T = weight_T != 0
    full = (current.kl_full_ref_T, current.kl_full_old_T, current.entropy_T if reads_entropy else None)
    streams = (prox_T, batch.behaviour_T, batch.ref_T, *full)
    live_T = weighted_T & finite_samples(seq_T, batch.samples, logprobs_T, *streams)[seq_T]

    def live(stream_T: Tensor) -> Tensor:
        return torch.where(live_T, stream_T.to(logprobs_T), 0.0)

    def optional(stream_T: Tensor | None) -> Tensor | None:
        return None if stream_T is None else live(stream_T)

    ones_T = torch.ones_like(weight_T)
    return Tokens(
        seq_T=seq_T,
        samples=batch.samples,
        weight_T=live(weight_T),
        weighted_T=weighted_T,
        live_T=live_T,
        logprobs_T=live(logprobs_T),
        prox_T=live(prox_T),
        advantages_T=live(present(batch.advantages_T, "advantages_T")),
        correction_T=live(ones_T if batch.correction_T is None else batch.correction_T),
        scale_T=live(ones_T if batch.scale_T is None else batch.scale_T),
        behaviour_T=optional(batch.behaviour_T),
        ref_T=optional(batch.ref_T),
        entropy_T=optional(current.entropy_T),
        kl_full_ref_T=optional(current.kl_full_ref_T),
        kl_full_old_T=optional(current.kl_full_old_T),
    )
