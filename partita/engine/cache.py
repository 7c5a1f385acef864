"""Keys and values of the live slots, and how decode and prefill attend over them.

Rows 0 .. B-1 of every tensor are the live slots, as long as the longest of them needs, rounded up: a decode step reads
them where they lie and copies none, and hides what a shorter slot does not have. The layers and their head sizes are
those of the first prefill. A short prompt is copied into its slots; a long one that several slots start with is held
once, in front of what each slot adds.

Shapes: B live slots, G prompts (of a prefill, or held once), P their longest, S most slots of one prompt, K key/value heads,
H query heads, F = H / K, Q query tokens, L key positions of a slot, D head width, R rows of a batched product: (slot, key
head), or (prompt, key head, slot).
Left out: paging. A slot owns one contiguous stretch, which suits the tens of slots of one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.engine.scheduler import Moves
from partita.models.attention import Layout, Rule, attend_masked

# Coarser steps of length would read more padding, finer ones would lay the memory out anew more often.
LENGTH_BITS = 4

# Scores of one layer's prefill that two products and a softmax handle in cache.
FEW_SCORES = 1 << 22

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


class Memory:
    """Keys or values of one layer, `laid` out as [rows, K, length, D] at the front of a flat piece of memory: another
    layout rarely needs another piece. Whatever stands in it is zero or was written once, so finite.
    """

    def __init__(self, like_KPD: Tensor, rows: int, length: int, most: int) -> None:
        """most: tokens of all rows together for which memory is taken in advance."""
        heads, _, width = like_KPD.shape
        self._most = most * heads * width
        self._flat = like_KPD.new_zeros(rows * heads * length * width)
        self.laid = self._flat.view(rows, heads, length, width)

    def lay(self, rows: int, length: int, live: int) -> None:
        """Lay out so many rows of this length, and keep what fits of the first `live` ones."""
        _, heads, before, width = self.laid.shape
        need, kept = rows * heads * length * width, self.laid[:live, :, :length]
        grows, moves = need > self._flat.numel(), length != before
        if grows:  # by a half, so that growing stays rare
            self._flat = self._flat.new_zeros(max(need, min(self._most, self._flat.numel() * 3 // 2)))
        elif moves:
            kept = kept.clone()
        self.laid = self._flat[:need].view(rows, heads, length, width)
        if grows or moves:
            self.laid[:live, :, : kept.shape[2]] = kept


class SlotCache:
    """Keys and values of all slots by layer, in `rows` rows of `length` tokens.

    Behind a slot's last token lies what others left there, which layouts hide. How long rows are at a step depends on the
    longest slot alone and not on what came before, for the bits of a sum depend on its length.
    `prompts`: the one that a row's own tokens come after, where it is held once, else ().
    """

    def __init__(self, slots: int, context: int) -> None:
        self._slots, self._context = slots, context
        self._layers: dict[int, tuple[Memory, Memory]] = {}
        self.rows = self.length = 0
        self.prompts: list[tuple[int, ...]] = []
        self._held: dict[tuple[int, ...], Prefix] = {}
        self._order: list[Prefix] = []  # as they lie in _stacked
        self._stacked: dict[int, tuple[Tensor, Tensor]] = {}
        self._groups: Groups | None = None  # until who follows what changes: hashing long prompts takes a while

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` slots, no fewer than are live, of `length` tokens or as many as there is room for now."""
        self._lay(rows, max(self.length, stretch(length, self._context)))

    def write(self, first: int, count: int, prefix: Prefix) -> None:
        """Copy a prompt into rows `first` .. `first + count - 1`; `reserve` must have made room."""
        self.prompts[first : first + count], self._groups = [()] * count, None
        self._ready(prefix)
        for layer, pair in prefix.layers.items():
            for memory, new in zip(self._layers[layer], pair, strict=True):
                memory.laid[first : first + count, :, : new.shape[1]] = new

    def follow(self, first: int, count: int, prompt: tuple[int, ...], prefix: Prefix) -> None:
        """Let rows `first` .. `first + count - 1` start after a prompt that is held once; `hold` must come before a step."""
        self.prompts[first : first + count], self._groups = [prompt] * count, None
        self._ready(prefix)
        self._held[prompt] = prefix

    def hold(self) -> None:
        """Lay the prompts that live rows follow side by side, padded to the longest; forget the others."""
        self._held = {prompt: self._held[prompt] for prompt in dict.fromkeys(self.prompts) if prompt}
        order, self._groups = list(self._held.values()), None
        if len(order) == len(self._order) and all(a is b for a, b in zip(order, self._order, strict=True)):
            return
        self._order, self._stacked = order, {}
        for layer in self._layers if order else ():
            pairs = [prefix.layers[layer] for prefix in order]
            self._stacked[layer] = (_padded([k for k, _ in pairs]), _padded([v for _, v in pairs]))

    def move(self, moves: Moves) -> None:
        """Fill the rows of retired slots with the last live ones."""
        for source, target in zip(moves.sources, moves.targets, strict=True):
            self.prompts[target] = self.prompts[source]
        del self.prompts[moves.live :]
        self._groups = None
        if moves.sources:
            sources, targets = torch.tensor(moves.sources), torch.tensor(moves.targets)
            for memory in chain.from_iterable(self._layers.values()):
                memory.laid[targets] = memory.laid[sources]

    def step(self, positions: Sequence[int], device: torch.device) -> tuple[CallCache, Layout]:
        """The cache and the layout of one decode step, in which slot b's token is at `positions[b]` of its sequence."""
        before = [len(prompt) for prompt in self.prompts]
        own = [position - length for position, length in zip(positions, before, strict=True)]
        self._lay(len(own), stretch(max(own) + 1, self._context))
        own_B = torch.tensor(own, device=device)
        if not any(before):
            return self._call(own, own_B, max(positions), None), DecodeLayout(own_B, full=min(own) + 1 == self.length)
        if self._groups is None:
            numbers = {prompt: g for g, prompt in enumerate(self._held)}  # `hold` keeps both in one order
            self._groups = Groups([numbers.get(prompt, -1) for prompt in self.prompts], len(numbers), device)
        layout = SharedLayout(self._groups, before, own_B)
        return self._call(own, own_B, max(positions), layout), layout

    def _call(self, own: Sequence[int], own_B: Tensor, past: int, shared: SharedLayout | None) -> CallCache:
        rows_B, even, last = torch.arange(len(own), device=own_B.device), len(set(own)) == 1, own[0]

        def put(memory: Memory, new: Tensor) -> Tensor:
            if even:  # in half the time of a scattered write
                memory.laid[:, :, last : last + 1] = new
            else:
                memory.laid[rows_B, :, own_B] = new[:, :, 0]
            return memory.laid

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            k, v = self._layers[layer]
            if shared is not None:
                shared.held = self._stacked[layer]
            return put(k, keys), put(v, values)

        return CallCache(past, store)

    def _ready(self, prefix: Prefix) -> None:
        for layer, (k, v) in prefix.layers.items():
            if layer not in self._layers:
                most = self._slots * self._context
                self._layers[layer] = (Memory(k, self.rows, self.length, most), Memory(v, self.rows, self.length, most))

    def _lay(self, rows: int, length: int) -> None:
        if (rows, length) != (self.rows, self.length):
            self.rows, self.length = rows, length
            for memory in chain.from_iterable(self._layers.values()):
                memory.lay(rows, length, len(self.prompts))


