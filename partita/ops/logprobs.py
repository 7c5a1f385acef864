"""Log-probs, entropies and divergences of next tokens, in chunks: the vocabulary never exists for the whole batch.

Shapes: T tokens, C tokens of one chunk, D hidden width, V vocabulary.
Left out: estimates from sampled tokens alone. `ops.divergence` makes them of the log-probs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from partita.ops.linear_head import LinearHead, linear_logprobs

Head = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]

# 48 MiB of logits: small beside any model, yet enough rows to keep a matrix product busy.
CHUNK_BYTES = 3 << 24


@dataclass(frozen=True)
class Side:
    """One of two policies that are compared: hidden states [T, D] and the head that makes logits of them.

    A fixed side is a constant: neither its hidden states nor the weights of its head get a gradient.
    """

    head: Head
    hidden_TD: Tensor
    fixed: bool = False


def chunk_tokens(vocabulary: int) -> int:
    """How many tokens' logits, in float32, are computed at a time for a vocabulary of this size; see also `LinearHead`."""
    return max(1, CHUNK_BYTES // (vocabulary * torch.float32.itemsize))


def token_logprobs(
    head: Head | LinearHead, hidden_TD: Tensor, target_T: Tensor, *, chunk: int, temperature: float = 1.0,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Log-probs in nats [T] of `target_T` under the full softmax of `head(hidden) / temperature`, and entropies [T]
    if asked. A head that is a LinearHead is fast; any other function of hidden states works.

    The head's output is brought to at least float32 before anything else is done to it: in bfloat16 the log-softmax
    alone would be off by several percent of a ratio. Logits of `chunk` tokens are alive at once, forward and
    backward: the backward pass runs the head again, chunk by chunk. Raises ValueError for a temperature that is not
    positive.
    """
    _check_temperature(temperature)
    if target_T.shape[0] == 0:
        linear = isinstance(head, LinearHead)
        empty_T = _empty(F.linear(hidden_TD, head.weight_VD, head.bias_V) if linear else head(hidden_TD))
        return empty_T, (empty_T if entropy else None)
    if isinstance(head, LinearHead):
        return linear_logprobs(head, hidden_TD, target_T, chunk=chunk, temperature=temperature, entropy=entropy)
    chunks = [
        _chunk(head, hidden_TD[t : t + chunk], target_T[t : t + chunk], temperature, entropy)
        for t in range(0, target_T.shape[0], chunk)
    ]
    return torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks]) if entropy else None


def full_kl(p: Side, q: Side, *, chunk: int, temperature: float = 1.0) -> Tensor:
    """KL(p ‖ q) in nats [T], each over the whole vocabulary: Σ_v p_v (log p_v - log q_v), p and q the softmax of
    `head(hidden) / temperature`, in at least float32.

    Differentiable in every side that is not fixed. Logits of `chunk` tokens of both sides are alive at once, forward
    and backward: the backward pass runs both heads again, chunk by chunk. A token that p rules out adds nothing; one
    that only q rules out makes the divergence infinite. Raises ValueError for a temperature that is not positive.
    """
    _check_temperature(temperature)
    if p.hidden_TD.shape[0] == 0:
        ends = [side.hidden_TD.detach() if side.fixed else side.hidden_TD for side in (p, q)]
        return _empty(ends[0]) + _empty(ends[1])
    spans = [slice(t, t + chunk) for t in range(0, p.hidden_TD.shape[0], chunk)]
    return torch.cat([_divergence_chunk(p, q, span, temperature) for span in spans])


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(
            f"temperature of log-probs must be positive, not {temperature}; greedy sampling is scored at 1"
        )


def _empty(of_TX: Tensor) -> Tensor:
    """No values [0] that keep the graph: a backward pass gives zeros, not an error, to whatever the others of a step reach."""
    return of_TX.sum(-1).to(_wide(of_TX.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunk(head: Head, hidden_CD: Tensor, target_C: Tensor, temperature: float, entropy: bool) -> Pair:
    def run(hidden_CD: Tensor) -> Pair:
        return _chosen(_logits(head, hidden_CD), target_C, temperature, entropy)

    return cast(Pair, _recomputed(run, hidden_CD))


def _divergence_chunk(p: Side, q: Side, span: slice, temperature: float) -> Tensor:
    def side_logits(side: Side, hidden_CD: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not side.fixed):
            return _logits(side.head, hidden_CD)

    def run(p_CD: Tensor, q_CD: Tensor) -> Tensor:
        return _divergence(side_logits(p, p_CD), side_logits(q, q_CD), temperature)

    return cast(Tensor, _recomputed(run, p.hidden_TD[span], q.hidden_TD[span]))


def _logits(head: Head, hidden_CD: Tensor) -> Tensor:
    # Autocast would keep one bfloat16 copy of the head's weight for all chunks, and sum their gradients in bfloat16.
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return head(hidden_CD)
    finally:
        torch.set_autocast_cache_enabled(cached)


def _recomputed(run: Callable[..., Any], *hidden: Tensor) -> Any:
    """`run(*hidden)`, which keeps nothing for the backward pass and runs again there."""
    if torch.is_grad_enabled():
        # a head draws nothing at random, so no generator state needs to be kept for the second run
        return cast(Any, checkpoint(run, *hidden, use_reentrant=False, preserve_rng_state=False))
    return run(*hidden)


def _chosen(logits_CV: Tensor, target_C: Tensor, temperature: float, entropy: bool) -> Pair:
    return cast(Pair, _Chosen.apply(logits_CV, target_C, temperature, entropy))  # pyright: ignore


class _Chosen(torch.autograd.Function):
    """One pass over [C, V] forward, one backward, in float32 or wider, with at most two such arrays alive.

    With z = logits / temperature and lse = logsumexp(z): log p = z - lse, entropy H = lse - sum_v p z, and
    d log p_target / dz = onehot - p, dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, target_C: Tensor, temperature: float, entropy: bool) -> Pair:
        z_CV = logits_CV.to(_wide(logits_CV.dtype))
        if temperature != 1.0:
            z_CV = z_CV / temperature if z_CV is logits_CV else z_CV.div_(temperature)
        chosen_C = z_CV.gather(1, target_C[:, None])[:, 0]
        lse_C, mean_C = _moments(z_CV, entropy)
        entropy_C = lse_C - mean_C
        ctx.save_for_backward(logits_CV, target_C, lse_C, entropy_C)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # an entropy that is only watched costs nothing in the backward pass
        return chosen_C - lse_C, entropy_C

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None]:  # pyright: ignore
        logits_CV, target_C, lse_C, entropy_C = ctx.saved_tensors
        grad_logprob_C, grad_entropy_C = grads
        if grad_logprob_C is None:
            grad_logprob_C = torch.zeros_like(lse_C)
        log_p_CV = logits_CV.to(lse_C.dtype, copy=True)
        if ctx.temperature != 1.0:
            log_p_CV.div_(ctx.temperature)
        log_p_CV.sub_(lse_C[:, None])
        if grad_entropy_C is not None:
            p_CV = log_p_CV.exp()
            grad_CV = log_p_CV.add_(entropy_C[:, None]).mul_(grad_entropy_C[:, None]).add_(grad_logprob_C[:, None])
            grad_CV.mul_(p_CV)
        else:
            grad_CV = log_p_CV.exp_().mul_(grad_logprob_C[:, None])
        grad_CV.neg_().scatter_add_(1, target_C[:, None], grad_logprob_C[:, None])
        if ctx.temperature != 1.0:
            grad_CV.div_(ctx.temperature)
        return grad_CV.to(logits_CV.dtype), None, None, None


