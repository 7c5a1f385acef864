"""Corrections: weights and masks for tokens that another policy sampled than the one the ratio is taken against.

Shapes: T packed trained tokens, S samples.
The weight is μ's side of the objective, w = sg[π_prox / μ] with μ the sampler: detached, computed from log-differences
held within ±20. What it masks keeps its place in the denominators unless a part says `kept_denominator`.
Left out: when. Parts that know all they need before the step act on the whole of it; `reads_current` marks the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from partita.ops.divergence import clamp_log_ratio
from partita.ops.segments import segment_sum

Bounded = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True)
class Drift:
    """How far policies lie apart on the tokens of whole samples, detached, in nats.

    log_weight_T is log π_prox - log μ. log_step_T is log μ - log π, None before the policy has scored the tokens.
    counted_T marks tokens in the loss.
    """

    seq_T: Tensor
    samples: int
    counted_T: Tensor
    advantages_T: Tensor
    log_weight_T: Tensor
    log_step_T: Tensor | None = None

    def total(self, value_T: Tensor) -> Tensor:
        """The sum over each sample's counted tokens, on each of its tokens."""
        return segment_sum(torch.where(self.counted_T, value_T, 0.0), self.seq_T, self.samples)[self.seq_T]

    def mean(self, value_T: Tensor) -> Tensor:
        """The mean over each sample's counted tokens, on each of its tokens."""
        return self.total(value_T) / self.total(torch.ones_like(value_T)).clamp(min=1)

    def log_ratio(self, level: Bounded) -> Tensor:
        """The log of what is bounded: the token's weight, the product over its sequence, or the geometric mean."""
        if level == "token":
            return self.log_weight_T
        return self.total(self.log_weight_T) if level == "sequence" else self.mean(self.log_weight_T)

    def ratio(self, level: Bounded) -> Tensor:
        """What is bounded, its log held within ±20 before the exp."""
        return torch.exp(clamp_log_ratio(self.log_ratio(level)))


@dataclass(frozen=True)
class Corrected:
    """The factor of the objective [T], 0 where masked, and which tokens are kept."""

    weight_T: Tensor
    kept_T: Tensor


class Correct(Protocol):
    """One correction; several multiply."""

    reads_current: ClassVar[bool]
    """Whether it compares with the current policy, and so acts in the loss instead of before the step."""
    needs: ClassVar[frozenset[str]]
    """Names of the streams it reads, beside the clip centre's."""

    @property
    def kept_denominator(self) -> bool:
        """Whether masked tokens leave the aggregation's denominator."""
        ...

    def __call__(self, drift: Drift) -> Corrected:
        """Weights for whole samples."""
        ...

    def formula(self) -> str:
        """The factor, in symbols."""
        ...


@dataclass(frozen=True)
class Weighted:
    """w = π_prox/μ per token, above `cap` clamped to it or masked (decoupled PPO: Hilton et al., arXiv 2110.00641; AReaL,
    arXiv 2505.24298, section 5.2).

    Clamped it is truncated importance sampling, TIS: min(w, C). `product` takes Π_t w_t over the sequence instead. No
    cap for None.
    """

    cap: float | None = None
    mask: bool = False
    product: bool = False
    kept_denominator: bool = False
    reads_current: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"behaviour"})

    def __call__(self, drift: Drift) -> Corrected:
        """A weight at the cap is kept."""
        weight_T = drift.ratio("sequence" if self.product else "token")
        if self.cap is None:
            return Corrected(weight_T, torch.ones_like(drift.counted_T))
        if not self.mask:
            return Corrected(weight_T.clamp(max=self.cap), torch.ones_like(drift.counted_T))
        kept_T = weight_T <= self.cap
        return Corrected(torch.where(kept_T, weight_T, 0.0), kept_T)

    def formula(self) -> str:
        """The weight under its cap."""
        weight = "Π_t π_old(o_it)/μ(o_it)" if self.product else "π_old(o_it)/μ(o_it)"
        if self.cap is None:
            return f"w_it = {weight}"
        return f"w_it = {weight}, 0 above {self.cap:g}" if self.mask else f"w_it = min({weight}, {self.cap:g})"