class DecodeLayout:
    """One query token per slot over that slot's own keys."""

    def __init__(self, position_B: Tensor, full: bool) -> None:
        """`full`: every slot's token is the last of its memory, so that no slot has anything to hide."""
        self._position_B, self._full = position_B, full
        self._bias: dict[tuple[int | None, torch.Size], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. Two batched products over grouped heads: fused kernels are slow on CPU for one query row."""
        batch, heads, _, width = q.shape
        scores = _scores(q.reshape(batch * k.shape[1], -1, width), k.flatten(0, 1), rule)
        weights = _weights(scores, self._bias_for(rule.window, scores), rule, batch)
        return torch.bmm(weights, v.flatten(0, 1)).view(batch, 1, heads, -1)

    def _bias_for(self, window: int | None, scores: Tensor) -> Tensor | None:
        """See `_bias`; None where every slot sees everything."""
        length = scores.shape[-1]
        if self._full and (window is None or window >= length):
            return None
        if (window, scores.shape) not in self._bias:
            behind_BL = self._position_B[:, None] - torch.arange(length, device=scores.device)
            hidden_BL = behind_BL < 0 if window is None else (behind_BL < 0) | (behind_BL >= window)
            self._bias[window, scores.shape] = _bias(hidden_BL[:, None], scores)
        return self._bias[window, scores.shape]


class Groups:
    """Which slots follow which of the prompts that are held once, and how rows of slots become rows of prompts and back.

    A slot that follows none stands with those of some prompt, and sees nothing of it.
    """

    def __init__(self, group_of_row: Sequence[int], count: int, device: torch.device) -> None:
        """group_of_row: the number of a slot's prompt, -1 for none; `count` prompts are held."""
        members: list[list[int]] = [[] for _ in range(count)]
        for row, group in enumerate(group_of_row):
            if group >= 0:
                members[group].append(row)
        for row in (row for row, group in enumerate(group_of_row) if group < 0):
            min(members, key=len).append(row)
        most = max(map(len, members))
        self.rows_GS = torch.tensor([[*rows, *[0] * (most - len(rows))] for rows in members], device=device)
        seats = {row: (group, seat) for group, rows in enumerate(members) for seat, row in enumerate(rows)}
        self._seats_B2 = torch.tensor([seats[row] for row in range(len(seats))], device=device)
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}

    def indices(self, keys: int) -> tuple[Tensor, Tensor]:
        """Indices into rows of (slot, key head): those of each (prompt, key head) side by side, [G K S], padded with any row;
        and where each (slot, key head) lies among them, [B K].
        """
        if keys not in self._indices:
            head_K, most = torch.arange(keys, device=self.rows_GS.device), self.rows_GS.shape[1]
            take = self.rows_GS[:, None] * keys + head_K[:, None]
            back = (self._seats_B2[:, :1] * keys + head_K) * most + self._seats_B2[:, 1:]
            self._indices[keys] = (take.flatten(), back.flatten())
        return self._indices[keys]


