"""Baselines and scales: the statistics that turn what samples are worth into advantages.

Shapes: N units of a statistic (sequences or tokens), G segments (prompts, or one for the whole batch).
All in float64. Groups are known by id: they may differ in size and lie in any order.
Left out: state. Running statistics belong to a controller, which puts their values here; a part never remembers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.ops.segments import segment_constant, segment_sum


@dataclass(frozen=True)
class Units:
    """What a statistic runs over: the group of each unit, how many groups there are, and which units count."""

    group_N: Tensor
    groups: int
    counted_N: Tensor

    def segments(self, per_group: bool) -> tuple[Tensor, int]:
        """The segment of each unit and their number: the groups, or one segment for all."""
        return (self.group_N, self.groups) if per_group else (torch.zeros_like(self.group_N), 1)


@dataclass(frozen=True)
class Segments:
    """The counted units of each segment, as the two parts below need them."""

    segment_N: Tensor
    segments: int
    value_N: Tensor
    single_N: Tensor
    constant_N: Tensor
    count_N: Tensor

    def sum(self, value_N: Tensor) -> Tensor:
        """The segment's sum, spread back to its units."""
        return segment_sum(value_N, self.segment_N, self.segments)[self.segment_N]


def _segments(value_N: Tensor, units: Units, per_group: bool) -> Segments:
    segment_N, segments = units.segments(per_group)
    chosen, value_of = segment_N[units.counted_N], value_N[units.counted_N]
    count_N = segment_sum(torch.ones_like(value_of), chosen, segments)[segment_N]
    return Segments(
        segment_N=segment_N,
        segments=segments,
        value_N=torch.where(units.counted_N, value_N, 0.0),
        single_N=count_N == 1,
        constant_N=segment_constant(value_of, chosen, segments)[segment_N],
        count_N=count_N,
    )


@dataclass(frozen=True)
class Center:
    """A = r - b, with b the mean of the segment, or of its other members (leave one out).

    Group mean: DeepSeekMath, arXiv 2402.03300, section 4.1.2. Leave one out: RLOO, arXiv 2402.14740, where r_i -
    1/(G-1) Σ_(j≠i) r_j = G/(G-1) · (r_i - mean). A segment of equal values gives exactly 0. A segment of one has no
    baseline: it gives 0, or its own value with `keep_single`.
    """

    per_group: bool
    leave_one_out: bool = False
    keep_single: bool = False

    def __call__(self, value_N: Tensor, units: Units) -> Tensor:
        """Centred values [N]."""
        of = _segments(value_N, units, self.per_group)
        total_N = of.sum(of.value_N)
        if self.leave_one_out:
            baseline_N = (total_N - of.value_N) / (of.count_N - 1).clamp(min=1)
        else:
            baseline_N = total_N / of.count_N.clamp(min=1)
        centred_N = torch.where(of.constant_N, 0.0, value_N - baseline_N)
        return torch.where(of.single_N, value_N if self.keep_single else 0.0, centred_N)

    def formula(self) -> str:
        """The baseline."""
        place = "group" if self.per_group else "batch"
        return f"mean(the {place}'s others)" if self.leave_one_out else f"mean({place})"


