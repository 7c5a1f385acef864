"""Attention of rows that share prefixes, forward and backward, one cache-sized step at a time.

A block holds one unit per prefix, and as many rows side by side in each: rows of similar length, of one prefix or of
several. A step lays what each of its rows sees side by side, root, prefix and the row's own keys, so that one product
makes all its scores and every array is whole; a copy of a prefix lives for one step. Queries, keys and values are kept for
the backward pass, and the weights only where they are at most so many times as many numbers (`KEPT`): else it computes them
again, so memory grows with tokens and time with tokens times what they see. Nothing is computed across rows or behind a
window. Scores are rounded to the precision of the queries before a softmax that computes in float32 at least, as in
Hugging Face's eager attention.

Shapes: N model-input tokens, U units of a block, R rows of a unit, Q tokens of its longest row, S = U R Q slots (of one
block, or of all), C queries of one step, L keys that a row sees in a step: some of root and prefix, then some own ones, then one
column for a sink and padding; H query heads, K key/value heads, G = H / K, D width of keys or values, B = K U R.
Left out: dropout, and any mask beside causal order and window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partita.models.attention import Rule

# Query-key pairs of one step, and about how many query heads go through it together: three million scores. Half as many pairs
# took up to 7 % longer, a quarter of them 9 to 22 %.
PAIRS = 1 << 18
HEADS = 12
# Queries of one step: more of them waste products above the diagonal, fewer leave the matrices too thin.
MOST_QUERIES, LEAST_QUERIES = 128, 16

# Scores lie in rows of whole vectors: the softmax of an odd row in bfloat16 takes twice as long.
LANES = 32

# Attention weights are kept for the backward pass where they are at most so many times as many numbers as queries, keys and
# values: a sixth of the time of both passes after prompts of 300 tokens, for a tenth more memory of a step.
KEPT = 4

# Rows of scores that are shorter get a mask for every query head, so that both are read in one go.
SHORT = 256


@dataclass(frozen=True)
class Block:
    """Units of equally many rows of up to `width` own tokens, after prefixes of up to `before` tokens or after none.

    spans: where each row's tokens lie in N, first and end, unit by unit. lead: how much padding a unit has after the first `root`
    keys, which are those of what all prefixes follow: prefixes are padded on the left, so that they end where their rows begin;
    rows are padded on the right. shared: which block holds the prefixes, as units of one row each, or, of prefixes, the root.
    """

    spans: tuple[tuple[int, int], ...]
    width: int
    lead: tuple[int, ...] = (0,)
    before: int = 0
    shared: int | None = None
    root: int = 0

    @property
    def units(self) -> int:
        """U."""
        return len(self.lead)

    @property
    def rows(self) -> int:
        """U R."""
        return len(self.spans)

    def tokens_S(self) -> Tensor:
        """Which token of N lies in each slot, -1 for padding."""
        token_RQ = torch.full((self.rows, self.width), -1)
        for r, (first, end) in enumerate(self.spans):
            at = self.lead[r * self.units // self.rows] if self.before == self.root else 0
            token_RQ[r, at : at + end - first] = torch.arange(first, end)
        return token_RQ.flatten()


class Slots:
    """Moves what each token has between its place in N and its slot in a block: one gather for all blocks together."""

    def __init__(self, blocks: Sequence[Block], heads: int, device: torch.device) -> None:
        tokens = [block.tokens_S() for block in blocks]
        # block by block and head by head, so that a head's slots in a block are one matrix
        token_X = torch.cat([token_S.repeat(heads) for token_S in tokens])
        head_X = torch.cat([torch.arange(heads).repeat_interleave(len(token_S)) for token_S in tokens])
        padding_X = token_X < 0
        place_X = token_X.clamp(min=0) * heads + head_X
        back = torch.empty(int((~padding_X).sum()), dtype=torch.int64)
        back[place_X[~padding_X]] = torch.arange(len(place_X))[~padding_X]
        self._place_X, self._back, self._padding = (
            x.to(device) for x in (place_X, back, padding_X.nonzero().flatten())
        )
        self._heads, self._blocks = heads, blocks

    def take(self, x_NHD: Tensor) -> Tensor:
        """[N, H, D] -> [K S, G D]. Padding holds some token: what it attends to is never read."""
        return x_NHD.reshape(len(self._back), -1).index_select(0, self._place_X)

    def take_gradient(self, x_NHD: Tensor) -> Tensor:
        """[N, H, D] -> [K S, G D], zero in the padding, which then gives nothing to any gradient."""
        x_XD = self.take(x_NHD)
        return x_XD.index_fill_(0, self._padding, 0) if len(self._padding) else x_XD

    def put(self, x_XD: Tensor, shape: torch.Size) -> Tensor:
        """What `take` took, [K S, G D] -> [N, H, D], of the first two of this shape."""
        return x_XD.index_select(0, self._back).view(*shape[:2], -1)

    def views(self, x_XD: Tensor) -> list[Tensor]:
        """[K, U R, Q, G D] of each block."""
        sizes = [self._heads * block.rows * block.width for block in self._blocks]
        shapes = [(self._heads, block.rows, block.width, -1) for block in self._blocks]
        return [part.view(shape) for part, shape in zip(x_XD.split(sizes), shapes, strict=True)]


@dataclass
class Step:
    """Queries `first` to `end` of every row of one block, and the keys that they see: those before it from `prefix_first` on and
    own keys from `own_first` on, as far as the window allows. below: the blocks of the keys before it, the root's first.
    """

    at: int
    block: Block
    below: tuple[int, ...]
    first: int
    end: int
    window: int | None
    masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict[tuple[Any, ...], Tensor])

    def __post_init__(self) -> None:
        before = self.block.before
        slack = max(self.block.lead) if self.block.root else 0  # so much nearer a root may be than where it is laid
        seen = 0 if self.window is None else max(0, before + self.first - self.window + 1 - slack)
        self.prefix_first, self.own_first = min(seen, before), max(0, seen - before)
        self.prefix = before - self.prefix_first
        self.keys = self.prefix + self.end - self.own_first

    @property
    def whole(self) -> bool:
        """Whether the block has no other step."""
        return self.end - self.first == self.block.width

    def queries(self, of_blocks: Sequence[Tensor], groups: int) -> Tensor:
        """[K, U R, Q, G D] of every block -> [K U R, C G, D] of this step, a view."""
        x_KRQD = of_blocks[self.at]
        x_BMD = x_KRQD.view(x_KRQD.shape[0] * self.block.rows, self.block.width * groups, -1)
        return x_BMD[:, self.first * groups : self.end * groups]

    def seen(self, of_blocks: Sequence[Tensor], columns: int) -> Tensor:
        """[K, U R, Q, D] of every block -> [K U R, L, D]: what each row sees, with zeros after it; a view where it can be one."""
        parts = self._parts(of_blocks)
        if len(parts) == 1 and self.keys == columns:
            return parts[0]
        rows = of_blocks[self.at].shape[0] * self.block.rows
        x_BLD, at = parts[0].new_empty(rows, columns, parts[0].shape[2]), 0
        for part in parts:
            _of(x_BLD, part, at).copy_(part[:, None])
            at += part.shape[1]
        x_BLD[:, at:] = 0
        return x_BLD

    def give(self, d_BLD: Tensor, of_blocks: Sequence[Tensor], often: Set[int]) -> None:
        """Hand the gradient of what `seen` laid out back to where it came from: added in the blocks that several steps see."""
        *before, own = self._parts(of_blocks)
        at = 0
        for part in before:
            d_part = _of(d_BLD, part, at)
            part.add_(d_part[:, 0] if d_part.shape[1] == 1 else d_part.sum(1, dtype=part.dtype))
            at += part.shape[1]
        d_own = d_BLD[:, self.prefix : self.keys]
        own.add_(d_own) if self.at in often else own.copy_(d_own)

    def _parts(self, of_blocks: Sequence[Tensor]) -> list[Tensor]:
        """What is seen of the root [K, root, D], of the prefixes [K U, prefix, D] and of the rows [K U R, own, D], views; what is
        not seen at all is left out.
        """
        found, skip = list[Tensor](), self.prefix_first
        for below in self.below:
            keys = of_blocks[below].flatten(0, 1)
            if skip < keys.shape[1]:
                found.append(keys[:, skip:])
            skip = max(0, skip - keys.shape[1])
        return [*found, of_blocks[self.at].flatten(0, 1)[:, self.own_first : self.end]]

    def scores(self, heads: int, groups: int, sinks: bool) -> torch.Size:
        """[K U R, C G, L] for so many key heads, L rounded up to whole vectors."""
        width = self.keys + sinks
        return torch.Size([heads * self.block.rows, (self.end - self.first) * groups, -(-width // LANES) * LANES])

    def mask(self, like: Tensor, groups: int) -> Tensor:
        """[U or 1, 1, C, G or 1, the last so many of L]: 0, or minus infinity where a key comes later, lies behind the window,
        or is padding before what a unit holds or after all keys.
        """
        known = like.dtype, groups, like.shape[-1]
        if known not in self.masks:
            self.masks[known] = self._mask(like, groups if like.shape[-1] < SHORT else 1)
        return self.masks[known]

    def _mask(self, like: Tensor, groups: int) -> Tensor:
        before, padded, device = self.block.before, any(self.block.lead), like.device
        query = before + torch.arange(self.first, self.end, device=device)[:, None]
        # without padding before a unit and without a window every query sees all keys before the first query's own
        seen = 0 if padded or self.window is not None else self.prefix + self.first - self.own_first
        key_UL = torch.cat(
            [
                torch.arange(self.prefix_first, before, device=device),
                before + torch.arange(self.own_first, self.end, device=device),
                torch.full((like.shape[-1] - self.keys,), before + self.end, device=device),  # later than any query
            ]
        )[seen:][None, None]
        if padded:
            lead, root = torch.tensor(self.block.lead, device=device)[:, None, None], self.block.root
            # padding sees itself, so that no softmax is over nothing
            hidden = (key_UL >= root) & (key_UL < root + lead) & (query >= root + lead)
            key_UL = torch.where(
                key_UL < root, key_UL + lead, key_UL
            )  # no padding lies between a root and what follows it
            hidden = hidden | (query < key_UL)
        else:
            hidden = query < key_UL
        if self.window is not None:
            hidden = hidden | (query - key_UL >= self.window)
        mask = torch.zeros(hidden.shape, dtype=like.dtype, device=device).masked_fill_(hidden, -torch.inf)
        return mask[:, None, :, None].expand(-1, -1, -1, groups, -1).contiguous()


def plan(blocks: Sequence[Block], window: int | None) -> list[Step]:
    """What attention under this window does, block by block."""
    found = list[Step]()
    for at, block in enumerate(blocks):
        below = tuple(_below(blocks, block))[::-1]
        found += [Step(at, block, below, *cut, _bound(block, window)) for cut in _cuts(block)]
    return found


def _below(blocks: Sequence[Block], block: Block) -> Iterator[int]:
    """The blocks of the keys before a block's own, the nearest first."""
    while block.shared is not None:
        yield block.shared
        block = blocks[block.shared]


