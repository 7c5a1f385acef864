"""The slow, general way: rows padded as the family expects, its own attention, its own cache.

For families that `models.packed` cannot lay out (recurrent state, attention that is not a plain function of position).

Shapes: R rows, L padded length, T trained tokens, D hidden width or vocabulary, V vocabulary, B rows being decoded.
Left out: admission and retirement. A decoded batch keeps its rows until all of them are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.ops.packing import Packed


@dataclass
class Part:
    """Rows that are decoded together: their places in the batch, the family's cache, the mask and length so far."""

    rows: list[int]
    cache: Any
    mask_RL: Tensor
    length_R: Tensor


@dataclass
class PlainState:
    """Everything `decode` needs; owned by the caller, changed in place."""

    parts: list[Part]


def hidden_states(lm: Any, packed: Packed, *, padded: bool, logits: bool) -> Tensor:
    """Hidden states [T, D] that predict the trained tokens, or whole logits [T, V] as the family computes them."""
    rows = _unpack(packed)
    where: dict[int, tuple[int, int]] = {}
    for r, row in enumerate(rows):
        for at, token in enumerate(row):
            where.setdefault(token, (r, at))  # a shared prefix is the same in all of its rows: read it from the first
    source = [where[token] for token in packed.source_T.tolist()]
    outs: list[Tensor] = []
    order: list[int] = []
    for part in _parts([len(row) for row in rows], padded):
        ids = [[int(packed.ids_N[i]) for i in rows[r]] for r in part]
        out_RLD = _run(lm, ids, logits)
        place = {r: i for i, r in enumerate(part)}
        mine = [(t, place[r], at) for t, (r, at) in enumerate(source) if r in place]
        outs.append(out_RLD[[i for _, i, _ in mine], [at for _, _, at in mine]])
        order.extend(t for t, _, _ in mine)
    return torch.cat(outs)[torch.tensor(order, dtype=torch.long).argsort()]


def prefill(lm: Any, prompts: Sequence[Sequence[int]], *, padded: bool) -> tuple[Tensor, PlainState]:
    """Logits [B, V] after each prompt, and the state to decode from."""
    device = lm.device
    parts: list[Part] = []
    outs: list[Tensor] = []
    for rows in _parts([len(p) for p in prompts], padded):
        width = max(len(prompts[r]) for r in rows)
        ids_RL = torch.tensor([[0] * (width - len(prompts[r])) + list(prompts[r]) for r in rows], device=device)
        length_R = torch.tensor([len(prompts[r]) for r in rows], device=device)
        mask_RL = (torch.arange(width, device=device) >= width - length_R[:, None]).long()
        position_RL = (mask_RL.cumsum(-1) - 1).clamp_min(0)
        out = lm(input_ids=ids_RL, attention_mask=mask_RL, position_ids=position_RL, use_cache=True, logits_to_keep=1)
        parts.append(Part(rows, out.cache, mask_RL, length_R))
        outs.append(out.logits[:, -1])
    return _in_order(parts, outs), PlainState(parts)


def decode(lm: Any, state: PlainState, tokens_B: Sequence[int]) -> Tensor:
    """Logits [B, V] after one more token of every row."""
    outs: list[Tensor] = []
    for part in state.parts:
        ids_R1 = torch.tensor([[int(tokens_B[r])] for r in part.rows], device=lm.device)
        part.mask_RL = torch.cat([part.mask_RL, torch.ones_like(ids_R1)], 1)
        out = lm(
            input_ids=ids_R1,
            attention_mask=part.mask_RL,
            position_ids=part.length_R[:, None],
            cache=part.cache,
            use_cache=True,
        )
        part.length_R = part.length_R + 1
        outs.append(out.logits[:, -1])
    return _in_order(state.parts, outs)


def _unpack(packed: Packed) -> list[list[int]]:
    """Indices into N of each whole row, the root and its prefix included."""
    rows: list[list[int]] = []
    for row, group in zip(packed.rows, packed.prefix_of_row, strict=True):
        prefix = packed.prefixes[group]
        spans = (packed.root, prefix, row) if prefix.length else (row,)
        rows.append([at for span in spans for at in range(span.start, span.start + span.length)])
    return rows


def _parts(lengths: Sequence[int], padded: bool) -> list[list[int]]:
    """Rows that run together: all of them, or those of one length where padding would change the answer."""
    if padded:
        return [list(range(len(lengths)))]
    return [[r for r, length in enumerate(lengths) if length == wanted] for wanted in sorted(set(lengths))]


def _run(lm: Any, ids: Sequence[Sequence[int]], logits: bool) -> Tensor:
    """Rows padded on the right, [R, L, D]."""
    width = max(len(row) for row in ids)
    ids_RL = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids], device=lm.device)
    length_R = torch.tensor([len(row) for row in ids], device=lm.device)
    position_RL = torch.arange(width, device=lm.device).expand(ids_RL.shape)
    mask_RL = (position_RL < length_R[:, None]).long()
    model = lm if logits else lm.base_model
    out = model(input_ids=ids_RL, attention_mask=mask_RL, position_ids=position_RL, use_cache=False)
    return out.logits if logits else out.last_hidden_state


def _in_order(parts: Sequence[Part], outs: Sequence[Tensor]) -> Tensor:
    rows = torch.tensor([r for part in parts for r in part.rows])
    logits_BV = torch.cat(list(outs))[rows.argsort().to(outs[0].device)]
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
