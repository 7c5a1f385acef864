"""What is compared: a value and its gradient, and how near two of them must be.

Shapes: any; both sides give their tensors in the padded layout of the batch, 0 where nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """A value, and its gradient where it has one."""

    value: Tensor
    gradient: Tensor | None = None


def differentiate(function: Callable[[Tensor], Tensor], point: Tensor) -> Outcome:
    """The function's value there, and the gradient of its sum."""
    point = point.clone().requires_grad_()
    value = function(point)
    (gradient,) = torch.autograd.grad(value.sum(), point)
    return Outcome(value.detach(), gradient)


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference. Where no entry reaches 1 it counts in units of the largest, down to 0.01: small gradients are
    held to more digits.
    """
    one, other = one.double(), other.double()
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.abs().max().clamp(min=0.01, max=1.0))