class SharedLayout:
    """One query token per slot over the prompt that it follows and its own keys: the queries of all slots of a prompt meet its
    keys in one product, so that these are read once, whatever the number of slots.

    The softmax runs where the prompts' scores lie, the longer ones: only queries and own scores change places.
    """

    def __init__(self, groups: Groups, before: Sequence[int], position_B: Tensor) -> None:
        """before: the length of each slot's prompt, 0 for none. position_B: of the slot's token among its own."""
        self.held: tuple[Tensor, Tensor] | None = None  # of the layer whose turn it is: [G, K, P, D] each
        self._groups, self._position_B = groups, position_B
        self._before_B = torch.tensor(before, device=position_B.device)
        self._bias: dict[tuple[int | None, torch.Size], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. One softmax over both parts."""
        assert self.held is not None, "the cache's turn comes before attention's in every layer"
        batch, heads, _, width = q.shape
        held_k, held_v = (x.flatten(0, 1) for x in self.held)
        take, back = self._groups.indices(k.shape[1])
        q_each, products, longest = q.reshape(batch * k.shape[1], -1, width), *held_k.shape[:2]
        q_held, fan = q_each.index_select(0, take).view(products, -1, width), q_each.shape[1]
        first = _scores(q_held, held_k, rule).view(-1, fan, longest)
        scores = torch.cat([first, _scores(q_each, k.flatten(0, 1), rule).index_select(0, take)], -1)
        bias = self._bias_for(rule.window, scores, longest)
        weights = _weights(scores, bias, rule, len(self.held[0]))
        out = torch.bmm(weights.view(products, -1, weights.shape[-1])[..., :longest], held_v)
        out = out.view(-1, fan, v.shape[-1]).index_select(0, back)
        out.baddbmm_(weights[..., longest:].index_select(0, back), v.flatten(0, 1))
        return out.view(batch, 1, heads, -1)

    def _bias_for(self, window: int | None, scores: Tensor, longest: int) -> Tensor:
        """See `_bias`: over P + L keys."""
        if (window, scores.shape) not in self._bias:
            at_P = torch.arange(longest, device=scores.device)
            at_L = torch.arange(scores.shape[-1] - longest, device=scores.device)
            here_B1, before_B1 = self._position_B[:, None], self._before_B[:, None]
            hidden = torch.cat([at_P >= before_B1, at_L > here_B1], 1)
            if window is not None:
                behind = torch.cat([here_B1 + before_B1 - at_P, here_B1 - at_L], 1)
                hidden |= behind >= window
            self._bias[window, scores.shape] = _bias(hidden[self._groups.rows_GS], scores)
        return self._bias[window, scores.shape]


class PrefillLayout:
    """Prompts padded on the right: causal order alone keeps real tokens from seeing padding."""

    def __init__(self) -> None:
        self._allowed: dict[int | None, Tensor] = {}
        self._bias: dict[tuple[int | None, torch.Size], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. Short prompts by two batched products on a CPU, where the fused kernel takes twice as long for them."""
        window = None if rule.window is None or rule.window >= q.shape[2] else rule.window
        plain = rule.softcap is None and rule.sinks_H is None
        if plain and q.device.type == "cpu" and q.shape[0] * q.shape[1] * q.shape[2] ** 2 <= FEW_SCORES:
            return self._by_products(q, k, v, Rule(rule.scaling, None, window, None))
        if window is None and plain:
            grouped = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scaling, enable_gqa=grouped)
            return out.transpose(1, 2)
        if window not in self._allowed:
            self._allowed[window] = _seen(q, window)[None, None]
        return attend_masked(q, k, v, self._allowed[window], rule).transpose(1, 2)

    def _by_products(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """The query heads of one key head are stacked, so that nothing is copied per query head."""
        rows, heads, queries, width = q.shape
        scores = _scores(q.reshape(rows * k.shape[1], -1, width), k.flatten(0, 1), rule)
        if (rule.window, scores.shape) not in self._bias:
            bias_QL = scores.new_zeros(queries, queries).masked_fill_(~_seen(q, rule.window), -torch.inf)
            self._bias[rule.window, scores.shape] = bias_QL.repeat(scores.shape[1] // queries, 1)
        weights = scores.add_(self._bias[rule.window, scores.shape]).softmax(-1)
        return torch.bmm(weights, v.flatten(0, 1)).view(rows, heads, queries, -1).transpose(1, 2)


def _seen(q: Tensor, window: int | None) -> Tensor:
    """[Q, Q] bool: which key each query sees."""
    at = torch.arange(q.shape[2], device=q.device)
    behind = at[:, None] - at
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


def _scores(q_RFD: Tensor, k_RLD: Tensor, rule: Rule) -> Tensor:
    """[R, F, L], scaled."""
    scores = q_RFD.new_empty(*q_RFD.shape[:2], k_RLD.shape[1])  # beta = 0: what stands there is not read
    return scores.baddbmm_(q_RFD, k_RLD.transpose(1, 2), beta=0, alpha=rule.scaling)


def _bias(hidden_GSL: Tensor, scores: Tensor) -> Tensor:
    """Minus infinity for what a slot does not see, else 0, once per score: odd rows would be slow to repeat on the way."""
    bias = torch.zeros(hidden_GSL.shape, dtype=scores.dtype, device=scores.device).masked_fill_(hidden_GSL, -torch.inf)
    (groups, slots, length), (rows, fan, _) = hidden_GSL.shape, scores.shape
    return bias[:, None, :, None].expand(-1, rows // (groups * slots), -1, fan, -1).reshape(rows, fan, length)


def _weights(scores: Tensor, bias: Tensor | None, rule: Rule, groups: int) -> Tensor:
    """The softmax of scaled scores [R, F, L] under the rule, in float32 at least, rounded to their precision; changes the
    scores. R counts groups, key heads and the slots of a group.
    """
    if rule.softcap is None and rule.sinks_H is None:  # the softmax of narrow scores computes in float32 by itself
        return (scores if bias is None else scores.add_(bias)).softmax(-1)
    (rows, fan, length), wide = scores.shape, scores.to(_wide(scores))
    if rule.softcap is not None:
        wide = torch.tanh(wide / rule.softcap) * rule.softcap
    if bias is not None:
        wide += bias
    if rule.sinks_H is not None:  # a sink takes probability and gives nothing
        sinks_KSF = rule.sinks_H.to(wide.dtype).view(-1, 1, fan)
        sinks = sinks_KSF.expand(groups, -1, rows // (groups * len(sinks_KSF)), -1)
        wide = torch.cat([wide, sinks.reshape(rows, fan, 1)], -1)
    return wide.softmax(-1)[..., :length].to(scores.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """[K, P, D] of several prompts as one [G, K, P, D], zero behind the shorter ones."""
    longest = max(part.shape[1] for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])


def stretch(end: int, context: int) -> int:
    """The length of memory in which slots of up to `end` tokens lie: up to a sixteenth more, no more than a context."""
    step = 1 << max(LENGTH_BITS, end.bit_length() - 1 - LENGTH_BITS)
    return max(end, min(context, -(-end // step) * step))
