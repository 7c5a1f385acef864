"""Comparison of what was computed with what a case expects, field by field and number by number.

Left out: computing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

REFUSED = "undefined"
"""What a case expects where the product must raise ValueError."""


def refused_or(call: Callable[[], Any]) -> Any:
    """The value, or `REFUSED` where it is refused."""
    try:
        return call()
    except ValueError:
        return REFUSED


def plain(value: Any) -> Any:
    """Tensors as nested lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def differences(expected: Any, got: Any, tolerance: float, path: str = "") -> Iterator[tuple[float, str]]:
    """How far off and where; an infinite distance where the shapes or the kinds of value differ."""
    if isinstance(expected, dict) or isinstance(got, dict):
        if not (isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys()):
            yield math.inf, f"{path}: expected fields {_names(expected)}, got {_names(got)}"
            return
        for name in expected:
            yield from differences(expected[name], got[name], tolerance, f"{path}.{name}" if path else name)
    elif isinstance(expected, list) or isinstance(got, list):
        if not (isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got)):
            yield math.inf, f"{path}: expected {_shape(expected)}, got {_shape(got)}"
            return
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, tolerance, f"{path}[{index}]")
    else:
        off = distance(expected, got)
        if off > tolerance * max(1.0, abs(expected) if _finite(expected) else 1.0):
            yield off, f"{path}: expected {expected}, got {got}"


def distance(expected: Any, got: Any) -> float:
    """|expected - got|; 0 for equal infinities and two NaNs, infinite where only one of them is a number."""
    if not (isinstance(expected, int | float) and isinstance(got, int | float)):
        return 0.0 if type(expected) is type(got) and expected == got else math.inf
    if expected == got or (math.isnan(expected) and math.isnan(got)):
        return 0.0
    return abs(expected - got) if math.isfinite(expected) and math.isfinite(got) else math.inf


def verdict(expected: Any, got: Any, tolerance: float, path: str) -> str | None:
    """None where everything agrees; else the worst place and how many places are off."""
    found = sorted(differences(expected, plain(got), tolerance, path), key=lambda item: -item[0])
    if not found:
        return None
    more = f", {len(found)} places off" if len(found) > 1 else ""
    return f"{found[0][1]} (max error {found[0][0]:.3g}{more})"


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _names(value: Any) -> str:
    return ", ".join(value) if isinstance(value, dict) else _shape(value)


def _shape(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, list) else str(value)
