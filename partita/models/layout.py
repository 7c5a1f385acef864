"""Where the tokens of a packed micro-batch meet in attention: blocks of rows that follow the same prefixes.

Every prefix attends to the root, which all of them follow, and to itself; every row to the root, its prefix and itself; nothing
attends across rows.

Shapes: N model-input tokens, H query heads, K key/value heads, D head width, U units of a block (see `blocks`).
Left out: the products themselves, which are `blocks.attend_blocks`, and on CUDA `flex`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from partita.models.attention import Rule
from partita.models.blocks import LEAST_QUERIES, PAIRS, Block, Slots, Step, Work, attend_blocks, cuts, plan
from partita.models.flex import FlexMasks, honours
from partita.ops.packing import Packed, Span

# What a step costs beside its query-key pairs, in pairs: one step more is worth this much less padding.
STEP = 1 << 15
NOTHING = Span(0, 0, 0)


class PackedLayout:
    """The `Layout` of one packed micro-batch; it may serve several forward calls, one after the other or at once."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        groups = [(prefix, list[Span]()) for prefix in packed.prefixes]
        for row, at in zip(packed.rows, packed.prefix_of_row, strict=True):
            if row.length:
                groups[at][1].append(row)
        self.blocks: list[Block] = []
        # rows after an empty prefix have nothing before them: they may lie in one unit
        alone = [row for prefix, rows in groups if not prefix.length for row in rows]
        self.blocks += _Family(0, [NOTHING], [alone]).blocks(None)
        root, shared = packed.root.length, None
        if root:
            shared = len(self.blocks)
            self.blocks.append(Block((_ends(packed.root),), root))
        for family in _families(root, [group for group in groups if group[0].length]):
            prefixes = family.prefix_block(shared)
            self.blocks += [prefixes, *family.blocks(len(self.blocks))]
        self._flex = FlexMasks(packed, device) if device.type == "cuda" else None
        self._device = device
        self._slots: dict[int, Slots] = {}
        self._plans: dict[int | None, list[Step]] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. B is 1: the whole micro-batch is one row of N tokens."""
        if self._flex is not None and honours(q, v, rule):
            return self._flex.attend(q, k, v, rule)
        if rule.window not in self._plans:
            self._plans[rule.window] = plan(self.blocks, rule.window)
        heads = k.shape[1]
        if heads not in self._slots:
            self._slots[heads] = Slots(self.blocks, heads, self._device)
        q_N, k_N, v_N = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        return attend_blocks(q_N, k_N, v_N, Work(self._slots[heads], self._plans[rule.window], rule))[None]


class _Family:
    """Prefixes that lie in one block, and the rows after each: the longest of each in one block, and so on."""

    def __init__(self, root: int, prefixes: Sequence[Span], rows: Sequence[Sequence[Span]]) -> None:
        """root: how many tokens come before each prefix."""
        self.root, self.prefixes = root, prefixes
        self.longest = max(prefix.length for prefix in prefixes)
        self.before = root + self.longest
        self.lead = tuple(self.longest - prefix.length for prefix in prefixes)
        most = max(len(some) for some in rows)
        ordered = [[*sorted(some, key=_shorter), *[NOTHING] * (most - len(some))] for some in rows]
        # one row of each prefix; the same number of every prefix lies in a block
        self.ranks = list(zip(*ordered, strict=True))
        self.width = [max(row.length for row in rank) for rank in self.ranks]
        self.cuts, cost = self._cut()
        self.cost = cost + self._cost(1, self.longest, root)

    def _cost(self, count: int, width: int, before: int) -> float:
        """Of a block with `count` rows per prefix, in query-key pairs; several rows of a prefix must fit into one step."""
        rows = len(self.prefixes) * count
        if rows > 1 and rows * LEAST_QUERIES * (before + width) > PAIRS:
            return inf
        if count > 1:
            pairs = rows * width * (before + width)
            return pairs + STEP if pairs <= PAIRS else inf
        return sum(rows * (end - first) * (before + end) + STEP for first, end in cuts(rows, width, before))

    def _cut(self) -> tuple[list[tuple[int, int]], float]:
        """First and end of the ranks in each block, such that pairs and blocks cost least, and that cost."""
        best: list[tuple[float, int]] = [(0, 0)]
        for end in range(1, len(self.ranks) + 1):
            found = (inf, 0)
            for first in range(end - 1, -1, -1):
                cost = self._cost(end - first, self.width[first], self.before)
                if cost == inf:
                    break
                found = min(found, (best[first][0] + cost, first))
            best.append(found)
        cuts, end = list[tuple[int, int]](), len(self.ranks)
        while end and best[-1][0] < inf:
            cuts.append((best[end][1], end))
            end = best[end][1]
        return cuts[::-1], best[-1][0]

    def prefix_block(self, shared: int | None) -> Block:
        """The prefixes, one row each, after the root in block `shared`."""
        spans = tuple(_ends(prefix) for prefix in self.prefixes)
        return Block(spans, self.longest, self.lead, self.root, shared, self.root)

    def blocks(self, shared: int | None) -> list[Block]:
        """The rows, after the prefixes in block `shared`."""
        return [
            Block(
                tuple(_ends(rank[u]) for u in range(len(self.prefixes)) for rank in self.ranks[first:end]),
                self.width[first],
                self.lead,
                self.before,
                shared,
                self.root,
            )
            for first, end in self.cuts
        ]


def _families(root: int, groups: Sequence[tuple[Span, Sequence[Span]]]) -> list[_Family]:
    """Groups with prefixes of similar length together where that costs less."""
    found: list[_Family] = []
    members: list[tuple[Span, Sequence[Span]]] = []
    for group in sorted(groups, key=lambda group: _shorter(group[0])):
        alone = _Family(root, [group[0]], [group[1]])
        joined = _Family(root, *zip(*members, group, strict=True)) if members else alone
        if members and joined.cost <= found[-1].cost + alone.cost:
            found[-1] = joined
            members.append(group)
        else:
            found.append(alone)
            members = [group]
    return found


def _shorter(span: Span) -> int:
    return -span.length


def _ends(span: Span) -> tuple[int, int]:
    return span.start, span.start + span.length
