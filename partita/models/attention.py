"""The one attention function that Hugging Face's model classes call under the name "partita".

It does not attend itself: it hands queries, keys and values to the `layout` that came down with the forward call,
which knows how tokens are laid out (packed training rows, or decode slots). Metadata travels by keyword, so two
forwards can be alive at once. Options of a family that a layout could not honour are refused here, never dropped.

Shapes: B rows of the call, Q query tokens, L keys, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "partita"
# Keywords that families pass along and that carry nothing a layout must honour.
HARMLESS = {"position_ids", "use_cache", "output_attentions", "cache_position", "is_causal", "output_router_logits"}


class Layout(Protocol):
    """How the tokens of one forward call lie in memory."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """[B, H, Q, D], [B, K, *, D] x 2 -> [B, Q, H, D]."""
        ...


class Rule:
    """What one layer's attention does beside the causal mask: scale, soft-cap, sliding window, sinks."""

    __slots__ = ("scaling", "sinks_H", "softcap", "window")

    def __init__(self, scaling: float, softcap: float | None, window: int | None, sinks_H: Tensor | None) -> None:
        self.scaling, self.softcap, self.window, self.sinks_H = scaling, softcap, window, sinks_H


def attend_masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, rule: Rule) -> Tensor:
    """Masked attention over grouped heads: [B, H, Q, D], [B, K, L, D] x 2, allowed bool [B, 1, Q, L] -> [B, H, Q, D].

    Every query must be allowed at least one key.
    """
    if rule.softcap is not None or rule.sinks_H is not None:
        return _by_products(q, k, v, allowed, rule)
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.device.type != "cpu":  # with a mask, only the slow kernel takes grouped heads on a GPU
        k, v, grouped = _spread(k, q.shape[1]), _spread(v, q.shape[1]), False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=rule.scaling, enable_gqa=grouped)


def _spread(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1)


def _by_products(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, rule: Rule) -> Tensor:
    """Two batched matrix products; the query heads of one key head are stacked, so nothing is copied per query head."""
    rows, heads, queries, width = q.shape
    stacked = q.reshape(rows, k.shape[1], -1, width) @ k.transpose(-1, -2)
    scores = stacked.view(rows, heads, queries, -1).to(torch.promote_types(q.dtype, torch.float32)) * rule.scaling
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.masked_fill(~allowed, float("-inf"))
    if rule.sinks_H is not None:
        sinks = rule.sinks_H.to(scores.dtype).view(1, -1, 1, 1).expand(rows, heads, queries, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(q.dtype)
    out = weights.reshape(rows, k.shape[1], -1, k.shape[2]) @ v
    return out.view(rows, heads, queries, -1)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None,
    layout: Layout | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    unknown = {name for name, given in options.items() if given is not None} - HARMLESS
    if layout is None or unknown or dropout:
        raise NotImplementedError(
            f"attention of {type(module).__name__}: unknown options {sorted(unknown)}, dropout {dropout}"
        )
    rule = Rule(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sliding_window, s_aux)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # rotary embeddings leave queries and keys in float32; attention is a product
        query, key, value = (x.to(torch.get_autocast_dtype(kind)) for x in (query, key, value))
    return layout.attend(query, key, value, rule), None


def register() -> None:
    """Make "partita" known to transformers as an attention implementation that needs no mask from the model."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
