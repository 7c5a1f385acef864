"""The loss of a reward model that learns from preference pairs: Bradley-Terry on its scores.

Shapes: N pairs.
Left out: the model, and where it reads its score. That is the last token of the response, found by its length: a
padding token behind it belongs to no response.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from partita.algo.stats import Stats, mean_over


@dataclass(frozen=True)
class BradleyTerry:
    """-log σ(s_c - s_r - m) + κ (s_c + s_r)²: the chance that the better response wins is σ of the difference of scores
    (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1).

    m is a pair's own margin, larger the clearer its raters were (Llama 2, Touvron et al. 2023, arXiv 2307.09288, section
    3.2.2, equation 2). Only differences enter the first term; κ, `centring`, holds the scores around 0 (Eisenstein et al.
    2023, arXiv 2312.09244, equation 2). Raises ValueError for a negative κ.
    """

    centring: float = 0.0

    def __post_init__(self) -> None:
        if self.centring < 0:
            raise ValueError(
                f"centring={self.centring}: below 0 it drives the scores apart without end; 0.01 is common"
            )

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor, margin_N: Tensor | None = None) -> Tensor:
        """Loss [N]. The gradient is at most 1 for a pair that is ranked wrongly. margin_N: 0 for None."""
        difference_N = chosen_N - rejected_N
        loss_N = -logsigmoid(difference_N if margin_N is None else difference_N - margin_N)
        return loss_N + self.centring * (chosen_N + rejected_N).square() if self.centring else loss_N

    def formula(self) -> str:
        """Both terms."""
        centred = f" + {self.centring:g} (s_c + s_r)²" if self.centring else ""
        return f"-log σ(s_c - s_r - m){centred}"


@dataclass(frozen=True)
class Ranked:
    """One micro-batch's share of the step and, detached, the loss and the difference of scores of each pair [N]."""

    value: Tensor
    loss_N: Tensor
    difference_N: Tensor
    stats: Stats


def ranking_loss(
    loss: BradleyTerry, chosen_N: Tensor, rejected_N: Tensor, pairs_in_step: int, margin_N: Tensor | None = None
) -> Ranked:
    """Σ loss / pairs of the whole optimizer step, so that micro-batches add up. Half-precision scores become float32.

    A tie is not ranked rightly; the margin that a pair shall have does not enter the accuracy.
    """
    wide = torch.promote_types(chosen_N.dtype, torch.float32)
    chosen_N, rejected_N = chosen_N.to(wide), rejected_N.to(wide)
    loss_N = loss(chosen_N, rejected_N, None if margin_N is None else margin_N.to(chosen_N))
    every_N = torch.ones_like(loss_N, dtype=torch.bool)
    return Ranked(
        value=loss_N.sum() / pairs_in_step,
        loss_N=loss_N.detach(),
        difference_N=(chosen_N - rejected_N).detach(),
        stats={
            "reward_model/accuracy": mean_over(chosen_N > rejected_N, every_N),
            "reward_model/margin": mean_over(chosen_N - rejected_N, every_N),
            "reward_model/score_chosen": mean_over(chosen_N, every_N),
            "reward_model/score_rejected": mean_over(rejected_N, every_N),
        },
    )
