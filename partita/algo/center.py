"""The clip centre: the log-probs that a ratio is taken against.

Shapes: T packed trained tokens.
Left out: how far samples may be from the centre. That is `correct`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from partita.algo.shape import NOTHING
from partita.algo.tokens import present
from partita.records import Batch


class ClipCenter(Protocol):
    """Where the trust region is centred."""

    needs: ClassVar[frozenset[str]]
    """Names of the streams it reads, besides those that several optimizer steps imply."""
    scored: ClassVar[bool]
    """Whether several optimizer steps need the trainer's own log-probs from before the first of them."""

    def __call__(self, batch: Batch, logprobs_T: Tensor) -> Tensor:
        """[T], detached."""
        ...

    def formula(self) -> str:
        """What stands under the ratio."""
        ...


@dataclass(frozen=True)
class Recomputed:
    """π_prox: the trainer's log-probs before the first optimizer step on the rollout batch.

    While the weights have not moved, the current log-prob itself is the centre: another kernel's differs in its last
    digits, and the ratio from 1.
    """

    needs: ClassVar[frozenset[str]] = NOTHING
    scored: ClassVar[bool] = True

    def __call__(self, batch: Batch, logprobs_T: Tensor) -> Tensor:
        """The scored stream, or the current log-probs where there is none."""
        return logprobs_T.detach() if batch.prox_T is None else batch.prox_T

    def formula(self) -> str:
        """The trainer's own old policy."""
        return "π_old: the trainer's weights before the step"


@dataclass(frozen=True)
class Behaviour:
    """μ: what the sampler believed. The coupled objective: one ratio both corrects for the sampler and clips."""

    needs: ClassVar[frozenset[str]] = frozenset({"behaviour"})
    scored: ClassVar[bool] = False

    def __call__(self, batch: Batch, logprobs_T: Tensor) -> Tensor:
        """The sampler's log-probs."""
        return present(batch.behaviour_T, "behaviour_T")

    def formula(self) -> str:
        """The sampler's policy."""
        return "π_old: the sampler's own log-probs μ"


@dataclass(frozen=True)
class LogLinear:
    """log π_prox ≈ log μ + α (log π - log μ), α = (v_prox - v_μ) / (v - v_μ), v_prox = v - 1 (A-3PO, arXiv 2512.06547).

    v is the version being trained, v_μ the token's. Saves the scoring pass. α is 0 where the token is of the version
    before this one or newer, so synchronous training gets the coupled objective.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"behaviour"})
    scored: ClassVar[bool] = False

    def alpha(self, version_T: Tensor, train_version: int) -> Tensor:
        """α [T] in [0, 1)."""
        age_T = (train_version - version_T).to(torch.float64)
        alpha_T = (age_T - 1) / age_T.clamp(min=1)
        return torch.where((version_T >= 0) & (age_T > 0), alpha_T, 0.0)

    def __call__(self, batch: Batch, logprobs_T: Tensor) -> Tensor:
        """Interpolated in log-space, detached."""
        behaviour_T = present(batch.behaviour_T, "behaviour_T").to(logprobs_T)
        if batch.train_version is None:
            raise ValueError("the log-linear clip centre needs Batch.train_version, which is not set")
        alpha_T = self.alpha(present(batch.version_T, "version_T"), batch.train_version).to(logprobs_T)
        return behaviour_T + alpha_T * (logprobs_T.detach() - behaviour_T)

    def formula(self) -> str:
        """The interpolation."""
        return "log π_old ≈ log μ + α (log π - log μ), α from the weight versions"
