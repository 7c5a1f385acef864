"""Aggregations: every one is a weight per token, set once per optimizer step from all its samples.

Shapes: T packed trained tokens, S samples, P prompts. L_i is the number of trained tokens of sample i, N the samples
of the step, all of them over `in_loss_T`: tokens outside are in no numerator.
Left out: losses. They are summed under these weights, so any split over micro-batches or ranks gives the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.ops.segments import dense_ids, segment_sum
from partita.records import Batch


class Reduce(Protocol):
    """Turns samples of one optimizer step into weights."""

    def __call__(self, batch: Batch, in_loss_T: Tensor) -> Tensor:
        """Weights [T] in float64; the caller clears tokens outside the loss."""
        ...

    def formula(self) -> str:
        """The sums before the token's objective, in symbols."""
        ...


def _lengths(batch: Batch, in_loss_T: Tensor) -> Tensor:
    return segment_sum(in_loss_T, batch.seq_T, batch.samples)


def _sequences(batch: Batch, in_loss_T: Tensor, count_empty: bool) -> Tensor:
    """N: the valid samples or, without the empty ones, those with a token in the loss. Invalid ones never count."""
    counted_S = batch.valid_S if count_empty else _lengths(batch, in_loss_T) > 0
    return counted_S.sum().clamp(min=1).to(torch.float64)


@dataclass(frozen=True)
class TokenMean:
    """1 / Σ_i L_i: every token of the step counts the same."""

    def __call__(self, batch: Batch, in_loss_T: Tensor) -> Tensor:
        """Samples outside the loss are in neither numerator nor denominator."""
        total = _lengths(batch, in_loss_T).sum().clamp(min=1)
        return torch.ones_like(batch.seq_T, dtype=torch.float64) / total

    def formula(self) -> str:
        """The sums."""
        return "1/Σ_i|o_i| Σ_i Σ_t"


@dataclass(frozen=True)
class SeqMeanTokenMean:
    """1 / (N · L_i): every sequence counts the same, a token of a long one less (GRPO, arXiv 2402.03300, eq. 3)."""

    count_empty: bool = True

    def __call__(self, batch: Batch, in_loss_T: Tensor) -> Tensor:
        """Mean over sequences of the mean over tokens."""
        length_T = _lengths(batch, in_loss_T).clamp(min=1)[batch.seq_T]
        return 1 / (_sequences(batch, in_loss_T, self.count_empty) * length_T)

    def formula(self) -> str:
        """The sums."""
        return "1/N Σ_i 1/|o_i| Σ_t"


@dataclass(frozen=True)
class SeqMeanTokenSum:
    """1 / (N · C): mean over sequences of the sum over tokens, over a constant C.

    C = 1 is REINFORCE on whole sequences (RLOO, arXiv 2402.14740). Dr.GRPO (arXiv 2503.20783) takes C from the
    generation budget, fixed for the run: never the width of the current batch.
    """

    constant: float = 1.0
    count_empty: bool = True

    def __call__(self, batch: Batch, in_loss_T: Tensor) -> Tensor:
        """The same weight for all tokens."""
        scale = _sequences(batch, in_loss_T, self.count_empty) * self.constant
        return torch.ones_like(batch.seq_T, dtype=torch.float64) / scale

    def formula(self) -> str:
        """The sums."""
        constant = "" if self.constant == 1 else f"·{self.constant:g}"
        return f"1/{f'(N{constant})' if constant else 'N'} Σ_i Σ_t"


@dataclass(frozen=True)
class PromptTokenMean:
    """1 / (P · Σ_(i of the prompt) L_i): the formula of DAPO read literally (arXiv 2503.14476, section 3.3)."""

    count_empty: bool = True

    def __call__(self, batch: Batch, in_loss_T: Tensor) -> Tensor:
        """Mean over prompts of the mean over all tokens of the prompt."""
        prompt_S, prompts = dense_ids(batch.prompt_S)
        length_S = _lengths(batch, in_loss_T)
        length_P = segment_sum(length_S, prompt_S, prompts)
        present_P = segment_sum(batch.valid_S, prompt_S, prompts) if self.count_empty else length_P
        total = (present_P > 0).sum().clamp(min=1).to(torch.float64)
        return 1 / (total * length_P.clamp(min=1)[prompt_S][batch.seq_T])

    def formula(self) -> str:
        """The sums."""
        return "1/P Σ_prompts 1/Σ_i|o_i| Σ_i Σ_t"
