"""The one seam to a language model: packed rows in, log-probs of trained tokens out; decode slots in, logits out.

Nothing outside this file calls a backbone or a head, so sharding hooks, adapters, compilation and checkpoint recomputation
hold in one place.

Shapes: N model-input tokens, T trained tokens, V vocabulary, B decode slots, Q tokens per slot in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from partita.models.attention import Layout, Rule, attend_masked
from partita.ops.packing import Packed, Span


@dataclass(frozen=True)
class Streams:
    """What a forward gives for every trained token, float32 (float64 for float64 models)."""

    logprobs_T: Tensor
    entropy_T: Tensor | None = None


def _index(spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
    """Token indices [R, L] of spans padded on the right (padding points at token 0) and which of them are real."""
    width = max((span.length for span in spans), default=0)
    offsets_L = torch.arange(width)
    start_R = torch.tensor([span.start for span in spans])
    length_R = torch.tensor([span.length for span in spans])
    real_RL = offsets_L < length_R[:, None]
    return torch.where(real_RL, start_R[:, None] + offsets_L, 0), real_RL


class PackedLayout:
    """Every prefix attends to itself; every row attends to its prefix and to itself; nothing attends across rows."""

    def __init__(self, packed: Packed) -> None:
        self.prefix_GP, prefix_real_GP = _index(packed.prefixes)
        self.row_RL, row_real_RL = _index(packed.rows)
        self.group_R = torch.tensor(packed.prefix_of_row)
        self.prefix_position = (packed.position_N[self.prefix_GP], prefix_real_GP)
        self.row_position = (packed.position_N[self.row_RL], row_real_RL)
        groups, width = self.prefix_GP.shape
        slot_N = torch.empty_like(packed.ids_N)
        slot_N[self.prefix_GP[prefix_real_GP]] = torch.arange(groups * width).view(groups, width)[prefix_real_GP]
        rows = torch.arange(self.row_RL.numel()).view_as(self.row_RL) + groups * width
        slot_N[self.row_RL[row_real_RL]] = rows[row_real_RL]
        self.slot_N = slot_N
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}

    def masks(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Allowed keys of prefix queries [G, 1, P, P] and of row queries [R, 1, L, P + L]."""
        if window not in self._masks:
            own = _allowed(self.prefix_position, self.prefix_position, window)
            before = (self.prefix_position[0][self.group_R], self.prefix_position[1][self.group_R])
            both = torch.cat([_allowed(self.row_position, before, window), _allowed(self.row_position, self.row_position, window)], -1)
            self._masks[window] = (own[:, None], both[:, None])
        return self._masks[window]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`. B is 1: the whole micro-batch is one row of N tokens."""
        prefix_mask, row_mask = self.masks(rule.window)
        q_N, k_N, v_N = (x[0].transpose(0, 1) for x in (q, k, v))

        def take(x_N: Tensor, index: Tensor) -> Tensor:
            return x_N[index].transpose(1, 2)

        k_G, v_G = take(k_N, self.prefix_GP), take(v_N, self.prefix_GP)
        outs = [attend_masked(take(q_N, self.prefix_GP), k_G, v_G, prefix_mask, rule)]
        if self.row_RL.shape[1]:
            k_R = torch.cat([k_G[self.group_R], take(k_N, self.row_RL)], 2)
            v_R = torch.cat([v_G[self.group_R], take(v_N, self.row_RL)], 2)
            outs.append(attend_masked(take(q_N, self.row_RL), k_R, v_R, row_mask, rule))
        flat = torch.cat([out.transpose(1, 2).flatten(0, 1) for out in outs])
        return flat[self.slot_N][None]


def _allowed(queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], window: int | None) -> Tensor:
    """[B, Q, L] from (position, real) of queries and keys; padded queries may see everything, so that no softmax is empty."""
    behind = queries[0][:, :, None] - keys[0][:, None, :]
    allowed = (behind >= 0) & keys[1][:, None, :]
    if window is not None:
        allowed &= behind < window
    return allowed | ~queries[1][:, :, None]


class PackedModel(nn.Module):
    """A causal language model of transformers behind one `forward` for training and one `step` for decoding."""

    def __init__(self, causal_lm: nn.Module) -> None:
        super().__init__()
        self.lm: Any = causal_lm

    def forward(self, packed: Packed, *, temperature: float, entropy: bool = False) -> Streams:
        """Log-probs (and entropies) of the trained tokens under the full softmax at `temperature`."""
        hidden = self.lm.model(
            input_ids=packed.ids_N[None], position_ids=packed.position_N[None], use_cache=False, layout=PackedLayout(packed)
        ).last_hidden_state[0]
        logits_TV = self.logits(hidden[packed.source_T]) / temperature
        logprobs_TV = logits_TV.log_softmax(-1)
        chosen_T = logprobs_TV.gather(1, packed.target_T[:, None])[:, 0]
        return Streams(chosen_T, -(logprobs_TV.exp() * logprobs_TV).sum(-1) if entropy else None)

    def step(self, ids_BQ: Tensor, position_BQ: Tensor, *, layout: Layout, cache: Any, last_B: Tensor) -> Tensor:
        """Logits [B, V], float32, after token `last_B` of each slot's Q tokens; keys and values go through `cache.update`."""
        hidden = self.lm.model(
            input_ids=ids_BQ, position_ids=position_BQ, use_cache=True, cache=cache, layout=layout
        ).last_hidden_state
        return self.logits(hidden[torch.arange(ids_BQ.shape[0]), last_B])

    def logits(self, hidden: Tensor) -> Tensor:
        """The head as the family applies it (soft-cap, logit scale), in at least float32."""
        logits = self.lm.lm_head(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
