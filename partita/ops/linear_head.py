"""Log-probs and entropies under a plain linear head: product, softmax and both gradients in one function over chunks.

The weight is cast once for the forward and the backward pass. Logits of one chunk exist at a time, in the precision of the
product (those of the last chunk until the backward pass has read them), and everything done to them happens in place on
blocks of rows that fit into a processor's cache.

Shapes: T tokens, C tokens of one chunk, R tokens of one block, D hidden width, V vocabulary.
Left out: heads that are not one matrix product (adapters, sharded weights). `ops.logprobs` runs any function in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

# 192 MiB of logits: 2,048 tokens of a vocabulary of 49,152 in bfloat16 are one chunk, computed once for both passes.
CHUNK_BYTES = 3 << 26
# 3 MiB in float32: what is read and written several times stays in the cache.
BLOCK_LOGITS = 3 << 18
# Tokens are rounded up to so many on a CPU: of 1,701 tokens the product with their logits took half again as long as of 1,704.
ROWS = 8
# Elements of the weight gradient that are made at a time, in two precisions: 4 MiB and 8 MiB.
BLOCK_WEIGHTS = 1 << 21


@dataclass(frozen=True, eq=False)
class LinearHead:
    """logits = hidden W^T + b, times `scale`, then squeezed into (-softcap, softcap) by a tanh; None leaves them."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @property
    def product_dtype(self) -> torch.dtype:
        """What the head multiplies in: autocast's choice where it is on."""
        kind = self.weight_VD.device.type
        narrow = torch.is_autocast_enabled(kind) and self.weight_VD.dtype != torch.float64
        return torch.get_autocast_dtype(kind) if narrow else self.weight_VD.dtype

    @property
    def chunk_tokens(self) -> int:
        """How many tokens' logits exist at a time, in the dtype of the product."""
        return max(1, CHUNK_BYTES // (self.weight_VD.shape[0] * self.product_dtype.itemsize))


@dataclass(frozen=True)
class _Rule:
    """What is done to the logits, and how many tokens' of them exist at a time."""

    chunk: int
    temperature: float
    scale: float
    softcap: float | None
    entropy: bool

    def apply(self, z_RV: Tensor) -> Tensor:
        """The final logits / temperature, in place."""
        if self.scale != 1.0:
            z_RV.mul_(self.scale)
        if self.softcap is not None:
            z_RV.div_(self.softcap).tanh_().mul_(self.softcap)
        return z_RV.div_(self.temperature) if self.temperature != 1.0 else z_RV

    def cap_slope(self, z_RV: Tensor) -> Tensor:
        """Derivative of the soft cap, 1 - tanh², at plain logits z; in place."""
        assert self.softcap is not None
        return z_RV.mul_(self.scale).div_(self.softcap).tanh_().square_().neg_().add_(1.0)


def linear_logprobs(
    head: LinearHead, hidden_TD: Tensor, target_T: Tensor, *, chunk: int, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs in nats [T] of `target_T`, and entropies [T] if asked, in at least float32; at least one token.

    Differentiable in the hidden states, the weight and the bias, whose gradients are summed over the chunks in at least
    float32. An entropy that no loss reads costs nothing in the backward pass.
    """
    rule, dtype = _Rule(chunk, temperature, head.scale, head.softcap, entropy), head.product_dtype
    tokens = len(target_T)
    more = -tokens % ROWS if hidden_TD.device.type == "cpu" else 0
    with torch.autocast(hidden_TD.device.type, enabled=False):
        given = F.pad(hidden_TD, (0, 0, 0, more)), head.weight_VD, head.bias_V, F.pad(target_T, (0, more))
        out = cast("tuple[Tensor, Tensor | None]", _LinearLogprobs.apply(*given, rule, dtype))  # pyright: ignore
    return out[0][:tokens], None if out[1] is None else out[1][:tokens]


class _Chunks:
    """Walks over the tokens and fills the two arrays that exist once: logits of a chunk, and a wide block of them.

    The logits of the last chunk are still there when the backward pass comes, so it begins with it: a call that is one
    chunk computes its logits once.
    """

    def __init__(
        self, hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, rule: _Rule, kept_CV: Tensor | None = None
    ) -> None:
        """kept_CV: the logits of the last chunk, in the place that all chunks share."""
        self.hidden_TD, self.weight_VD, self.bias_V, self.rule = hidden_TD, weight_VD, bias_V, rule
        tokens, vocabulary = min(rule.chunk, hidden_TD.shape[0]), weight_VD.shape[0]
        rows = max(1, BLOCK_LOGITS // vocabulary) if hidden_TD.device.type == "cpu" else tokens
        self.rows, self.wide = min(rows, tokens), torch.promote_types(hidden_TD.dtype, torch.float32)
        self.logits_CV = hidden_TD.new_empty(tokens, vocabulary) if kept_CV is None else kept_CV
        self._kept = kept_CV is not None
        self.z_RV = hidden_TD.new_empty(self.rows, vocabulary, dtype=self.wide)
        self.p_RV = torch.empty_like(self.z_RV)

    def logits(self, *, backward: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Each chunk, the last one first in the backward pass: its place, and its logits as the product gives them."""
        starts = range(0, self.hidden_TD.shape[0], self.rule.chunk)
        for start in reversed(starts) if backward else starts:
            hidden_CD = self.hidden_TD[start : start + self.rule.chunk]
            logits_CV = self.logits_CV[: hidden_CD.shape[0]]
            if not self._kept or start < starts[-1]:
                self._product(hidden_CD, logits_CV)
            yield slice(start, start + hidden_CD.shape[0]), logits_CV

    def _product(self, hidden_CD: Tensor, out_CV: Tensor) -> None:
        if self.bias_V is None:
            torch.mm(hidden_CD, self.weight_VD.T, out=out_CV)
        else:
            torch.addmm(self.bias_V, hidden_CD, self.weight_VD.T, out=out_CV)

    def blocks(self, at: slice, logits_CV: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Each block of a chunk: its place, its plain logits, the wide final ones, and room for as many."""
        for start in range(0, logits_CV.shape[0], self.rows):
            logits_RV = logits_CV[start : start + self.rows]
            rows = logits_RV.shape[0]
            z_RV = self.rule.apply(self.z_RV[:rows].copy_(logits_RV))
            yield slice(at.start + start, at.start + start + rows), logits_RV, z_RV, self.p_RV[:rows]


class _LinearLogprobs(torch.autograd.Function):
    """With z the final logits / temperature and lse = logsumexp(z): log p = z - lse, entropy H = lse - sum_v p z, and
    d log p_target / dz = onehot - p, dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_T: Tensor, rule: _Rule,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        ctx.rule, ctx.dtypes = rule, (hidden_TD.dtype, weight_VD.dtype, None if bias_V is None else bias_V.dtype)
        given = hidden_TD.to(dtype), weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype)
        chunks = _Chunks(*given, rule)
        chosen_T, lse_T, mean_T = hidden_TD.new_empty(3, len(target_T), dtype=chunks.wide)
        for at, logits_CV in chunks.logits():
            for here, _, z_RV, p_RV in chunks.blocks(at, logits_CV):
                chosen_T[here] = z_RV.gather(1, target_T[here, None])[:, 0]
                top_R = z_RV.amax(-1)
                sum_R = torch.sub(z_RV, top_R[:, None], out=p_RV).exp_().sum(-1)
                lse_T[here] = top_R + sum_R.log()
                if rule.entropy:
                    mean_T[here] = p_RV.mul_(z_RV).sum(-1) / sum_R
        entropy_T = lse_T - mean_T if rule.entropy else None
        ctx.save_for_backward(*given, target_T, lse_T, entropy_T)
        ctx.kept_CV = chunks.logits_CV
        ctx.set_materialize_grads(False)
        return chosen_T - lse_T, entropy_T

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        hidden_TD, weight_VD, bias_V, target_T, lse_T, entropy_T = ctx.saved_tensors
        kept_CV, ctx.kept_CV = ctx.kept_CV, None  # gradients will take the place of these logits
        chunks = _Chunks(hidden_TD, weight_VD, bias_V, ctx.rule, kept_CV)
        through = ctx.rule.scale / ctx.rule.temperature
        push_T, push_entropy_T = (None if grad is None else grad * through for grad in grads)
        push = _Push(target_T, lse_T, entropy_T, torch.zeros_like(lse_T) if push_T is None else push_T, push_entropy_T)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_TD = torch.empty_like(hidden_TD, dtype=ctx.dtypes[0]) if wants_hidden else None
        grad_VD = torch.empty_like(weight_VD, dtype=chunks.wide) if wants_weight else None
        grad_V = lse_T.new_zeros(weight_VD.shape[0]) if wants_bias else None
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for at, logits_CV in chunks.logits(backward=True):
                for here, logits_RV, z_RV, p_RV in chunks.blocks(at, logits_CV):
                    push.through_softmax(here, z_RV, p_RV)
                    if ctx.rule.softcap is not None:
                        z_RV.mul_(ctx.rule.cap_slope(p_RV.copy_(logits_RV)))
                    if grad_V is not None:
                        grad_V.add_(z_RV.sum(0))
                    logits_RV.copy_(z_RV)
                if grad_TD is not None:
                    grad_TD[at] = torch.mm(logits_CV, weight_VD)
                if grad_VD is not None:
                    _add_product(grad_VD, logits_CV, hidden_TD[at], first=at.stop == len(lse_T))
        own = [None if g is None else g.to(d) for g, d in zip((grad_TD, grad_VD, grad_V), ctx.dtypes, strict=True)]
        return (*own, None, None, None)


@dataclass(frozen=True, eq=False)
class _Push:
    """Gradients of the loss by log-probs and, if a loss reads them, entropies; what the forward pass knew of them."""

    target_T: Tensor
    lse_T: Tensor
    entropy_T: Tensor | None
    logprob_T: Tensor
    grad_entropy_T: Tensor | None

    def through_softmax(self, here: slice, z_RV: Tensor, p_RV: Tensor) -> None:
        """Turn the final logits of a block into the gradient by them, in place; `p_RV` is room for as many."""
        push_R1 = self.logprob_T[here, None]
        z_RV.sub_(self.lse_T[here, None])
        if self.grad_entropy_T is None or self.entropy_T is None:
            z_RV.exp_().mul_(-push_R1)
        else:
            torch.exp(z_RV, out=p_RV)
            z_RV.add_(self.entropy_T[here, None]).mul_(self.grad_entropy_T[here, None]).add_(push_R1)
            z_RV.mul_(p_RV).neg_()
        z_RV.scatter_add_(1, self.target_T[here, None], push_R1)


def _add_product(sum_VD: Tensor, grad_CV: Tensor, hidden_CD: Tensor, *, first: bool) -> None:
    """sum = grad^T hidden for the first chunk, += after it; a narrow product is widened block by block, for adding
    across precisions directly takes six times as long.
    """
    if sum_VD.dtype == grad_CV.dtype:
        torch.addmm(sum_VD, grad_CV.T, hidden_CD, beta=0 if first else 1, out=sum_VD)
        return
    step = max(1, BLOCK_WEIGHTS // sum_VD.shape[1])
    wide = torch.empty_like(sum_VD[:step])
    for start in range(0, sum_VD.shape[0], step):
        sum_BD = sum_VD[start : start + step]
        product_BD = torch.mm(grad_CV[:, start : start + step].T, hidden_CD)
        if first:
            sum_BD.copy_(product_BD)
        else:
            sum_BD.add_(wide[: sum_BD.shape[0]].copy_(product_BD))
