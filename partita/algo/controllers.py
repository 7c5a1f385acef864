"""The adaptive rules for statistics, the entropy bonus and the clip range; `kl_control` has those for KL coefficients.

Each is plain arithmetic on the metrics of a step. A metric that the step did not produce, or that is not finite, leaves
a rule as it is. A rule refuses (ValueError) an algorithm without the part that it is to set.
Left out: who computes the metrics and when (`control` names the moments), and fixed values, which need no rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from partita.algo.algorithm import Algorithm
from partita.algo.control import NOT_NEGATIVE, Bounds, When, finite, with_coef
from partita.algo.norm import EmaCenter, EmaScale, Norm
from partita.algo.penalty import EntropyBonus
from partita.algo.shape import RewardNorm


@dataclass
class EmaStatistics:
    """μ ← βμ + (1-β)·mean, σ² ← βσ² + (1-β)·variance over all valid values of a batch, for `EmaCenter` and `EmaScale`.

    Group-wise *Smoothed* Policy Optimization, the idea that shares its short name with Qwen's GSPO. The variance divides
    by n. The first batch is the start, or with `bias_corrected` 0 is, and sums are divided by 1 - β^n (Adam, arXiv
    1412.6980, section 3). Without `update_first` a batch is not part of the statistics that it is normalised with; the
    first has its own. So has every batch until one had some spread, with 1 as its variance: dividing by √ε would blow up
    what is left of rounding or of values without a baseline.
    Reads `<place>/mean`, `<place>/variance`, `<place>/count`.
    """

    place: Literal["adv_norm", "reward_norm"]
    beta: float = 0.9
    update_first: bool = True
    bias_corrected: bool = False
    when: When = field(default="before_credit", init=False)
    batches: float = field(default=0.0, init=False)
    mean: float = field(default=0.0, init=False)
    variance: float = field(default=0.0, init=False)
    used_mean: float = field(default=0.0, init=False)
    used_variance: float = field(default=1.0, init=False)

    @property
    def name(self) -> str:
        """`ema_adv_norm` or `ema_reward_norm`."""
        return f"ema_{self.place}"

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One batch; nothing for an empty one."""
        found = finite(metrics, f"{self.place}/mean", f"{self.place}/variance", f"{self.place}/count")
        if found is None or found[2] == 0:
            return
        mean, variance, _ = found
        before = self.mean, self.variance
        self.batches += 1
        weight = self._weight()
        self.mean += weight * (mean - self.mean)
        self.variance += weight * (variance - self.variance)
        used = (self.mean, self.variance) if self.update_first else before
        self.used_mean, self.used_variance = used if used[1] > 0 else (mean, variance or 1.0)

    def _weight(self) -> float:
        """Of the newest batch: both ways to begin are one running mean, which differ in this alone."""
        if self.bias_corrected:
            return (1 - self.beta) / (1 - self.beta**self.batches)
        return 1.0 if self.batches == 1 else 1 - self.beta

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """Set the norm's running numbers; before the first batch they are 0 and 1, and nothing is there to normalise."""
        if self.place == "adv_norm":
            return replace(algorithm, norm=self._set(algorithm.norm))
        norms = [part.norm for part in algorithm.shape if isinstance(part, RewardNorm)]
        smoothed = self._set(norms[0] if norms else None)
        shape = (replace(p, norm=smoothed) if isinstance(p, RewardNorm) else p for p in algorithm.shape)
        return replace(algorithm, shape=tuple(shape))

    def _set(self, norm: Norm | None) -> Norm:
        center, scale = (None, None) if norm is None else (norm.center, norm.scale)
        new_center = replace(center, mean=self.used_mean) if isinstance(center, EmaCenter) else center
        new_scale = replace(scale, variance=self.used_variance) if isinstance(scale, EmaScale) else scale
        if norm is None or (new_center is center and new_scale is scale):
            raise ValueError(f"{self.name}: the algorithm's {self.place} has no EmaCenter or EmaScale to set")
        return replace(norm, center=new_center, scale=new_scale)

    def state_dict(self) -> dict[str, float]:
        """The running statistics, and those that the last batch was normalised with."""
        return {
            "batches": self.batches, "mean": self.mean, "variance": self.variance, "used_mean": self.used_mean,
            "used_variance": self.used_variance,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.batches, self.mean, self.variance = state["batches"], state["mean"], state["variance"]
        self.used_mean, self.used_variance = state["used_mean"], state["used_variance"]


@dataclass
class AdaptiveEntropy:
    """c rises by Δ while the entropy is low and, with `decrease`, falls by Δ otherwise; the bonus acts only while it is low.

    Entropy is the mean over tokens in nats; low is below the target with `strict`, else also at it.
    With `same_step` the entropy before the step's first optimizer step opens the gate, also when it is at the target, to
    the coefficient that the steps before have left, or with `update_first` to the one that this step leaves. Else gate and
    coefficient are those that the last step has left; the first step has no bonus, as no entropy came before it.
    Known forms: Skywork-OR1's report (arXiv 2505.22312, adaptive entropy control) is the default; retold without
    `decrease`: `update_first`, `strict`; its released code: not `same_step`, `strict`, Δ 1e-4, c at most 5e-3; TRL: not
    `same_step`, c at most 1. With a lower bound below 0, c runs down while the entropy is high, then punishes low entropy.
    Reads `old_entropy` for `same_step`, else `entropy`.
    """

    target: float = 0.2
    delta: float = 0.005
    decrease: bool = True
    same_step: bool = True
    update_first: bool = False
    strict: bool = False
    start: float = 0.0
    bounds: Bounds = NOT_NEGATIVE
    name: str = field(default="entropy", init=False)
    coef: float = field(init=False)
    applied: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a start outside the bounds, and for an update that comes before its entropy."""
        self.coef = self.bounds.inside(self.start, self.name)
        if self.update_first and not self.same_step:
            raise ValueError("entropy: update_first needs same_step, else the entropy is known only after the step")

    @property
    def when(self) -> When:
        """As soon as the entropy that opens the gate is known."""
        return "after_credit" if self.same_step else "after_epochs"

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step."""
        found = finite(metrics, "old_entropy" if self.same_step else "entropy")
        if found is None:
            return
        entropy, before = found[0], self.coef
        at_target = entropy == self.target
        low = entropy < self.target or (at_target and not self.strict)
        if low:
            self.coef = self.bounds(self.coef + self.delta)
        elif self.decrease:
            self.coef = self.bounds(self.coef - self.delta)
        # a rule that observes after its step applies to the next one, for which the new coefficient is "before"
        used = before if self.same_step and not self.update_first else self.coef
        self.applied = used if low or (self.same_step and at_target) else 0.0

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """Set the coefficient of the entropy bonus."""
        return replace(algorithm, penalties=with_coef(algorithm.penalties, EntropyBonus, self.applied))

    def state_dict(self) -> dict[str, float]:
        """The coefficient, and what the gate let through."""
        return {"coef": self.coef, "applied": self.applied}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.coef = self.bounds(state["coef"])  # a stage may have brought tighter bounds
        self.applied = min(state["applied"], self.bounds.high)


@dataclass
class IqrClip:
    """ε = clip(ε_min + (ε_max - ε_min)·IQR/IQR_ref, ε_min, ε_max), IQR over the advantages of a step's samples.

    Self-Adaptive Policy Optimization, the idea that shares its short name with the soft gate SAPO. IQR_ref is `reference`
    or, for 0, the first IQR above 0 that the rule sees, and stays; until then ε = ε_max. ε is the room below 1; above it
    the configured ratio high/low is kept.
    Advantages divided by their group's deviation have nearly one IQR: feed it r - mean.
    Reads `advantage/iqr`.
    """

    bounds: Bounds
    reference: float = 0.0
    name: str = field(default="eps_clip", init=False)
    when: When = field(default="after_credit", init=False)
    eps: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin wide. Raises ValueError for bounds that are no clip range."""
        self.eps = _clip_range(self.bounds).high

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step."""
        found = finite(metrics, "advantage/iqr")
        if found is None:
            return
        self.reference = self.reference or found[0]
        if self.reference > 0:
            room = self.bounds.high - self.bounds.low
            self.eps = self.bounds(self.bounds.low + room * found[0] / self.reference)

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """Set the gate's band."""
        return _with_band(algorithm, self.eps)

    def state_dict(self) -> dict[str, float]:
        """The range, and the IQR that counts as 1: 0 while there was none."""
        return {"eps": self.eps, "reference": self.reference}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.eps, self.reference = self.bounds(state["eps"]), state["reference"]


@dataclass
class ClipFraction:
    """More than `up` of the tokens clipped: ε ← ε·f. Fewer than `down`: ε ← ε/f. Both strictly.

    A practitioners' rule of thumb: above 10 % the range is too narrow, near 0 too wide. On policy (one optimizer step per
    batch) nothing is ever clipped, and it only narrows. ε is the room below 1; above it the ratio high/low is kept.
    Reads `clip_fraction`.
    """

    start: float
    bounds: Bounds
    up: float = 0.1
    down: float = 0.01
    factor: float = 1.1
    name: str = field(default="eps_clip", init=False)
    when: When = field(default="after_epochs", init=False)
    eps: float = field(init=False)

    def __post_init__(self) -> None:
        """Raises ValueError for bounds that are no clip range, and for a start outside them."""
        self.eps = _clip_range(self.bounds).inside(self.start, self.name)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step."""
        found = finite(metrics, "clip_fraction")
        if found is not None and found[0] > self.up:
            self.eps = self.bounds(self.eps * self.factor)
        elif found is not None and found[0] < self.down:
            self.eps = self.bounds(self.eps / self.factor)

    def apply(self, algorithm: Algorithm) -> Algorithm:
        """Set the gate's band."""
        return _with_band(algorithm, self.eps)

    def state_dict(self) -> dict[str, float]:
        """The range."""
        return {"eps": self.eps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.eps = self.bounds(state["eps"])


@runtime_checkable
class Band(Protocol):
    """A gate that holds the ratio between 1 - low and 1 + high."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def low(self) -> float:
        """Room below 1."""
        ...

    @property
    def high(self) -> float:
        """Room above 1."""
        ...


def _clip_range(bounds: Bounds) -> Bounds:
    if not 0 < bounds.low <= bounds.high < math.inf:
        raise ValueError(f"eps_clip: need 0 < min <= max, finite, got min={bounds.low:g}, max={bounds.high:g}")
    return bounds


def _with_band(algorithm: Algorithm, eps: float) -> Algorithm:
    """The gate's low replaced by eps, its high by as much. Raises ValueError for a gate without such a band."""
    gate = algorithm.gate
    if not isinstance(gate, Band):
        raise ValueError(f"the gate {type(gate).__name__} has no clip range (low, high) that could be set")
    return replace(algorithm, gate=replace(gate, low=eps, high=eps * (gate.high / gate.low)))
