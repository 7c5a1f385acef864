"""How decode and prefill attend over the keys and values of `engine.cache`.

Shapes: B live slots, G prompts (of a prefill, or held once), S most slots of one prompt, P the longest of them, K key/value heads,
H query heads, F = H / K, Q query tokens, L key positions of a slot, D head width, R rows of a batched product: (slot, key
head), or (prompt, key head, slot).
Left out: where keys and values lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.models.attention import Rule, attend_masked

# Scores of a prefill that two products and a softmax handle at a time, in cache, and queries of one prompt among them.
SCORES, QUERIES = 1 << 21, 128


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
        self._bias: dict[tuple[int | None, int], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. By pieces of queries on a CPU, where the fused kernel takes several times as long in bfloat16."""
        window = None if rule.window is None or rule.window >= q.shape[2] else rule.window
        plain = rule.softcap is None and rule.sinks_H is None
        if plain and q.device.type == "cpu":
            return self._by_pieces(q, k, v, Rule(rule.scaling, None, window, None))
        if window is None and plain:
            grouped = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scaling, enable_gqa=grouped)
            return out.transpose(1, 2)
        if window not in self._allowed:
            self._allowed[window] = _seen(torch.arange(q.shape[2], device=q.device), 0, window)[None, None]
        return attend_masked(q, k, v, self._allowed[window], rule).transpose(1, 2)

    def _by_pieces(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """A stretch of queries of some (prompt, key head) with the keys up to its last; the query heads of one key head are
        stacked, so that nothing is copied per query head.
        """
        rows, heads, queries, width = q.shape
        q_RFQD, k_RQD, v_RQD = q.reshape(rows * k.shape[1], -1, queries, width), k.flatten(0, 1), v.flatten(0, 1)
        out_RFQD = q.new_empty(*q_RFQD.shape[:3], v.shape[-1])
        for first in range(0, queries, QUERIES):
            asked = slice(first, min(first + QUERIES, queries))
            seen = slice(0 if rule.window is None else max(0, first - rule.window + 1), asked.stop)
            bias_CL = self._bias_for(rule.window, asked, seen, q)
            each = q_RFQD.shape[1] * bias_CL.shape[0] * (seen.stop - seen.start)
            for some in range(0, len(q_RFQD), max(1, SCORES // each)):
                part = slice(some, some + max(1, SCORES // each))
                q_PFCD = q_RFQD[part, :, asked]
                scores = _scores(q_PFCD.flatten(1, 2), k_RQD[part, seen], rule)
                scores.view(*q_PFCD.shape[:3], -1)[..., -bias_CL.shape[1] :] += bias_CL
                out_RFQD[part, :, asked] = torch.bmm(scores.softmax(-1), v_RQD[part, seen]).view(*q_PFCD.shape[:3], -1)
        return out_RFQD.view(rows, heads, queries, -1).transpose(1, 2)

    def _bias_for(self, window: int | None, asked: slice, seen: slice, like: Tensor) -> Tensor:
        """0, or minus infinity for a key that a query does not see: of the keys beside these queries, or of all in a window."""
        if (window, asked.start) not in self._bias:
            keys = torch.arange(asked.start if window is None else seen.start, seen.stop, device=like.device)
            hidden = ~_seen(keys, asked.start, window)
            self._bias[window, asked.start] = like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return self._bias[window, asked.start]


def _seen(at: Tensor, first: int, window: int | None) -> Tensor:
    """bool: which of the keys at these places each query from `first` on sees, up to the last of the places."""
    behind = torch.arange(first, int(at[-1]) + 1, device=at.device)[:, None] - at
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
