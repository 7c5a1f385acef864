"""Gates: the per-token objective of a ratio and an advantage, to be maximised.

Shapes: T packed trained tokens.
Left out: weights and signs. The loss is minus the objective, times `weight_T`, summed.
A new gate is a dataclass here with an entry in `GATES`: its name is then a value of `actor.gate`, and its fields are
filled from the keys of the same meaning (low, high: `eps_clip`, `eps_clip_higher`; dual: `c_clip`; tau_pos, tau_neg).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from partita.algo.tokens import Tokens


@dataclass(frozen=True)
class Gated:
    """The objective [T], and by name the tokens [T] whose gradient the gate has cut."""

    objective_T: Tensor
    clipped: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


class Gate(Protocol):
    """Decides how much of ρA is believed."""

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """The objective per token."""
        ...

    def formula(self) -> str:
        """The objective per token in ρ_it and A_i, with the gate's values in place."""
        ...


@dataclass(frozen=True)
class MinClip:
    """min(ρA, clip(ρ, 1-low, 1+high)·A); with `dual` and A < 0 never below dual·A.

    PPO, arXiv 1707.06347, equation 7; low ≠ high: DAPO, arXiv 2503.14476, section 3.1; dual: Ye et al. 2019,
    arXiv 1912.09729.
    The bounds belong to the band: a ratio exactly on one still has its gradient.
    """

    low: float
    high: float
    dual: float | None = None

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """A token is clipped where its gradient is cut: too far up for A > 0, too far down for A < 0."""
        advantages_T = tokens.advantages_T
        free_T = ratio_T * advantages_T
        held_T = ratio_T.clamp(1 - self.low, 1 + self.high) * advantages_T
        objective_T = torch.minimum(free_T, held_T)
        clipped = {
            "low": (advantages_T < 0) & (ratio_T < 1 - self.low),
            "high": (advantages_T > 0) & (ratio_T > 1 + self.high),
        }
        if self.dual is not None:
            clipped["dual"] = (advantages_T < 0) & (ratio_T > self.dual)
            objective_T = torch.where(clipped["dual"], self.dual * advantages_T, objective_T)
        return Gated(objective_T, clipped)

    def formula(self) -> str:
        """The minimum of the free and the held product."""
        held = f"min(ρ_it A_i, clip(ρ_it, 1-{self.low:g}, 1+{self.high:g}) A_i)"
        return held if self.dual is None else f"max({held}, {self.dual:g} A_i) for A_i < 0, else {held}"


@dataclass(frozen=True)
class BandClip:
    """clip(ρ, 1-low, 1+high)·A without the min: a speed limit that does not ask for the direction.

    Unlike PPO it has no way back: a token that drifted out of the band against its advantage gets no gradient either.
    Not the paper DAPO, which keeps the min.
    """

    low: float
    high: float

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """The gradient is cut outside the band, whatever the advantage's sign."""
        moved_T = tokens.advantages_T != 0
        clipped = {"low": moved_T & (ratio_T < 1 - self.low), "high": moved_T & (ratio_T > 1 + self.high)}
        return Gated(ratio_T.clamp(1 - self.low, 1 + self.high) * tokens.advantages_T, clipped)

    def formula(self) -> str:
        """The held product alone."""
        return f"clip(ρ_it, 1-{self.low:g}, 1+{self.high:g}) A_i"


@dataclass(frozen=True)
class Soft:
    """(4/τ) σ(τ(ρ - 1)) · A, τ = tau_pos for A > 0, else tau_neg (SAPO, arXiv 2511.20347).

    On policy the gradient is the plain policy gradient, the value 2A/τ: not comparable with a clip's. The gradient's
    weight 4p(1-p)ρ falls smoothly instead of being cut.
    """

    tau_pos: float
    tau_neg: float

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """Nothing is ever cut."""
        up_T = tokens.advantages_T > 0
        tau_T = torch.where(up_T, ratio_T.new_tensor(self.tau_pos), ratio_T.new_tensor(self.tau_neg))
        return Gated(4 / tau_T * torch.sigmoid(tau_T * (ratio_T - 1)) * tokens.advantages_T)

    def formula(self) -> str:
        """The sigmoid, its temperature by the sign of the advantage."""
        return f"(4/τ) σ(τ (ρ_it - 1)) A_i, τ = {self.tau_pos:g} for A_i > 0, else {self.tau_neg:g}"


@dataclass(frozen=True)
class Cispo:
    """sg[clip(ρ, 1-low, 1+high)] · A · log π: the weight is held, no token loses its gradient (CISPO, arXiv 2506.13585).

    Some peers read their upper bound as the cap itself; here the cap is 1 + high. low = 1 leaves the lower side open.
    """

    low: float
    high: float

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """A token whose weight is held is not cut, so none is reported as clipped."""
        held_T = ratio_T.detach().clamp(1 - self.low, 1 + self.high)
        return Gated(held_T * tokens.advantages_T * tokens.logprobs_T)

    def formula(self) -> str:
        """The held weight times the score function."""
        return f"sg[clip(ρ_it, 1-{self.low:g}, 1+{self.high:g})] A_i log π(o_it)"


@dataclass(frozen=True)
class GeometricMean:
    """A · (Π_t h_t)^(1/|o|), h the ratio held as PPO holds it: at most 1+high for A > 0, at least 1-low for A < 0 (GMPO,
    arXiv 2507.20673, section 3).

    One token far off moves a geometric mean less than the mean over a response's tokens, so the range may be wide: the
    paper has e^-0.4 to e^0.4. It is a mean over responses already: with `seq_mean_token_mean` it is the paper's. low = 1
    leaves the lower side open.
    """

    low: float
    high: float

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """On policy the gradient is the plain one, shared out over the response; a held token has none of its own."""
        clipped = {
            "low": (tokens.advantages_T < 0) & (ratio_T < 1 - self.low),
            "high": (tokens.advantages_T > 0) & (ratio_T > 1 + self.high),
        }
        held_T = torch.where(clipped["low"], 1 - self.low, torch.where(clipped["high"], 1 + self.high, ratio_T))
        return Gated(torch.exp(tokens.sequence_mean(torch.log(held_T))) * tokens.advantages_T, clipped)

    def formula(self) -> str:
        """The geometric mean of the held ratios."""
        return f"(Π_t h_it)^(1/|o_i|) A_i, h_it = ρ_it, for A_i > 0 ≤ 1+{self.high:g}, for A_i < 0 ≥ 1-{self.low:g}"


@dataclass(frozen=True)
class Open:
    """ρA: nothing is held back."""

    def __call__(self, ratio_T: Tensor, tokens: Tokens) -> Gated:
        """The plain policy-gradient objective."""
        return Gated(ratio_T * tokens.advantages_T)

    def formula(self) -> str:
        """The free product."""
        return "ρ_it A_i"


GATES: dict[str, type[Any]] = {
    "min_clip": MinClip,
    "clip_without_min": BandClip,
    "soft": Soft,
    "cispo": Cispo,
    "gmpo": GeometricMean,
    "open": Open,
}
"""The values of `actor.gate`; each is a `Gate`."""