@dataclass(frozen=True)
class Inside:
    """w = π_prox/μ where the bounded ratio lies in [low, high], else 0.

    Per token: IcePop (arXiv 2510.18855). Over sequences: masked importance sampling, by the geometric mean or the product
    of the token ratios; kept sequences use untruncated token weights. Bounds of a geometric mean must be tiny; those of a
    product mean less the longer the sequences are.
    """

    level: Bounded
    low: float
    high: float
    kept_denominator: bool = False
    reads_current: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"behaviour"})

    def __call__(self, drift: Drift) -> Corrected:
        """The bounds belong to the band."""
        bounded_T = drift.ratio(self.level)
        kept_T = (bounded_T >= self.low) & (bounded_T <= self.high)
        return Corrected(torch.where(kept_T, drift.ratio("token"), 0.0), kept_T)

    def formula(self) -> str:
        """The weight inside the band."""
        weight = "π_old(o_it)/μ(o_it)"
        named = {"token": weight, "sequence": f"Π_t {weight}", "geometric": f"(Π_t {weight})^(1/|o_i|)"}
        return f"w_it = {weight} where {self.low:g} ≤ {named[self.level]} ≤ {self.high:g}, else 0"


@dataclass(frozen=True)
class DropDrifted:
    """0 for sequences with A < 0 whose mean log(μ/π) exceeds δ, else 1 (off-policy sequence masking, DeepSeek-V3.2,
    arXiv 2512.02556, section 3.1).

    Pushing down what the policy has already left behind teaches nothing and only destabilises. Measured from the sampler,
    so an engine that disagrees counts too; from the clip centre where the sampler's log-probs are not known.
    """

    delta: float
    kept_denominator: bool = False
    reads_current: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, drift: Drift) -> Corrected:
        """The sign is that of the sequence's summed advantage."""
        assert drift.log_step_T is not None, "acts in the loss, where the policy has scored the tokens"
        gone_T = (drift.total(drift.advantages_T) < 0) & (drift.mean(drift.log_step_T) > self.delta)
        return Corrected((~gone_T).to(drift.log_weight_T), ~gone_T)

    def formula(self) -> str:
        """The condition under which a sequence is dropped."""
        return f"w_it = 0 where A_i < 0 and 1/|o_i| Σ_t log μ/π > {self.delta:g}, else 1"


@dataclass(frozen=True)
class SecondMoment:
    """0 for the tokens with the largest (log π_prox/μ)², as many as it takes until the mean of the others is below τ,
    else 1 (M2PO, arXiv 2510.01161, section 4).

    Chosen over all tokens of the optimizer step at once.
    """

    threshold: float
    kept_denominator: bool = False
    reads_current: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"behaviour"})

    def moment(self, drift: Drift) -> Tensor:
        """(log π_prox/μ)² [T], in nats², float64."""
        return torch.where(drift.counted_T, drift.log_weight_T.to(torch.float64).square(), 0.0)

    def __call__(self, drift: Drift) -> Corrected:
        """Equal moments stand or fall together; nothing is masked where the mean is below τ from the start."""
        moment_T = self.moment(drift)
        ordered_N = moment_T[drift.counted_T].sort().values
        count_N = torch.arange(1, ordered_N.shape[0] + 1, device=ordered_N.device)
        fits_N = torch.cumsum(ordered_N, 0) / count_N < self.threshold
        # the running mean of sorted values never falls: what fits is a prefix, cut back to where its last value begins
        most = fits_N.sum()
        rest_N = ordered_N[most:]
        limit = rest_N[0] if rest_N.shape[0] else torch.full((), float("inf"), dtype=torch.float64)
        kept_T = (moment_T < limit) | ~drift.counted_T
        return Corrected(kept_T.to(drift.log_weight_T), kept_T)

    def formula(self) -> str:
        """The mean that is kept below the threshold."""
        return f"w_it = 0 for the largest (log π_old/μ)², until the mean of the others is below {self.threshold:g}"
