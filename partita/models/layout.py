"""Where the tokens of a packed micro-batch meet in attention: tiles of rows that are padded together.

Every prefix attends to itself; every row attends to its prefix and to itself; nothing attends across rows.

Shapes: N model-input tokens, R rows of one tile, Q query tokens, L keys, H query heads, K key/value heads, D head
width. Left out: the attention kernel, which is `attention.attend_masked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partita.models.attention import Rule, attend_masked
from partita.ops.packing import Packed

# A tile takes one more row while its padded area stays below WASTE times its real one, or below CHEAP query-key
# pairs.
WASTE = 1.25
CHEAP = 1 << 16


@dataclass
class Tile:
    """Rows of similar length: indices into N of their queries [R, Q] and keys [R, L], padded on the right with token
    0.
    """

    query_RQ: Tensor
    key_RL: Tensor
    query_real_RQ: Tensor
    key_real_RL: Tensor
    query_position_RQ: Tensor
    key_position_RL: Tensor
    masks: dict[int | None, Tensor] = field(default_factory=dict[int | None, Tensor])

    def allowed(self, window: int | None) -> Tensor:
        """[R, 1, Q, L]. Padded queries may see everything, so that no softmax is over nothing."""
        if window not in self.masks:
            behind = self.query_position_RQ[:, :, None] - self.key_position_RL[:, None, :]
            allowed = (behind >= 0) & self.key_real_RL[:, None, :]
            if window is not None:
                allowed &= behind < window
            self.masks[window] = (allowed | ~self.query_real_RQ[:, :, None])[:, None]
        return self.masks[window]


class PackedLayout:
    """The `Layout` of one packed micro-batch; it may serve several forward calls, one after the other or at once."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        members: list[tuple[Sequence[int], Sequence[int]]] = []
        for prefix in packed.prefixes:
            own = range(prefix.start, prefix.start + prefix.length)
            members.append((own, own))
        for row, prefix in zip(packed.rows, (packed.prefixes[g] for g in packed.prefix_of_row), strict=True):
            own = range(row.start, row.start + row.length)
            members.append((own, [*range(prefix.start, prefix.start + prefix.length), *own]))
        groups = _similar([(len(queries), len(keys)) for queries, keys in members])
        self.tiles = [_tile([members[i] for i in group], packed.position_N, device) for group in groups]
        slot_N = torch.empty_like(packed.ids_N)
        before = 0
        for tile in self.tiles:
            slots = torch.arange(before, before + tile.query_RQ.numel()).view(tile.query_RQ.shape)
            real = tile.query_real_RQ.cpu()
            slot_N[tile.query_RQ.cpu()[real]] = slots[real]
            before += slots.numel()
        self.slot_N = slot_N.to(device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. B is 1: the whole micro-batch is one row of N tokens."""
        q_N, k_N, v_N = (x[0].transpose(0, 1) for x in (q, k, v))
        outs: list[Tensor] = []
        for tile in self.tiles:
            out = attend_masked(
                _take(q_N, tile.query_RQ),
                _take(k_N, tile.key_RL),
                _take(v_N, tile.key_RL),
                tile.allowed(rule.window),
                rule,
            )
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs).index_select(0, self.slot_N)[None]


def _take(x_N: Tensor, index: Tensor) -> Tensor:
    """[N, H, D] at [R, Q] -> [R, H, Q, D]."""
    return x_N.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)


def _similar(shapes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Group (queries, keys) shapes so that padding each group to its largest shape wastes little; empty ones are left
    out.
    """
    groups: list[list[int]] = []
    real = widest = 0
    for i in sorted((i for i, shape in enumerate(shapes) if shape[0]), key=lambda i: (-shapes[i][1], -shapes[i][0])):
        queries, keys = shapes[i]
        padded = (len(groups[-1]) + 1) * max(widest, queries) * shapes[groups[-1][0]][1] if groups else 0
        if groups and padded <= max(WASTE * (real + queries * keys), CHEAP):
            groups[-1].append(i)
            real, widest = real + queries * keys, max(widest, queries)
        else:
            groups.append([i])
            real, widest = queries * keys, queries
    return groups


def _tile(members: Sequence[tuple[Sequence[int], Sequence[int]]], position_N: Tensor, device: torch.device) -> Tile:
    query_RQ, query_real_RQ = _pad([queries for queries, _ in members])
    key_RL, key_real_RL = _pad([keys for _, keys in members])
    return Tile(
        query_RQ.to(device),
        key_RL.to(device),
        query_real_RQ.to(device),
        key_real_RL.to(device),
        position_N[query_RQ].to(device),
        position_N[key_RL].to(device),
    )


def _pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Index lists padded on the right with 0, and which entries are real."""
    width = max(len(row) for row in rows)
    index = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return index, torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
