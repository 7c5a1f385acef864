"""Keys and values of the live slots, and of prompts that several of them share.

Rows 0 .. B-1 of every tensor are the live slots, as long as the longest of them needs, rounded up: a decode step reads
them where they lie and copies none, and hides what a shorter slot does not have. The layers and their head sizes are
those of the first prefill. A short prompt is copied into its slots; a long one that several slots start with is held
once, in front of what each slot adds.

Shapes: B live slots, G prompts (of a prefill, or held once), P their longest, S most slots of one prompt, K key/value heads,
H query heads, F = H / K, Q query tokens, L key positions of a slot, D head width, R rows of a batched product: (slot, key
head), or (prompt, key head, slot).
Left out: attention (`engine.layouts`), and paging. A slot owns one contiguous stretch, which suits the tens of slots of one
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.engine.layouts import DecodeLayout, Groups, SharedLayout
from partita.engine.scheduler import Moves
from partita.models.attention import Layout

# Coarser steps of length would read more padding, finer ones would lay the memory out anew more often.
LENGTH_BITS = 4

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


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """[K, P, D] of several prompts as one [G, K, P, D], zero behind the shorter ones."""
    longest = max(part.shape[1] for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])


def stretch(end: int, context: int) -> int:
    """The length of memory in which slots of up to `end` tokens lie: up to a sixteenth more, no more than a context."""
    step = 1 << max(LENGTH_BITS, end.bit_length() - 1 - LENGTH_BITS)
    return max(end, min(context, -(-end // step) * step))
