"""Keys and values of the live slots, and how decode and prefill attend over them.

Rows 0 .. B-1 of every tensor are the live slots, so that a decode step reads a view and never gathers. Row capacity and
length grow with what is needed; the layers and their head sizes are those of the first prefill.

Shapes: B live slots, G prompts of a prefill, K key/value heads, H query heads, Q query tokens, L key positions, D head
width.
Left out: paging. A slot owns one contiguous stretch, which suits the tens of slots of one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.engine.scheduler import Moves
from partita.models.attention import Rule, attend_masked

LENGTH_STEP = 64
ROW_STEP = 8

Store = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class CallCache:
    """What transformers' models ask of `cache` during one forward; `store(layer, keys, values)` does the work."""

    is_compileable = False

    def __init__(self, past: int, store: Store) -> None:
        self._past, self._store = past, store

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Store what this call computed, [B, K, Q, D] each; gives the keys and values to attend over."""
        return self._store(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this call."""
        return self._past

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of this call's first token."""
        return self._past

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys to attend over, and the position of the first of them."""
        return self._past + query_length, 0


@dataclass(frozen=True)
class Prefix:
    """Keys and values [K, P, D] of a computed prompt by layer, and the logits [V] that follow it."""

    layers: dict[int, tuple[Tensor, Tensor]]
    logits_V: Tensor


class Capture:
    """Collects the keys and values [G, K, Q, D] of a prefill, which attends over its own tokens only."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def call(self) -> CallCache:
        """The cache of the prefill's forward."""
        return CallCache(0, self._store)

    def prefixes(self, lengths: Sequence[int], logits_GV: Tensor) -> list[Prefix]:
        """One per prompt, without its padding."""
        return [
            Prefix({layer: (k[g, :, :length], v[g, :, :length]) for layer, (k, v) in self.layers.items()}, logits_GV[g])
            for g, length in enumerate(lengths)
        ]

    def _store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.layers[layer] = (keys, values)
        return keys, values


class SlotCache:
    """Keys and values of all slots by layer, each [rows, K, length, D], zero where nothing was written yet."""

    def __init__(self, slots: int, context: int) -> None:
        self._slots, self._context = slots, context
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.rows = self.length = 0  # capacity

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` slots of `length` tokens, growing by at least a half so that growing stays rare."""
        if rows <= self.rows and length <= self.length:
            return
        self.rows = _grown(self.rows, rows, ROW_STEP, self._slots)
        self.length = _grown(self.length, length, LENGTH_STEP, self._context)
        self._layers = {layer: (self._bigger(k), self._bigger(v)) for layer, (k, v) in self._layers.items()}

    def write(self, first: int, count: int, prefix: Prefix) -> None:
        """Copy a prompt into rows `first` .. `first + count - 1`; `reserve` must have made room."""
        for layer, pair in prefix.layers.items():
            if layer not in self._layers:
                heads, _, width = pair[0].shape
                empty = pair[0].new_zeros(self.rows, heads, self.length, width)
                self._layers[layer] = (empty, pair[1].new_zeros(self.rows, heads, self.length, pair[1].shape[-1]))
            for slots, new in zip(self._layers[layer], pair, strict=True):
                slots[first : first + count, :, : new.shape[1]] = new

    def move(self, moves: Moves) -> None:
        """Fill the rows of retired slots with the last live ones."""
        if moves.sources:
            sources, targets = list(moves.sources), list(moves.targets)
            for pair in self._layers.values():
                for slots in pair:
                    slots[targets] = slots[sources]

    def call(self, position_B: Tensor, end: int) -> CallCache:
        """The cache of one decode step: slot b's token goes to `position_B[b]`, of which the largest is `end` - 1."""
        rows_B = torch.arange(position_B.shape[0], device=position_B.device)

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            k, v = self._layers[layer]
            k[rows_B, :, position_B] = keys[:, :, 0]
            v[rows_B, :, position_B] = values[:, :, 0]
            return k[: len(rows_B), :, :end], v[: len(rows_B), :, :end]

        return CallCache(end - 1, store)

    def _bigger(self, old: Tensor) -> Tensor:
        new = old.new_zeros(self.rows, old.shape[1], self.length, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new


class DecodeLayout:
    """One query token per slot over that slot's own keys."""

    def __init__(self, position_B: Tensor, end: int, ragged: bool) -> None:
        """`ragged`: the positions differ. Otherwise every slot sees all `end` keys and needs no mask."""
        self._position_B, self._end, self._ragged = position_B, end, ragged
        self._bias: dict[int | None, Tensor | None] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. Two batched products over grouped heads: fused kernels are slow on CPU for one query row."""
        batch, heads, _, width = q.shape
        # Contiguous first: the product's own copy of a slice that is also transposed takes seven times as long.
        scores = q.view(batch, k.shape[1], heads // k.shape[1], width) @ k.contiguous().transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * rule.scaling
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        bias = self._bias_for(rule.window, scores.dtype)
        if bias is not None:
            scores += bias
        if rule.sinks_H is not None:  # a sink takes probability and gives nothing
            sinks = rule.sinks_H.to(scores.dtype).view(1, k.shape[1], -1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., : k.shape[2]].to(q.dtype)
        return (weights @ v).view(batch, 1, heads, v.shape[-1])

    def _bias_for(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        if window is not None and window >= self._end:
            window = None
        if window is None and not self._ragged:
            return None
        if window not in self._bias:
            behind_BL = self._position_B[:, None] - torch.arange(self._end, device=self._position_B.device)
            hidden_BL = behind_BL < 0 if window is None else (behind_BL < 0) | (behind_BL >= window)
            bias_BL = torch.zeros(hidden_BL.shape, dtype=dtype, device=hidden_BL.device)
            self._bias[window] = bias_BL.masked_fill_(hidden_BL, -torch.inf)[:, None, None]
        return self._bias[window]


class PrefillLayout:
    """Prompts padded on the right: causal order alone keeps real tokens from seeing padding."""

    def __init__(self) -> None:
        self._allowed: dict[int | None, Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`."""
        window = None if rule.window is None or rule.window >= q.shape[2] else rule.window
        if window is None and rule.softcap is None and rule.sinks_H is None:
            grouped = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scaling, enable_gqa=grouped)
            return out.transpose(1, 2)
        if window not in self._allowed:
            at = torch.arange(q.shape[2], device=q.device)
            behind = at[:, None] - at
            self._allowed[window] = (behind >= 0 if window is None else (behind >= 0) & (behind < window))[None, None]
        return attend_masked(q, k, v, self._allowed[window], rule).transpose(1, 2)


def _grown(capacity: int, need: int, step: int, limit: int) -> int:
    if need <= capacity:
        return capacity
    wanted = max(need, capacity + capacity // 2)
    return max(need, min(limit, -(-wanted // step) * step))
