"""Baselines and scales: the statistics that turn what samples are worth into advantages.

Shapes: N units of a statistic (sequences or tokens), G segments (prompts, or one for the whole batch).
All in float64. Groups are known by id: they may differ in size and lie in any order.
Left out: state. Running statistics belong to a controller; a part never remembers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.ops.segments import segment_range, segment_sum


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
        # by range, not by std: in floating point equal numbers have a std above 0, and dividing by it makes a signal
        constant_N=(segment_range(value_of, chosen, segments) == 0)[segment_N],
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


@dataclass(frozen=True)
class Norm:
    """Centre, then scale. `per_token` takes statistics over tokens, where a long sequence counts for more."""

    center: Center | None
    scale: Scale | None
    per_token: bool = False

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
    constant_P = segment_range(value_of, chosen, units.groups) == 0
    return constant_P & (size_P > 1), size_P > 0