def _bound(block: Block, window: int | None) -> int | None:
    """The window if it hides anything in this block."""
    return None if window is None or window >= block.before + block.width else window


def _cuts(block: Block) -> list[tuple[int, int]]:
    """First and end of each step's queries. Several rows of a prefix are a block only if they are no more than one step."""
    return [(0, block.width)] if block.rows > block.units else cuts(block.rows, block.width, block.before)


def cuts(rows: int, width: int, before: int) -> list[tuple[int, int]]:
    """First and end of the queries of steps of about `PAIRS` pairs: every row `width` tokens long and after `before` others."""
    found, first = list[tuple[int, int]](), 0
    while first < width:
        seen = before + first
        most = int((seen**2 + 4 * PAIRS / rows) ** 0.5 - seen) // 2  # rows C (seen + C) <= PAIRS
        count = min(MOST_QUERIES, max(LEAST_QUERIES, most // LEAST_QUERIES * LEAST_QUERIES))
        found.append((first, min(first + count, width)))
        first += count
    return found


@dataclass(frozen=True)
class Work:
    """The slots of a micro-batch, the steps through its blocks and the rule that all of them follow."""

    slots: Slots
    steps: Sequence[Step]
    rule: Rule

    def often(self) -> set[int]:
        """Blocks whose keys more than one step sees."""
        shared = {step.block.shared for step in self.steps if step.block.shared is not None}
        return shared | {step.at for step in self.steps if not step.whole}

    def weights(self, heads: int, key_heads: int) -> int:
        """How many attention weights there are."""
        sinks = self.rule.sinks_H is not None
        return sum(step.scores(key_heads, heads // key_heads, sinks).numel() for step in self.steps)


def attend_blocks(q: Tensor, k: Tensor, v: Tensor, work: Work) -> Tensor:
    """[N, H, D], [N, K, D] x 2 -> [N, H, D of the values]; every token lies in one block."""
    return cast(Tensor, _Attend.apply(q, k, v, work.rule.sinks_H, work))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks_H: Tensor | None, work: Work) -> Tensor:
        given = cast("tuple[Tensor, Tensor, Tensor]", tuple(work.slots.take(x) for x in (q, k, v)))
        out_X = q.new_empty(len(given[0]), q.shape[1] // k.shape[1] * v.shape[2])
        few = work.weights(q.shape[1], k.shape[1]) <= KEPT * sum(x.numel() for x in given)
        few = few and work.rule.softcap is None
        keeps = few and any(ctx.needs_input_grad)
        kept = [slab.forward(out_X, keeps) for slab in _slabs(work, q.shape[1], k.shape[1], sinks_H, given)]
        ctx.save_for_backward(*given, sinks_H, *(weights for of_slab in kept for weights in of_slab))
        ctx.work, ctx.heads, ctx.shapes = work, (q.shape[1], k.shape[1]), (q.shape, k.shape, v.shape)
        return work.slots.put(out_X, q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_X, k_X, v_X, sinks_H, *weights = ctx.saved_tensors
        slots, given, kept = ctx.work.slots, (q_X, k_X, v_X), iter(weights)
        grad_X = slots.take_gradient(grads[0])
        found = (torch.empty_like(q_X), torch.empty_like(k_X), torch.empty_like(v_X))
        heads, key_heads = ctx.heads
        d_sinks = [slab.backward(grad_X, found, kept) for slab in _slabs(ctx.work, heads, key_heads, sinks_H, given)]
        d_sinks_H = None if sinks_H is None else torch.cat(d_sinks).to(sinks_H.dtype)
        d_q, d_k, d_v = (slots.put(d, shape) for d, shape in zip(found, ctx.shapes, strict=True))
        return d_q, d_k, d_v, d_sinks_H, None


def _slabs(
    work: Work, heads: int, key_heads: int, sinks_H: Tensor | None, given: tuple[Tensor, Tensor, Tensor]
) -> Iterator[_Slab]:
    """Key heads and their query heads that go through the steps together."""
    groups = heads // key_heads
    count = max(1, HEADS // groups)
    for first in range(0, key_heads, count):
        some = slice(first, min(first + count, key_heads))
        sinks = None if sinks_H is None else sinks_H.view(key_heads, 1, 1, groups)[some]
        yield _Slab(work, some, groups, sinks, given)


class _Slab:
    """Some heads of one call, and two workspaces that hold the scores and weights of one step after the other."""

    def __init__(
        self, work: Work, some: slice, groups: int, sinks: Tensor | None, given: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        self.work, self.rule, self.some, self.groups, self.sinks = work, work.rule, some, groups, sinks
        self.heads = some.stop - some.start
        self.queries, self.keys, self.values = (self._of_blocks(x) for x in given)
        self.often = work.often()
        self.spaces = given[0].new_empty(2, max(self._shape(step).numel() for step in work.steps))

    def forward(self, out: Tensor, keeps: bool) -> list[Tensor]:
        """Fill `out` [K S, G D]; the weights of each step where they are to be kept."""
        out_b, kept = self._of_blocks(out), list[Tensor]()
        for step in self.work.steps:
            shape = self._shape(step)
            keys, values = (step.seen(x, shape[-1]) for x in (self.keys, self.values))
            space = out.new_empty(shape) if keeps else self._space(step, 1)
            weights, _ = self._weights(step, step.queries(self.queries, self.groups), keys, space)
            _product(weights, values, step.queries(out_b, self.groups))
            kept += [weights] if keeps else []
        return kept

    def backward(self, grad: Tensor, found: tuple[Tensor, Tensor, Tensor], kept: Iterator[Tensor]) -> Tensor:
        """Fill the gradients of queries, keys and values, given that of the output and, where they were kept, the next
        weights; gives that of the sinks [H].
        """
        grad_b, d_q_b, d_k_b, d_v_b = (self._of_blocks(x) for x in (grad, *found))
        d_keys, d_values = self._sums(d_k_b), self._sums(d_v_b)
        d_sinks = grad.new_zeros(self.heads, self.groups, dtype=_wide(grad))
        for step in self.work.steps:
            q, g = step.queries(self.queries, self.groups), step.queries(grad_b, self.groups)
            keys, values = (step.seen(x, self._shape(step)[-1]) for x in (self.keys, self.values))
            weights, slope = next(kept, None), None
            if weights is None:
                weights, slope = self._weights(step, q, keys, self._space(step, 1))
            step.give(torch.bmm(weights.transpose(1, 2), g), d_values, self.often)
            d_scores = self._d_scores(step, weights, values, g)
            if self.sinks is not None:
                of_head = d_scores.view(self.heads, -1, self.groups, d_scores.shape[-1])
                d_sinks += of_head[..., step.keys].sum(1, dtype=d_sinks.dtype)
            if slope is not None:
                d_scores *= slope
            _product(d_scores, keys, step.queries(d_q_b, self.groups), self.rule.scaling)
            d_keys_BLD = torch.empty_like(keys, memory_format=torch.contiguous_format)
            step.give(_product(d_scores.transpose(1, 2), q, d_keys_BLD, self.rule.scaling), d_keys, self.often)
        for given, sums in ((d_k_b, d_keys), (d_v_b, d_values)):
            for to, x in zip(given, sums, strict=True):
                if to is not x:
                    to.copy_(x)
        return d_sinks.flatten()

    def _of_blocks(self, x_XD: Tensor) -> list[Tensor]:
        return [x[self.some] for x in self.work.slots.views(x_XD)]

    def _sums(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Where gradients of each block's keys or values gather: wide and zero where more than one step adds to them."""
        return [torch.zeros_like(x, dtype=_wide(x)) if at in self.often else x for at, x in enumerate(given)]

    def _weights(self, step: Step, q: Tensor, keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Softmax weights [K U R, C G, L], written to the last of the arguments, and the slope of the soft-cap at each score."""
        scores = _product(q, keys.transpose(1, 2), self._space(step, 0), self.rule.scaling)
        slope = None
        if self.rule.softcap is not None:
            scores.div_(self.rule.softcap).tanh_()
            slope = 1 - scores.square()
            scores.mul_(self.rule.softcap)
        mask = step.mask(scores, self.groups)
        by_unit = scores.view(self.heads, step.block.units, -1, step.end - step.first, self.groups, scores.shape[-1])
        by_unit[..., scores.shape[-1] - mask.shape[-1] :] += mask
        if self.sinks is not None:  # a sink takes probability and gives nothing
            of_head = scores.view(self.heads, -1, 1, self.groups, scores.shape[-1])
            of_head[..., step.keys] = self.sinks.to(scores.dtype)
        torch.ops.aten._softmax.out(scores, -1, False, out=weights)
        return weights, slope

    def _d_scores(self, step: Step, weights: Tensor, values: Tensor, g: Tensor) -> Tensor:
        """Gradient of the (capped) scores, in the place where the scores were."""
        d = torch.bmm(g, values.transpose(1, 2), out=self._space(step, 0))
        # what autograd runs for softmax: w (d - sum w d), summed in float32 at least
        return torch.ops.aten._softmax_backward_data.out(d, weights, -1, d.dtype, grad_input=d)

    def _shape(self, step: Step) -> torch.Size:
        return step.scores(self.heads, self.groups, self.sinks is not None)

    def _space(self, step: Step, which: int) -> Tensor:
        shape = self._shape(step)
        return self.spaces[which, : shape.numel()].view(shape)


def _of(x_BLD: Tensor, part: Tensor, at: int) -> Tensor:
    """Where a part of the keys lies in each row from `at` on: [rows of the part, rows of x for each of them, keys, D]."""
    return x_BLD.view(part.shape[0], -1, *x_BLD.shape[1:])[:, :, at : at + part.shape[1]]


def _product(a: Tensor, b: Tensor, out: Tensor, factor: float = 1.0) -> Tensor:
    """out = factor a b, batch by batch."""
    return torch.baddbmm(out, a, b, beta=0, alpha=factor, out=out)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
