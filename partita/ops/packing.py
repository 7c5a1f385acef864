"""Model input without padding: what all groups begin with once, a group's common prefix once, then what each of its rows adds.

A row ends before its last trained token: that one, and what comes after it, is seen by nothing that is trained. Whoever reads
the state after a whole row asks for whole rows.

Shapes: N model-input tokens, T trained tokens, R rows, G groups in a micro-batch.
Left out: attention. `models.packed` turns the spans below into masks; nothing here knows about layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from partita.records import Row

# Tokens that a common beginning of all groups must save: it is a step of attention more in every layer.
SAVED = 16


@dataclass(frozen=True)
class Span:
    """`length` tokens of the packed input from `start`; `position` is the position id of the first of them."""

    start: int
    length: int
    position: int


@dataclass(frozen=True)
class Packed:
    """One micro-batch of model input.

    root: what all groups begin with, such as a system prompt; may be empty. prefixes: one span per group, of what it adds to the
    root. rows: one span per row, holding what the row adds after its prefix (its length may be 0); prefix_of_row: which
    prefix it follows. Where there is a root, what follows an empty prefix does not follow the root. source_T: index into N of
    the token whose hidden state predicts trained token t; target_T: that token's id. T runs over samples in the order given,
    then over their rows, then over tokens. end_S: index into N of the last token of each sample; 0 for a sample without rows.
    """

    ids_N: Tensor
    position_N: Tensor
    root: Span
    prefixes: tuple[Span, ...]
    rows: tuple[Span, ...]
    prefix_of_row: tuple[int, ...]
    source_T: Tensor
    target_T: Tensor
    end_S: Tensor


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


def pack(samples: Sequence[Sequence[Row]], group_of_sample: Sequence[int], *, whole: bool = False) -> Packed:
    """Pack samples (each one or more rows) of any groups; samples of one group share the longest common id prefix of what is
    needed of their rows. whole: everything is, as `end_S` will be read.

    Raises ValueError for a row without tokens or whose first token is trained: nothing could predict it.
    """
    by_group: dict[int, list[tuple[int, Row]]] = {}
    for s, (rows, group) in enumerate(zip(samples, group_of_sample, strict=True)):
        by_group.setdefault(group, []).extend((s, row) for row in rows)
    groups = [members for members in by_group.values() if members]
    inputs_of = [[needed(row, whole) for _, row in members] for members in groups]
    starts = [inputs[0][: common_prefix(inputs)] for inputs in inputs_of]
    root = Span(0, _common(starts), 0)
    ids, tape, prefixes, laid = starts[0][: root.length] if starts else list[int](), [root], list[Span](), list[_Laid]()
    for members, inputs, start in zip(groups, inputs_of, starts, strict=True):
        prefixes.append(Span(len(ids), len(start) - root.length, root.length))
        tape.append(prefixes[-1])
        ids += start[root.length :]
        for (s, row), given in zip(members, inputs, strict=True):
            laid.append(_Laid(s, row, len(prefixes) - 1, Span(len(ids), len(given) - len(start), len(start))))
            tape.append(laid[-1].own)
            ids += given[len(start) :]
    source_T, target_T = _trained(laid, prefixes, root)
    offset_N = np.repeat([span.start - span.position for span in tape], [span.length for span in tape])
    return Packed(
        ids_N=torch.as_tensor(np.array(ids, np.int64)),
        position_N=torch.as_tensor(np.arange(len(ids)) - offset_N.astype(np.int64)),
        root=root,
        prefixes=tuple(prefixes),
        rows=tuple(one.own for one in laid),
        prefix_of_row=tuple(one.prefix for one in laid),
        source_T=source_T,
        target_T=target_T,
        end_S=torch.as_tensor(np.array(_ends(laid, prefixes, len(samples)), np.int64)),
    )


def _common(prefixes: Sequence[list[int]]) -> int:
    """How many tokens all of these begin with, so that one is left to each; 0 where that saves little."""
    count = min(common_prefix(prefixes), min(map(len, prefixes), default=1) - 1)
    return count if count * (len(prefixes) - 1) >= SAVED else 0


def needed(row: Row, whole: bool) -> list[int]:
    """The ids of a row up to the one that predicts its last trained token; all of them where none is trained, or if whole."""
    last = None if whole else next((at for at in range(len(row.trained) - 1, -1, -1) if row.trained[at]), None)
    return list(row.ids[:last])


def filled(packed: Packed, multiple: int) -> Packed:
    """The same with a last row that nobody reads, a prefix of its own before it, where N is no multiple of this."""
    there = len(packed.ids_N)
    more = -there % multiple
    if not more:
        return packed
    return replace(
        packed,
        ids_N=torch.cat([packed.ids_N, packed.ids_N[:1].expand(more)]),
        position_N=torch.cat([packed.position_N, torch.arange(more)]),
        prefixes=(*packed.prefixes, Span(there, 0, 0)),
        rows=(*packed.rows, Span(there, more, 0)),
        prefix_of_row=(*packed.prefix_of_row, len(packed.prefixes)),
    )


@dataclass(frozen=True)
class _Laid:
    """A row of sample `sample` in the packed input: which prefix it follows, and the span of what is its own."""

    sample: int
    row: Row
    prefix: int
    own: Span


def _ends(laid: Sequence[_Laid], prefixes: Sequence[Span], samples: int) -> list[int]:
    """For each sample the index into N of the last token of its last row."""
    end_S = [0] * samples
    for one in laid:
        last = one.own if one.own.length else prefixes[one.prefix]
        end_S[one.sample] = last.start + last.length - 1
    return end_S


def _trained(laid: Sequence[_Laid], prefixes: Sequence[Span], root: Span) -> tuple[Tensor, Tensor]:
    """For each trained token, sample by sample: the index into N of the token before it, and its id."""
    if any(not one.row.ids or one.row.trained[0] for one in laid):
        raise ValueError("a row needs at least one token before its first trained token (an empty prompt?)")
    laid = sorted(laid, key=lambda one: one.sample)  # stable: the rows of a sample keep their order
    length_R = np.array([len(one.row.ids) for one in laid], np.int64)
    shared_R = np.array([root.length + prefixes[one.prefix].length for one in laid], np.int64)
    prefix_R = np.array([prefixes[one.prefix].start - root.length for one in laid], np.int64)
    own_R = np.array([one.own.start for one in laid], np.int64)
    trained = [flag for one in laid for flag in one.row.trained]
    at_T = np.flatnonzero(np.array(trained, np.bool_))  # among the tokens of all rows, one after the other
    row_T = np.repeat(np.arange(len(laid)), length_R)[at_T]
    before_T = at_T - 1 - (np.cumsum(length_R) - length_R)[row_T]
    shared_T = shared_R[row_T]
    source_T = np.where(before_T < shared_T, prefix_R[row_T] + before_T, own_R[row_T] + before_T - shared_T)
    source_T = np.where(before_T < root.length, before_T, source_T)
    target = compress(chain.from_iterable(one.row.ids for one in laid), trained)
    return torch.as_tensor(source_T), torch.as_tensor(np.fromiter(target, np.int64))


def micro_batches(
    samples: Sequence[Sequence[Row]],
    group_of_sample: Sequence[int],
    budget: int,
    *,
    whole: bool = False,
    ranks: int = 1,
) -> list[list[int]]:
    """Sample indices per micro-batch, at most `budget` model-input tokens each (shared prefixes counted once), in as few
    micro-batches as first fit needs, their loads evened out.

    Groups stay whole where they fit; a group that does not fit is cut between samples, each part with its prefix: into
    even parts, or into full ones where what then remains makes fewer micro-batches. A sample larger than the budget is
    alone. whole: rows are packed whole. The order is a function of the input only.

    Several ranks work side by side: micro-batch i is computed by rank i modulo `ranks`. Then there are as many for each rank,
    what is computed at the same time is alike in size, and a group that fits is cut too where that ends sooner, its prefix
    counted again. Where samples are fewer than ranks, the last micro-batches are empty.
    """
    by_group: dict[int, list[int]] = {}
    for s, group in enumerate(group_of_sample):
        by_group.setdefault(group, []).append(s)
    groups = list[_Group]()
    for members in by_group.values():
        inputs = {s: [needed(row, whole) for row in samples[s]] for s in members}
        shared = common_prefix([ids for of_sample in inputs.values() for ids in of_sample])
        groups.append(_Group(shared, [_Piece(sum(len(ids) - shared for ids in inputs[s]), [s]) for s in members]))
    if ranks > 1:
        return _side_by_side(groups, budget, ranks)

    def joined(cut: _Cut) -> list[_Piece]:
        return _evened([piece for group in groups for piece in group.cut(budget, cut)], budget)

    return [piece.samples for piece in min(joined(_evened), joined(_filled), key=len)]  # of equals the first


def stand_in(samples: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """What a rank reads that has no samples left while the others read theirs: two tokens that one of these begins with, so
    nothing is computed that is not computed elsewhere.
    """
    start = next((list(row.ids[:2]) for rows in samples for row in rows if len(row.ids) > 1), [0, 0])
    return (Row(start, [False, True], [0.0, 0.0], [-1, -1]),)


def _side_by_side(groups: Sequence[_Group], budget: int, ranks: int) -> list[list[int]]:
    """For so many ranks, of several ways to cut the groups the one that ends first: a turn takes as long as its largest."""
    samples, total = sum(len(group.own) for group in groups), sum(group.size for group in groups)
    turns = -(-total // (budget * ranks))
    share = total / max(turns * ranks, 1)
    found = [_dealt(groups, int(limit), budget, ranks) for limit in (budget, share, share / 2, share / 4, 0)]
    enough = [dealt for dealt in found if sum(bool(piece.samples) for piece in dealt) >= min(ranks, samples)]
    best = min(enough, key=lambda dealt: sum(piece.size for piece in dealt[::ranks]))  # of equals the coarsest
    return [sorted(piece.samples) for piece in best]


def _dealt(groups: Sequence[_Group], limit: int, budget: int, ranks: int) -> list[_Piece]:
    """The groups, cut where they are above the limit, in as few turns of `ranks` micro-batches as can be had: the largest
    piece first, each to the lightest so far. The largest micro-batches come first.
    """
    pieces = [piece for group in groups for piece in group.cut(min(limit, budget), _evened)]
    count = -(-len(_filled(pieces, budget)) // ranks) * ranks
    while True:
        lightest = [(0, 0, place) for place in range(count)]  # by size, then by pieces: some samples have no tokens
        dealt = [_Piece(0, []) for _ in lightest]
        for piece in _largest_first(pieces):
            _, held, place = lightest[0]
            _join(dealt, place, piece)
            heapq.heapreplace(lightest, (dealt[place].size, held + 1, place))
        if all(size <= budget or held == 1 for size, held, _ in lightest):
            return _largest_first(dealt)
        count += ranks


class _Piece(NamedTuple):
    """Samples that stay together, and how many model-input tokens they are."""

    size: int
    samples: list[int]


_Cut = Callable[[Sequence[_Piece], int], list[_Piece]]


class _Group(NamedTuple):
    """Samples with a common prefix of `shared` tokens, and what each of them adds."""

    shared: int
    own: list[_Piece]

    @property
    def size(self) -> int:
        return self.shared + sum(piece.size for piece in self.own)

    def cut(self, limit: int, cut: _Cut) -> list[_Piece]:
        """Pieces of at most `limit` tokens, each with the prefix, or of one sample."""
        return [_Piece(self.shared + p.size, sorted(p.samples)) for p in cut(self.own, limit - self.shared)]


def _evened(pieces: Sequence[_Piece], budget: int) -> list[_Piece]:
    """The pieces joined to as few as first fit makes, none above the budget but a single one, and as even as can be had:
    the largest first, each to the lightest so far. Where that does not fit, first fit it is, whose loads are near the budget.
    """
    fitted, even = _filled(pieces, budget), list[_Piece]()
    for piece in _largest_first(pieces):
        fit = len(even) if len(even) < len(fitted) else min(range(len(even)), key=lambda i: even[i].size)
        if fit < len(even) and even[fit].size + piece.size > budget:
            return fitted
        _join(even, fit, piece)
    return even


def _filled(pieces: Sequence[_Piece], budget: int) -> list[_Piece]:
    """The pieces joined by first fit, the largest first: the first joined pieces are as full as can be had."""
    filled = list[_Piece]()
    for piece in _largest_first(pieces):
        fit = next((i for i, other in enumerate(filled) if other.size + piece.size <= budget), len(filled))
        _join(filled, fit, piece)
    return filled


def _largest_first(pieces: Sequence[_Piece]) -> list[_Piece]:
    return sorted(pieces, key=lambda piece: -piece.size)  # stable: equal sizes keep the given order


def _join(pieces: list[_Piece], place: int, piece: _Piece) -> None:
    """Add to the piece at this place; at the end, as a new one."""
    if place == len(pieces):
        pieces.append(_Piece(piece.size, list(piece.samples)))
    else:
        pieces[place] = _Piece(pieces[place].size + piece.size, pieces[place].samples + piece.samples)
