"""The tokens of one micro-batch as gates and penalties see them: selected before any arithmetic, so all finite.

Shapes: T packed trained tokens, S samples.
Left out: which samples belong to the loss. That is decided once per optimizer step, and is already in `weight_T`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.ops.segments import segment_all
from partita.records import Batch


@dataclass(frozen=True)
class Tokens:
    """Per-token streams [T], 0 where not live.

    weighted_T: carries a weight in this optimizer step. live_T: and belongs to a sample whose log-probs are all finite.
    logprobs_T requires grad, as may entropy_T; the other streams are constants. prox_T is the clip centre.
    """

    weight_T: Tensor
    weighted_T: Tensor
    live_T: Tensor
    logprobs_T: Tensor
    prox_T: Tensor
    advantages_T: Tensor
    behaviour_T: Tensor | None
    ref_T: Tensor | None
    entropy_T: Tensor | None


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


def live_tokens(batch: Batch, logprobs_T: Tensor, entropy_T: Tensor | None) -> Tokens:
    """Select the tokens of a micro-batch for the loss, on the device of its log-probs; half precision becomes float32.

    A sample with one non-finite log-prob is left out as a whole. The selection comes before the arithmetic: masking a
    loss after an exp still sends NaN into the gradient, as 0 · inf.
    """
    logprobs_T = logprobs_T.to(torch.promote_types(logprobs_T.dtype, torch.float32))
    seq_T = batch.seq_T.to(logprobs_T.device)
    weight_T = present(batch.weight_T, "weight_T").to(logprobs_T)
    weighted_T = weight_T != 0
    streams = (batch.prox_T, batch.behaviour_T, batch.ref_T)
    live_T = weighted_T & finite_samples(seq_T, batch.samples, logprobs_T, *streams)[seq_T]

    def live(stream_T: Tensor) -> Tensor:
        return torch.where(live_T, stream_T.to(logprobs_T), 0.0)

    clean_T = live(logprobs_T)
    return Tokens(
        weight_T=live(weight_T),
        weighted_T=weighted_T,
        live_T=live_T,
        logprobs_T=clean_T,
        # on policy the centre is this very log-prob: another kernel's differs in its last digits, and the ratio from 1
        prox_T=clean_T.detach() if batch.prox_T is None else live(batch.prox_T),
        advantages_T=live(present(batch.advantages_T, "advantages_T")),
        behaviour_T=None if batch.behaviour_T is None else live(batch.behaviour_T),
        ref_T=None if batch.ref_T is None else live(batch.ref_T),
        entropy_T=None if entropy_T is None else live(entropy_T),
    )