@dataclass(frozen=True)
class Scale:
    """A / (σ + ε), or A / sqrt(σ² + ε) with `eps_inside`; σ of the values before centring (`of_raw`) or after it.

    Unbiased divides by n - 1. A segment of equal values carries no information and gives exactly 0, whatever ε. A
    segment of one has no σ: it gives 0, or stays as it is with `keep_single`.
    """

    per_group: bool
    unbiased: bool = True
    eps: float = 1e-5
    eps_inside: bool = False
    of_raw: bool = False
    keep_single: bool = False

    def __call__(self, value_N: Tensor, spread_N: Tensor, units: Units) -> Tensor:
        """`value_N` divided by the scale of `spread_N`."""
        of = _segments(spread_N, units, self.per_group)
        off_N = torch.where(units.counted_N, of.value_N - of.sum(of.value_N) / of.count_N.clamp(min=1), 0.0)
        variance_N = of.sum(off_N.square()) / (of.count_N - int(self.unbiased)).clamp(min=1)
        scale_N = torch.sqrt(variance_N + self.eps) if self.eps_inside else torch.sqrt(variance_N) + self.eps
        scaled_N = torch.where(of.constant_N, 0.0, value_N / scale_N)
        return torch.where(of.single_N, value_N if self.keep_single else 0.0, scaled_N)

    def formula(self) -> str:
        """The scale."""
        of = f"{'group' if self.per_group else 'batch'}{' of raw rewards' if self.of_raw else ''}"
        return f"sqrt(var({of}) + {self.eps:g})" if self.eps_inside else f"(std({of}) + {self.eps:g})"


@dataclass(frozen=True)
class EmaCenter:
    """A = r - μ, μ the running mean. No longer relative to the group: an all-wrong group is pushed down."""

    mean: float | None = None

    def __call__(self, value_N: Tensor, units: Units) -> Tensor:
        """Raises ValueError before its controller has put a mean in place."""
        return value_N - _given(self.mean, "mean")

    def formula(self) -> str:
        """The baseline."""
        return "μ"


@dataclass(frozen=True)
class EmaScale:
    """A / sqrt(σ² + ε), or A / (σ + ε), σ² the running variance: a group without spread keeps its own centred value."""

    variance: float | None = None
    eps: float = 1e-5
    eps_inside: bool = True

    def __call__(self, value_N: Tensor, spread_N: Tensor, units: Units) -> Tensor:
        """Raises ValueError before its controller has put a variance in place."""
        variance = _given(self.variance, "variance")
        return value_N / (math.sqrt(variance + self.eps) if self.eps_inside else math.sqrt(variance) + self.eps)

    def formula(self) -> str:
        """The scale."""
        return f"sqrt(σ² + {self.eps:g})" if self.eps_inside else f"(σ + {self.eps:g})"

    @property
    def of_raw(self) -> bool:
        """The spread of the batch is not looked at."""
        return False


def _given(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"the running {name} is not set: an `ema` level works through its controller only")
    return value


@dataclass(frozen=True)
class Norm:
    """Centre, then scale. `per_token` takes statistics over tokens, where a long sequence counts for more."""

    center: Center | EmaCenter | None
    scale: Scale | EmaScale | None
    per_token: bool = False

    @property
    def running(self) -> bool:
        """Whether statistics of earlier batches are needed."""
        return isinstance(self.center, EmaCenter) or isinstance(self.scale, EmaScale)

    def formula(self, value: str) -> str:
        """The normalised value, in symbols."""
        centred = value if self.center is None else f"{value} - {self.center.formula()}"
        if self.scale is None:
            return centred
        return f"({centred}) / {self.scale.formula()}"

    def __call__(self, value_N: Tensor, units: Units) -> Tensor:
        """Normalised values [N] in float64; 0 for units that do not count."""
        value_N = value_N.to(torch.float64)
        centred_N = value_N if self.center is None else self.center(value_N, units)
        scaled_N = (
            centred_N
            if self.scale is None
            else self.scale(centred_N, value_N if self.scale.of_raw else centred_N, units)
        )
        return torch.where(units.counted_N, scaled_N, 0.0)


def constant_groups(value_S: Tensor, units: Units) -> tuple[Tensor, Tensor]:
    """Which groups [P] hold at least two counted samples of equal value, and which hold any counted sample."""
    chosen, value_of = units.group_N[units.counted_N], value_S[units.counted_N]
    size_P = segment_sum(torch.ones_like(value_of), chosen, units.groups)
    constant_P = segment_constant(value_of, chosen, units.groups)
    return constant_P & (size_P > 1), size_P > 0
