"""The general, slow side of decoding: static batches through the family's own attention and cache.

For models that `models.packed` cannot lay out. Rows that are done stay in their batch, fed with any token, until all
are.

Shapes: B live rows, V vocabulary.
Left out: shared prefill. Every row computes its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.engine.scheduler import Admission, Moves
from partita.models.packed import PackedModel
from partita.models.plain import PlainState


@dataclass(eq=False)
class Batch:
    """Rows that were prefilled together."""

    state: PlainState
    size: int


class PlainDecoder:
    """A `Decoder` whose live rows are places in static batches. Start it when no row is live: batches never merge."""

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self._places: list[tuple[Batch, int]] = []  # of every live row

    def start(self, admission: Admission) -> Tensor:
        """See `Decoder`."""
        return self._begin([start.prompt_ids for start in admission.starts for _ in range(start.count)])

    def step(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """See `Decoder`. Positions are the batches' own."""
        batches = list(dict.fromkeys(batch for batch, _ in self._places))
        tokens = {batch: [0] * batch.size for batch in batches}
        for (batch, place), token in zip(self._places, ids, strict=True):
            tokens[batch][place] = token
        logits = {batch: self._model.plain_step(batch.state, tokens[batch]) for batch in batches}
        return torch.stack([logits[batch][place] for batch, place in self._places])

    def retire(self, moves: Moves) -> None:
        """See `Decoder`. A batch without live rows is dropped with its last row."""
        for source, target in zip(moves.sources, moves.targets, strict=True):
            self._places[target] = self._places[source]
        del self._places[moves.live :]

    def refresh(self, sequences: Sequence[Sequence[int]]) -> None:
        """See `Decoder`."""
        self._places = []
        if sequences:
            self._begin(sequences)

    def _begin(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        logits_BV, state = self._model.plain_prefill(sequences)
        batch = Batch(state, len(sequences))
        self._places += [(batch, place) for place in range(batch.size)]
        return logits_BV
