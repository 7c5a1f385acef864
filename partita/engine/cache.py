"""Keys and values of the live slots, and how decode and prefill attend over them.

Rows 0 .. B-1 of every tensor are the live slots, so that a decode step reads a view and never gathers. Row capacity and
length grow with what is needed; the layers and their head sizes are those of the first prefill. A short prompt is copied
into its slots; a long one that several slots start with is held once, in front of what each slot adds.

Shapes: B live slots, G prompts (of a prefill, or held once), P their longest, S most slots of one prompt, K key/value heads,
H query heads, F = H / K, Q query tokens, L key positions of a slot, D head width.
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
from partita.models.attention import Layout, Rule, attend_masked

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
    """Keys and values of all slots by layer, each [rows, K, length, D], zero where nothing was written yet.

    `prompts`: the one that a row's own tokens come after, where it is held once, else ().
    """

    def __init__(self, slots: int, context: int) -> None:
        self._slots, self._context = slots, context
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.rows = self.length = 0  # capacity
        self.prompts: list[tuple[int, ...]] = []
        self._held: dict[tuple[int, ...], Prefix] = {}
        self._order: list[Prefix] = []  # as they lie in _stacked
        self._stacked: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` slots of `length` tokens, growing by at least a half so that growing stays rare."""
        if rows <= self.rows and length <= self.length:
            return
        self.rows = _grown(self.rows, rows, ROW_STEP, self._slots)
        self.length = _grown(self.length, length, LENGTH_STEP, self._context)
        self._layers = {layer: (self._bigger(k), self._bigger(v)) for layer, (k, v) in self._layers.items()}

    def write(self, first: int, count: int, prefix: Prefix) -> None:
        """Copy a prompt into rows `first` .. `first + count - 1`; `reserve` must have made room."""
        self.prompts[first : first + count] = [()] * count
        self._ready(prefix)
        for layer, pair in prefix.layers.items():
            for slots, new in zip(self._layers[layer], pair, strict=True):
                slots[first : first + count, :, : new.shape[1]] = new

    def follow(self, first: int, count: int, prompt: tuple[int, ...], prefix: Prefix) -> None:
        """Let rows `first` .. `first + count - 1` start after a prompt that is held once; `hold` must come before a step."""
        self.prompts[first : first + count] = [prompt] * count
        self._ready(prefix)
        self._held[prompt] = prefix

    def hold(self) -> None:
        """Lay the prompts that live rows follow side by side, padded to the longest; forget the others."""
        self._held = {prompt: self._held[prompt] for prompt in dict.fromkeys(self.prompts) if prompt}
        order = list(self._held.values())
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
        if moves.sources:
            sources, targets = list(moves.sources), list(moves.targets)
            for pair in self._layers.values():
                for slots in pair:
                    slots[targets] = slots[sources]

    def step(self, positions: Sequence[int], device: torch.device) -> tuple[CallCache, Layout]:
        """The cache and the layout of one decode step, in which slot b's token is at `positions[b]` of its sequence."""
        before = [len(prompt) for prompt in self.prompts]
        own = [position - length for position, length in zip(positions, before, strict=True)]
        end = max(own) + 1
        self.reserve(len(own), end)
        own_B = torch.tensor(own, device=device)
        if not any(before):
            return self._call(own_B, end, max(positions), None), DecodeLayout(own_B, end, ragged=min(own) + 1 < end)
        numbers = {prompt: g for g, prompt in enumerate(self._held)}  # `hold` keeps both in one order
        layout = SharedLayout([numbers.get(prompt, -1) for prompt in self.prompts], before, own_B, end)
        return self._call(own_B, end, max(positions), layout), layout

    def _call(self, position_B: Tensor, end: int, past: int, shared: SharedLayout | None) -> CallCache:
        rows_B = torch.arange(position_B.shape[0], device=position_B.device)

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            k, v = self._layers[layer]
            k[rows_B, :, position_B] = keys[:, :, 0]
            v[rows_B, :, position_B] = values[:, :, 0]
            if shared is not None:
                shared.held = self._stacked[layer]
            return k[: len(rows_B), :, :end], v[: len(rows_B), :, :end]

        return CallCache(past, store)

    def _ready(self, prefix: Prefix) -> None:
        for layer, (k, v) in prefix.layers.items():
            if layer not in self._layers:
                k_rows = k.new_zeros(self.rows, k.shape[0], self.length, k.shape[-1])
                self._layers[layer] = (k_rows, v.new_zeros(self.rows, v.shape[0], self.length, v.shape[-1]))

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
        weights = _weights(scores, self._bias_for(rule.window, _wide(q)), rule)
        return (weights @ v).view(batch, 1, heads, v.shape[-1])

    def _bias_for(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """[B, 1, 1, L]: minus infinity for what a slot does not see; None where it sees everything."""
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


class SharedLayout:
    """One query token per slot over the prompt that it follows and its own keys: the queries of all slots of a prompt meet its
    keys in one product, so that these are read once, whatever the number of slots.
    """

    def __init__(self, group_of_row: Sequence[int], before: Sequence[int], position_B: Tensor, end: int) -> None:
        """group_of_row: which held prompt a slot follows, -1 for none; before: its length. position_B: of the slot's token
        among its own, of which the largest is `end` - 1.
        """
        self.held: tuple[Tensor, Tensor] | None = None  # of the layer whose turn it is: [G, K, P, D] each
        self._group_of_row, self._position_B, self._end = group_of_row, position_B, end
        self._before_B = torch.tensor(before, device=position_B.device)
        free = [row for row, group in enumerate(group_of_row) if group < 0]
        self._free = torch.tensor(free, device=position_B.device) if free else None
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._bias: dict[int | None, Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. One softmax over both parts."""
        assert self.held is not None, "the cache's turn comes before attention's in every layer"
        batch, heads, _, width = q.shape
        (groups, keys, longest, _), fan = self.held[0].shape, heads // k.shape[1]
        held_k, held_v = (x.flatten(0, 1) for x in self.held)
        take, back = self._of(groups, keys)
        each_k, each_v = k.flatten(0, 1), v.flatten(0, 1)
        q_each = q.reshape(batch * keys, fan, width)
        q_held = q_each.index_select(0, take).view(groups * keys, -1, width)
        first = torch.bmm(q_held, held_k.transpose(1, 2)).view(-1, fan, longest).index_select(0, back)
        scores = torch.cat([first, torch.bmm(q_each, each_k.contiguous().transpose(1, 2))], -1)
        bias = self._bias_for(rule.window, longest, _wide(q))
        weights = _weights(scores.view(batch, keys, fan, -1), bias, rule).flatten(0, 1)
        w_held = weights[..., :longest].index_select(0, take).view(groups * keys, -1, longest)
        out = torch.bmm(w_held, held_v).view(-1, fan, v.shape[-1]).index_select(0, back)
        if self._free is not None:  # what stands there is another slot's
            out.view(batch, heads, -1)[self._free] = 0
        out += torch.bmm(weights[..., longest:], each_v)
        return out.view(batch, 1, heads, v.shape[-1])

    def _of(self, groups: int, keys: int) -> tuple[Tensor, Tensor]:
        """Indices into rows of (slot, key head): those of each (prompt, key head) side by side, [G K S], padded with any row;
        and where each (slot, key head) lies among them, [B K], anywhere for a slot that follows none.
        """
        if (groups, keys) not in self._places:
            members: list[list[int]] = [[] for _ in range(groups)]
            for row, group in enumerate(self._group_of_row):
                if group >= 0:
                    members[group].append(row)
            most = max(map(len, members))
            rows_GS = torch.tensor([[*rows, *[0] * (most - len(rows))] for rows in members])
            place_B = torch.zeros(len(self._group_of_row), dtype=torch.long)
            for group, rows in enumerate(members):
                place_B[rows] = group * keys * most + torch.arange(len(rows))
            head_K = torch.arange(keys)
            take = rows_GS[:, None, :] * keys + head_K[:, None]
            back = place_B[:, None] + head_K * most
            device = self._position_B.device
            self._places[groups, keys] = (take.flatten().to(device), back.flatten().to(device))
        return self._places[groups, keys]

    def _bias_for(self, window: int | None, longest: int, dtype: torch.dtype) -> Tensor:
        """[B, 1, 1, P + L]: minus infinity for what a slot does not see."""
        if window not in self._bias:
            at_P = torch.arange(longest, device=self._position_B.device)
            at_L = torch.arange(self._end, device=self._position_B.device)
            here_B1, before_B1 = self._position_B[:, None], self._before_B[:, None]
            hidden = torch.cat([at_P >= before_B1, at_L > here_B1], 1)
            if window is not None:
                behind = torch.cat([here_B1 + before_B1 - at_P, here_B1 - at_L], 1)
                hidden |= behind >= window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._bias[window] = bias.masked_fill_(hidden, -torch.inf)[:, None, None]
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


def _weights(scores_BKFL: Tensor, bias: Tensor | None, rule: Rule) -> Tensor:
    """The softmax of plain scores under the rule, in float32 at least, rounded to the precision of the scores."""
    scores = scores_BKFL.to(_wide(scores_BKFL)) * rule.scaling
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if bias is not None:
        scores += bias
    if rule.sinks_H is not None:  # a sink takes probability and gives nothing
        sinks = rule.sinks_H.to(scores.dtype).view(1, scores.shape[1], -1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
    return scores.softmax(-1)[..., : scores_BKFL.shape[-1]].to(scores_BKFL.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """[K, P, D] of several prompts as one [G, K, P, D], zero behind the shorter ones."""
    longest = max(part.shape[1] for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])


def _grown(capacity: int, need: int, step: int, limit: int) -> int:
    if need <= capacity:
        return capacity
    wanted = max(need, capacity + capacity // 2)
    return max(need, min(limit, -(-wanted // step) * step))
