"""The model's side of continuous batching: which tensors to compute when slots start, step, move and are refreshed.

Shapes: B live slots, G prompts of a prefill, V vocabulary.
Left out: choosing (`engine.scheduler`) and sampling (`engine.sampler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from partita.engine.cache import Capture, Prefix, SlotCache
from partita.engine.layouts import PrefillLayout
from partita.engine.scheduler import Admission, Moves, Start
from partita.models.lean import LeanModel
from partita.models.packed import PackedModel

# A prompt of so many tokens is held once for its slots; a shorter one is read faster as a part of each.
HELD_FROM = 192


class Decoder(Protocol):
    """Computes logits for live rows 0 .. B-1."""

    def start(self, admission: Admission) -> Tensor:
        """Logits [rows that start, V] after their prompts."""
        ...

    def step(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits [B, V] after one more token per row, at these positions."""
        ...

    def retire(self, moves: Moves) -> None:
        """Make the remaining rows dense."""
        ...

    def refresh(self, sequences: Sequence[Sequence[int]]) -> None:
        """The weights changed: compute anew what rows 0 .. B-1 hold, and forget kept prompts."""
        ...


class SlotDecoder:
    """A `Decoder` over a slot cache. The caller turns gradients off."""

    def __init__(self, model: PackedModel | LeanModel, *, slots: int, context: int, prefill_tokens: int) -> None:
        self._model, self._prefill_tokens = model, prefill_tokens
        self._device = model.device
        self._cache = SlotCache(slots, context)
        self._kept: dict[tuple[int, ...], Prefix] = {}

    def start(self, admission: Admission) -> Tensor:
        """See `Decoder`. Each distinct prompt is computed once, and held once for its group or copied to every row."""
        prefixes = self._kept | dict(zip(admission.prefill, self._prefill(admission.prefill), strict=True))
        last = admission.starts[-1]
        held = {start.prompt_ids for start in admission.starts if self._is_held(start, admission)}
        copied = [len(start.prompt_ids) for start in admission.starts if start.prompt_ids not in held]
        self._cache.reserve(last.first + last.count, max(copied, default=0) + 1)
        for start in admission.starts:
            prefix = prefixes[start.prompt_ids]
            if start.prompt_ids in held:
                self._cache.follow(start.first, start.count, start.prompt_ids, prefix)
            else:
                self._cache.write(start.first, start.count, prefix)
        self._cache.hold()
        self._kept = {prompt: prefixes[prompt] for prompt in admission.keep}
        logits = [prefixes[start.prompt_ids].logits_V.expand(start.count, -1) for start in admission.starts]
        return torch.cat(logits)

    def step(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """See `Decoder`."""
        ids_B = torch.tensor(ids, device=self._device)
        position_B = torch.tensor(positions, device=self._device)
        cache, layout = self._cache.step(positions, self._device)
        last_B = torch.zeros_like(ids_B)
        return self._model.step(ids_B[:, None], position_B[:, None], layout=layout, cache=cache, last_B=last_B)

    def retire(self, moves: Moves) -> None:
        """See `Decoder`."""
        self._cache.move(moves)

    def refresh(self, sequences: Sequence[Sequence[int]]) -> None:
        """See `Decoder`. Rows of similar length share a forward."""
        self._kept = {}
        self._cache.reserve(len(sequences), max(map(len, sequences), default=0) + 1)
        batch: list[int] = []
        for row in sorted(range(len(sequences)), key=lambda row: len(sequences[row])):
            if batch and (len(batch) + 1) * len(sequences[row]) > self._prefill_tokens:
                self._rewrite(batch, sequences)
                batch = []
            batch.append(row)
        if batch:
            self._rewrite(batch, sequences)
        self._cache.hold()

    def _is_held(self, start: Start, admission: Admission) -> bool:
        several = start.count > 1 or start.prompt_ids in admission.keep or start.prompt_ids in self._cache.prompts
        return several and len(start.prompt_ids) >= HELD_FROM

    def _rewrite(self, rows: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        for row, prefix in zip(rows, self._prefill([sequences[row] for row in rows]), strict=True):
            self._cache.write(row, 1, prefix)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        """Compute prompts in one forward, padded on the right; padding is computed but neither attended to nor kept."""
        if not prompts:
            return []
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        ids_GQ = torch.tensor(
            [[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts], device=self._device
        )
        position_GQ = torch.arange(width, device=self._device).expand_as(ids_GQ)
        capture = Capture()
        last_G = torch.tensor(lengths, device=self._device) - 1
        logits_GV = self._model.step(ids_GQ, position_GQ, layout=PrefillLayout(), cache=capture.call(), last_B=last_G)
        return capture.prefixes(lengths, logits_GV)
