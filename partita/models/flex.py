"""Attention of a packed micro-batch on CUDA through FlexAttention: one kernel, whose mask knows prefixes and rows.

Not measured: its mask is tested on the CPU, where FlexAttention runs uncompiled; no GPU was at hand.

Shapes: N model-input tokens, H query heads, K key/value heads, D head width.
Left out: sinks, and values of another width than keys; `layout` takes `blocks.attend_blocks` for these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from partita.models.attention import Rule
from partita.ops.packing import Packed


def honours(q: Tensor, v: Tensor, rule: Rule) -> bool:
    """Whether FlexAttention can do what this layer asks for."""
    return rule.sinks_H is None and q.shape[-1] == v.shape[-1]


class FlexMasks:
    """The block masks of one micro-batch, by window."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        # each prefix, each row and the root are segments; a row follows its prefix, a prefix follows itself, both begin with
        # the root unless the prefix is empty
        spans = [*packed.prefixes, *packed.rows, packed.root]
        own, last = [*range(len(packed.prefixes)), *packed.prefix_of_row], len(spans) - 1
        follows = torch.tensor([*own, last], dtype=torch.int32)
        after_root = torch.tensor([*(packed.prefixes[of].length > 0 for of in own), True])
        start, length = (torch.tensor(x) for x in ([s.start for s in spans], [s.length for s in spans]))
        # a span without tokens starts where the next one does, so order alone does not decide
        segment_N = torch.repeat_interleave(start.argsort(stable=True), length[start.argsort(stable=True)])
        self._segment_N, self._follows_N = segment_N.to(device, torch.int32), follows[segment_N].to(device)
        self._begins_N = torch.where(after_root, last, follows)[segment_N].to(device, torch.int32)
        self._position_N = packed.position_N.to(device, torch.int32)
        self._of_window: dict[int | None, BlockMask] = {}

    def sees(self, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """mask_mod: whether query i sees key j."""
        segment_N, follows_N, begins_N, position_N = self._segment_N, self._follows_N, self._begins_N, self._position_N

        def mask(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            behind = position_N[i] - position_N[j]
            related = (segment_N[i] == segment_N[j]) | (follows_N[i] == segment_N[j]) | (begins_N[i] == segment_N[j])
            near = behind >= 0 if window is None else (behind >= 0) & (behind < window)
            return related & near

        return mask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """[1, H, N, D], [1, K, N, D] x 2 -> [1, N, H, D]."""
        if rule.window not in self._of_window:
            count = q.shape[2]
            self._of_window[rule.window] = _blocks(q.is_cuda)(
                self.sees(rule.window), None, None, count, count, device=str(q.device)
            )
        out = _flex(q.is_cuda)(
            q,
            k,
            v,
            score_mod=_capped(rule.softcap),
            block_mask=self._of_window[rule.window],
            scale=rule.scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.transpose(1, 2)


@cache
def _blocks(compiled: bool) -> Callable[..., BlockMask]:
    """Uncompiled it holds a number for every pair of tokens."""
    return torch.compile(create_block_mask, dynamic=True) if compiled else create_block_mask


@cache
def _flex(compiled: bool) -> Callable[..., Any]:
    """Uncompiled it computes every score; only the tests want that."""
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention


def _capped(softcap: float | None) -> Callable[..., Tensor] | None:
    if softcap is None:
        return None

    def cap(score: Tensor, _b: Tensor, _h: Tensor, _i: Tensor, _j: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return cap
