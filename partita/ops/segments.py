"""Sums and ranges per segment (a sequence's tokens, a prompt's samples) over packed values.

Shapes: N packed values (tokens or samples), G segments.
Left out: padding and positions. Segments are named by id, may have any size and lie in any order.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def dense_ids(id_N: Tensor) -> tuple[Tensor, int]:
    """Renumber arbitrary ids to 0..G-1 (in ascending order of the ids); returns the new ids and G."""
    unique_G, index_N = cast(tuple[Tensor, Tensor], id_N.unique(return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
    return index_N, unique_G.shape[0]


def segment_sum(value_N: Tensor, segment_N: Tensor, segments: int) -> Tensor:
    """Sum per segment, in float64; 0 for an empty segment. Differentiable."""
    # float64: a float32 sum of 10^5 tokens loses the digits that group statistics subtract
    zero_G = torch.zeros(segments, dtype=torch.float64, device=value_N.device)
    return zero_G.index_add(0, segment_N, value_N.to(torch.float64))


def segment_all(flag_N: Tensor, segment_N: Tensor, segments: int) -> Tensor:
    """Whether the flag holds for every member of a segment; True for an empty one."""
    failed_G = torch.zeros(segments, dtype=torch.long, device=flag_N.device)
    return failed_G.index_add(0, segment_N, (~flag_N).long()) == 0


SAME = 1e-9
"""Numbers closer than this, relative to the larger of 1 and their size, count as equal: 0.1 + 0.2 and 0.3."""


def segment_constant(value_N: Tensor, segment_N: Tensor, segments: int) -> Tensor:
    """Whether all values of a segment are equal, up to the last digits of their computation; True for an empty one.

    By their range: a standard deviation of equal, non-dyadic numbers is not zero (eight float32 values of 0.7 have a
    mean that is not 0.7), and one that is divided by makes a signal of nothing.
    """
    value_N = value_N.to(torch.float64)
    empty_G = torch.zeros(segments, dtype=torch.float64, device=value_N.device)
    high_G = empty_G.scatter_reduce(0, segment_N, value_N, "amax", include_self=False)
    low_G = empty_G.scatter_reduce(0, segment_N, value_N, "amin", include_self=False)
    return high_G - low_G <= SAME * torch.maximum(high_G.abs(), low_G.abs()).clamp(min=1)
