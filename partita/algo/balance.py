"""Balance: positive against negative advantages within one optimizer step.

Shapes: T packed trained tokens, S samples.
Left out: the advantages' own mean. Group-centred ones sum to 0 over the samples; lengths, weights and masks undo that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.algo.tokens import present
from partita.ops.segments import segment_sum
from partita.records import Batch


class Balance(Protocol):
    """Acts on samples before the weights are made, and on advantages after."""

    def rows(self, batch: Batch, in_loss_S: Tensor) -> Tensor:
        """[S]: which of the samples stay in the loss."""
        ...

    def scale(self, advantages_T: Tensor, weight_T: Tensor) -> Tensor:
        """[T]: the advantages."""
        ...

    def formula(self) -> str:
        """What is kept in proportion."""
        ...


@dataclass(frozen=True)
class Reweight:
    """Scale both sides so that Σ w|A⁺| : Σ w|A⁻| = f : (1 - f), the total unchanged; w are the loss's weights.

    One side empty: unchanged.
    """

    positive_fraction: float

    def rows(self, batch: Batch, in_loss_S: Tensor) -> Tensor:
        """All stay."""
        return in_loss_S

    def scale(self, advantages_T: Tensor, weight_T: Tensor) -> Tensor:
        """One factor for each sign."""
        size_T = (weight_T * advantages_T.abs()).to(torch.float64)
        up, down = size_T[advantages_T > 0].sum(), size_T[advantages_T < 0].sum()
        both = (up > 0) & (down > 0)
        total = up + down
        raised = torch.where(both, self.positive_fraction * total / up.clamp(min=1e-300), 1.0)
        lowered = torch.where(both, (1 - self.positive_fraction) * total / down.clamp(min=1e-300), 1.0)
        factor_T = torch.where(advantages_T > 0, raised, lowered)
        return (advantages_T * factor_T).to(advantages_T.dtype)

    def formula(self) -> str:
        """The proportion."""
        return (
            f"A scaled by sign so that Σ w|A⁺| : Σ w|A⁻| = {self.positive_fraction:g} : {1 - self.positive_fraction:g}"
        )


@dataclass(frozen=True)
class Downsample:
    """Leave out samples of the larger side, those with the highest lots, until #A⁺ : #A⁻ = f : (1 - f).

    One side empty: unchanged. Lots are drawn once per sample, so the choice does not depend on the order or on which
    rank holds a sample.
    """

    positive_fraction: float

    def rows(self, batch: Batch, in_loss_S: Tensor) -> Tensor:
        """Samples of advantage 0 stay."""
        advantages_T = present(batch.advantages_T, "advantages_T")
        sign_S = torch.where(in_loss_S, torch.sign(segment_sum(advantages_T, batch.seq_T, batch.samples)), 0.0)
        up, down = (sign_S > 0).sum(), (sign_S < 0).sum()
        fraction = self.positive_fraction
        most_up = torch.round(down * fraction / (1 - fraction)).clamp(min=1)
        most_down = torch.round(up * (1 - fraction) / fraction).clamp(min=1)
        both = (up > 0) & (down > 0)
        out_S = both & (self._over(batch, sign_S > 0, most_up) | self._over(batch, sign_S < 0, most_down))
        return in_loss_S & ~out_S

    def _over(self, batch: Batch, side_S: Tensor, most: Tensor) -> Tensor:
        """[S]: the samples of this side that come after the first `most` by lot."""
        lot_S = torch.where(side_S, present(batch.lot_S, "lot_S").to(torch.float64), float("inf"))
        rank_S = lot_S.argsort().argsort()
        return side_S & (rank_S >= most)

    def scale(self, advantages_T: Tensor, weight_T: Tensor) -> Tensor:
        """Unchanged."""
        return advantages_T

    def formula(self) -> str:
        """The proportion."""
        return f"samples dropped by lot until #A⁺ : #A⁻ = {self.positive_fraction:g} : {1 - self.positive_fraction:g}"
