"""Log-probs and entropies of chosen tokens, in chunks: the whole vocabulary never exists for the whole batch.

Shapes: T tokens, C tokens of one chunk, D hidden width, V vocabulary.
Left out: full-vocabulary divergences between two models. They need two sets of logits at once and their own chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

Head = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]

# 12 million logits are 48 MiB in float32: small beside any model, yet enough rows to keep a matrix product busy.
CHUNK_LOGITS = 3 << 22


def chunk_tokens(vocabulary: int) -> int:
    """How many tokens' logits are computed at a time for a vocabulary of this size."""
    return max(1, CHUNK_LOGITS // vocabulary)


def token_logprobs(
    head: Head, hidden_TD: Tensor, target_T: Tensor, *, chunk: int, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs in nats [T] of `target_T` under the full softmax of `head(hidden) / temperature`, and entropies [T]
    if asked.

    The head's output is brought to at least float32 before anything else is done to it: in bfloat16 the log-softmax
    alone would be off by several percent of a ratio. Logits of `chunk` tokens are alive at once, forward and
    backward: the backward pass runs the head again, chunk by chunk. Raises ValueError for a temperature that is not
    positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature of log-probs must be positive, not {temperature}; greedy sampling is scored at 1"
        )
    if target_T.shape[0] == 0:
        empty_T = hidden_TD.sum(-1).to(
            _wide(hidden_TD.dtype)
        )  # keeps the graph: a backward pass gives zeros, not an error
        return empty_T, (empty_T if entropy else None)
    chunks = [
        _chunk(head, hidden_TD[t : t + chunk], target_T[t : t + chunk], temperature, entropy)
        for t in range(0, target_T.shape[0], chunk)
    ]
    return torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks]) if entropy else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunk(head: Head, hidden_CD: Tensor, target_C: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
    def run(hidden_CD: Tensor) -> tuple[Tensor, Tensor]:
        # Autocast would keep one bfloat16 copy of the head's weight for all chunks, and sum their gradients in
        # bfloat16.
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            logits_CV = head(hidden_CD)
        finally:
            torch.set_autocast_cache_enabled(cached)
        return _chosen(logits_CV, target_C, temperature, entropy)

    if torch.is_grad_enabled():
        # the head draws nothing at random, so no generator state needs to be kept for the second run
        return cast(Pair, checkpoint(run, hidden_CD, use_reentrant=False, preserve_rng_state=False))
    return run(hidden_CD)


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
