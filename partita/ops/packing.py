"""Model input without padding: a group's common prefix once, then what each of its rows adds.

Shapes: N model-input tokens, T trained tokens, R rows, G groups in a micro-batch.
Left out: attention. `models.packed` turns the spans below into masks; nothing here knows about layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partita.records import Row


@dataclass(frozen=True)
class Span:
    """`length` tokens of the packed input from `start`; `position` is the position id of the first of them."""

    start: int
    length: int
    position: int


@dataclass(frozen=True)
class Packed:
    """One micro-batch of model input.

    prefixes: one span per group. rows: one span per row, holding what the row adds after its prefix (its length may
    be 0); prefix_of_row: which prefix it follows. source_T: index into N of the token whose hidden state predicts
    trained token t; target_T: that token's id. T runs over samples in the order given, then over their rows, then
    over tokens.
    """

    ids_N: Tensor
    position_N: Tensor
    prefixes: tuple[Span, ...]
    rows: tuple[Span, ...]
    prefix_of_row: tuple[int, ...]
    source_T: Tensor
    target_T: Tensor


def common_prefix(rows: Sequence[list[int]]) -> int:
    """Length of the longest id prefix that all rows share; 0 for no rows."""
    if not rows:
        return 0
    # in lexicographic order every row lies between these two, so what they share, all share
    first, last = min(rows), max(rows)
    for i, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return i
    return min(len(first), len(last))


def pack(samples: Sequence[Sequence[Row]], group_of_sample: Sequence[int]) -> Packed:
    """Pack samples (each one or more rows) of any groups; samples of one group share its longest common id prefix.

    Raises ValueError for a row without tokens or whose first token is trained: nothing could predict it.
    """
    by_group: dict[int, list[tuple[int, Row]]] = {}
    for s, (rows, group) in enumerate(zip(samples, group_of_sample, strict=True)):
        by_group.setdefault(group, []).extend((s, row) for row in rows)
    tape = _Tape()
    prefixes: list[Span] = []
    spans: list[Span] = []
    prefix_of_row: list[int] = []
    trained_of_sample: list[list[tuple[int, int]]] = [[] for _ in samples]
    for members in filter(None, by_group.values()):
        shared = common_prefix([row.ids for _, row in members])
        prefixes.append(tape.append(members[0][1].ids[:shared], 0))
        for s, row in members:
            spans.append(tape.append(row.ids[shared:], shared))
            prefix_of_row.append(len(prefixes) - 1)
            trained_of_sample[s] += _trained(row, prefixes[-1], spans[-1])
    flat = [pair for pairs in trained_of_sample for pair in pairs]
    return Packed(
        ids_N=torch.tensor(tape.ids, dtype=torch.long),
        position_N=torch.tensor(tape.positions, dtype=torch.long),
        prefixes=tuple(prefixes),
        rows=tuple(spans),
        prefix_of_row=tuple(prefix_of_row),
        source_T=torch.tensor([at for at, _ in flat], dtype=torch.long),
        target_T=torch.tensor([token for _, token in flat], dtype=torch.long),
    )


@dataclass
class _Tape:
    """Model input as it grows."""

    ids: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])

    def append(self, tokens: Sequence[int], position: int) -> Span:
        span = Span(len(self.ids), len(tokens), position)
        self.ids.extend(tokens)
        self.positions.extend(range(position, position + len(tokens)))
        return span


def _trained(row: Row, prefix: Span, own: Span) -> list[tuple[int, int]]:
    """(index into N of the token before it, id) of each trained token of a row that lies in these two spans."""
    if not row.ids or row.trained[0]:
        raise ValueError("a row needs at least one token before its first trained token (an empty prompt?)")
    found: list[tuple[int, int]] = []
    for i, is_trained in enumerate(row.trained):
        if is_trained:
            before = i - 1
            at = prefix.start + before if before < prefix.length else own.start + before - prefix.length
            found.append((at, row.ids[i]))
    return found


def micro_batches(samples: Sequence[Sequence[Row]], group_of_sample: Sequence[int], budget: int) -> list[list[int]]:
    """Sample indices per micro-batch, at most `budget` model-input tokens each (shared prefixes counted once).

    Groups stay whole where they fit; a group that does not fit is cut between samples, each part with its prefix; a
    sample larger than the budget is alone. The order is a function of the input only.
    """
    by_group: dict[int, list[int]] = {}
    for s, group in enumerate(group_of_sample):
        by_group.setdefault(group, []).append(s)
    pieces: list[tuple[int, list[int]]] = []
    for members in by_group.values():
        shared = common_prefix([row.ids for s in members for row in samples[s]])
        own = {s: sum(len(row.ids) - shared for row in samples[s]) for s in members}
        size, piece = shared, list[int]()
        for s in members:
            if piece and size + own[s] > budget:
                pieces.append((size, piece))
                size, piece = shared, []
            size, piece = size + own[s], [*piece, s]
        pieces.append((size, piece))
    batches: list[list[int]] = []
    room: list[int] = []
    for size, piece in sorted(pieces, key=lambda p: -p[0]):  # stable: equal sizes keep the given order
        fit = next((i for i, left in enumerate(room) if size <= left), None)
        if fit is None:
            batches.append(list(piece))
            room.append(budget - size)
        else:
            batches[fit].extend(piece)
            room[fit] -= size
    return batches