def _moments(z_CV: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
    """logsumexp(z) and, if asked, the mean of z under softmax(z)."""
    top_C = z_CV.amax(-1)
    p_CV = (z_CV - top_C[:, None]).exp_()
    sum_C = p_CV.sum(-1)
    lse_C = top_C + sum_C.log()
    if not entropy:
        return lse_C, lse_C
    return lse_C, p_CV.mul_(z_CV).sum(-1) / sum_C


def _divergence(p_CV: Tensor, q_CV: Tensor, temperature: float) -> Tensor:
    return cast(Tensor, _Divergence.apply(p_CV, q_CV, temperature))  # pyright: ignore


class _Divergence(torch.autograd.Function):
    """KL(p ‖ q) [C] of two sets of logits [C, V], in float32 or wider.

    With d = log p - log q it is Σ_v (p d + q - p): the same sum, as p and q both add up to 1, and no rounding of a
    normaliser reaches it in first order. With z = logits / temperature, dKL/dz_p = p (d - KL) and dKL/dz_q = q - p.
    """

    @staticmethod
    def forward(ctx: Any, p_CV: Tensor, q_CV: Tensor, temperature: float) -> Tensor:
        ctx.temperature = temperature
        log_p_CV, log_q_CV = _log_softmaxes(p_CV, q_CV, temperature)
        d_CV = log_p_CV - log_q_CV
        soft_p_CV, soft_q_CV = log_p_CV.exp_(), log_q_CV.exp_()
        d_CV.mul_(soft_p_CV).masked_fill_(soft_p_CV == 0, 0.0)  # 0 · inf where p rules a token out
        kl_C = d_CV.add_(soft_q_CV).sub_(soft_p_CV).sum(-1)
        ctx.save_for_backward(p_CV, q_CV, kl_C)
        return kl_C

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_C: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore
        p_CV, q_CV, kl_C = ctx.saved_tensors
        log_p_CV, log_q_CV = _log_softmaxes(p_CV, q_CV, ctx.temperature)
        scale_C1 = grad_C[:, None] / ctx.temperature
        soft_p_CV = log_p_CV.exp()
        grad_p_CV = grad_q_CV = None
        if ctx.needs_input_grad[0]:
            grad_p_CV = log_p_CV.sub_(log_q_CV).sub_(kl_C[:, None]).mul_(soft_p_CV)
            grad_p_CV = grad_p_CV.masked_fill_(soft_p_CV == 0, 0.0).mul_(scale_C1).to(p_CV.dtype)
        if ctx.needs_input_grad[1]:
            grad_q_CV = log_q_CV.exp_().sub_(soft_p_CV).mul_(scale_C1).to(q_CV.dtype)
        return grad_p_CV, grad_q_CV, None


def _log_softmaxes(p_CV: Tensor, q_CV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    dtype = _wide(torch.promote_types(p_CV.dtype, q_CV.dtype))

    def log_softmax(logits_CV: Tensor) -> Tensor:
        z_CV = logits_CV.to(dtype, copy=True)
        if temperature != 1.0:
            z_CV.div_(temperature)
        return z_CV.sub_(z_CV.logsumexp(-1, keepdim=True))

    return log_softmax(p_CV), log_softmax(q_CV)
