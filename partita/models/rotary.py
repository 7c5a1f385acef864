"""Attention of the common shape with fewer passes over memory: one product for queries, keys and values, one rotation.

Shapes: B rows, Q tokens of a row, T = B Q tokens, C tokens of a piece, D hidden width, H query heads, K key/value heads,
W head width, O outputs of several products together.
Left out: rotations of a part of each head or of neighbouring pairs, and layers without any. `fused` finds out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from partita.models.attention import Rule
from partita.models.memory import pieces


class RotaryAttention(nn.Module):
    """What Llama's attention does, and Qwen's with its norms over heads; the projections are the family's own, whatever
    wraps them later.
    """

    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any
    q_norm: Any
    k_norm: Any

    def __init__(self, old: Any, rule: Rule) -> None:
        """rule: what `old` hands down to the attention function, its scale and window."""
        super().__init__()
        for name, child in old.named_children():
            setattr(self, name, child)
        self.config, self.layer_idx, self.head_dim = old.config, old.layer_idx, old.head_dim
        self.scaling, self.sliding_window, self.is_causal = rule.scaling, rule.window, True
        self._eager: Any = vars(sys.modules[type(old).__module__]).get("eager_attention_forward")
        # what transformers' own attention functions look at
        self.num_key_value_groups = old.q_proj.out_features // old.k_proj.out_features

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor | None = None,
        cache: Any = None, **options: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """[B, Q, D] -> [B, Q, D], and what the attention function gives beside it; arguments as transformers hands them."""
        shape = hidden_states.shape[:-1]
        q, k, v = (x.view(*shape, -1, self.head_dim) for x in self._products(hidden_states))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (x.transpose(1, 2) for x in (*turn(q, k, *position_embeddings), v))
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, self._eager)
        mixed, weights = attend(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **options,
        )
        return self.o_proj(mixed.reshape(*shape, -1)), weights

    def _products(self, x: Tensor) -> Sequence[Tensor]:
        """[B, Q, heads W] of queries, keys and values. Under autocast weights are cast anyway: then side by side."""
        linears, kind = (self.q_proj, self.k_proj, self.v_proj), x.device.type
        plain = all(type(linear) is nn.Linear for linear in linears)
        biases = [linear.bias for linear in linears if plain and linear.bias is not None]
        if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64 or not plain or len(biases) not in (0, 3):
            return [linear(x) for linear in linears]
        x = x.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return cast("tuple[Tensor, ...]", _Joint.apply(x, len(linears), *(m.weight for m in linears), *biases))


class _Joint(torch.autograd.Function):
    """Several products of one input as one, in its precision; weights and their gradients have theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        weight_OD = torch.cat([weight.to(x.dtype) for weight in given[:count]])
        bias_O = torch.cat([bias.to(x.dtype) for bias in given[count:]]) if len(given) > count else None
        ctx.save_for_backward(x, weight_OD)
        ctx.sizes, ctx.dtype = [len(weight) for weight in given[:count]], given[0].dtype
        return F.linear(x, weight_OD, bias_O).split(ctx.sizes, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, weight_OD = ctx.saved_tensors
        needs, count = ctx.needs_input_grad[2:], len(ctx.sizes)
        grad_TO = torch.cat(grads, -1).flatten(0, -2)
        grad_x = (grad_TO @ weight_OD).view_as(x) if ctx.needs_input_grad[0] else None
        parts: list[Tensor | None] = [None] * len(needs)
        if any(needs[:count]):
            parts[:count] = (grad_TO.T @ x.flatten(0, -2)).to(ctx.dtype).split(ctx.sizes)
        if any(needs[count:]):
            parts[count:] = grad_TO.sum(0, dtype=ctx.dtype).split(ctx.sizes)
        return grad_x, None, *(part if need else None for part, need in zip(parts, needs, strict=True))


def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary positions (Su et al. 2021, equation 34), halves paired: [B, Q, H, W] and [B, Q, K, W] turned by angles with
    these cosines and sines [B or 1, Q, W]. Computed in the wider dtype of both; under autocast the result is rounded,
    for attention is a product.
    """
    kind, dtype = q.device.type, torch.promote_types(q.dtype, cos.dtype)
    out = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and dtype != torch.float64 else dtype
    shape = (*q.shape[:2], cos.shape[-1])
    cos_T1W, sin_T1W = (x.expand(shape).reshape(-1, 1, shape[-1]).to(dtype) for x in (cos, sin))
    with torch.autocast(kind, enabled=False):
        turned = _Turn.apply(q, k, cos_T1W, sin_T1W, out)
    return cast("tuple[Tensor, Tensor]", turned)


class _Turn(torch.autograd.Function):
    """With x = (x1, x2): y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2. The backward pass keeps the angles alone."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos_T1W: Tensor, sin_T1W: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos_T1W, sin_T1W)
        ctx.dtypes = q.dtype, k.dtype
        half = cos_T1W.shape[-1] // 2
        crossed_T1W = torch.cat([-sin_T1W[..., :half], sin_T1W[..., half:]], -1)
        return _turned(q, cos_T1W, crossed_T1W, dtype), _turned(k, cos_T1W, crossed_T1W, dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        cos_T1W, sin_T1W = ctx.saved_tensors
        first_T1W, last_T1W = sin_T1W.chunk(2, -1)
        crossed_T1W = torch.cat([last_T1W, -first_T1W], -1)
        d_q, d_k = (_turned(grad, cos_T1W, crossed_T1W, dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True))
        return d_q, d_k, None, None, None


def _turned(x: Tensor, cos_T1W: Tensor, crossed_T1W: Tensor, dtype: torch.dtype) -> Tensor:
    """x cos + (x2, x1) crossed, of this dtype; multiplied and added in one where it is rounded anyway."""
    x_THW, half = x.flatten(0, 1), x.shape[-1] // 2
    out_THW = torch.empty(x_THW.shape, dtype=dtype, device=x.device)
    for at in pieces(x_THW):
        wide, crossed = x_THW[at].to(cos_T1W.dtype), crossed_T1W[at]
        y = wide * cos_T1W[at]
        for mine, other in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
            if dtype == y.dtype:
                y[..., mine] += wide[..., other] * crossed[..., mine]
            else:
                y[..., mine].addcmul_(wide[..., other], crossed[..., mine])
        out_THW[at] = y
    return out_THW.view(x.shape)
