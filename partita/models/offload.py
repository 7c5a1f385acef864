"""Models that wait in main memory until they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def resident(model: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Inside, a frozen model that waits elsewhere has weights and buffers on `device`, tied ones once; afterwards its own again,
    without copying back. None, or one that is there, is left alone.
    """
    places = [] if model is None else [(held, name) for m in model.modules() for held in _held(m) for name in held]
    own = {(id(held), name): held[name] for held, name in places}
    moved = {id(t): _on(t, device) for t in own.values() if t is not None and t.device != device}
    try:
        for held, name in places:
            held[name] = moved.get(id(held[name]), held[name])
        yield
    finally:
        for held, name in places:
            held[name] = own[id(held), name]


def _held(module: nn.Module) -> tuple[dict[str, Tensor | None], ...]:
    return module._parameters, module._buffers  # pyright: ignore[reportPrivateUsage, reportReturnType]


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    there = tensor.detach().to(device, non_blocking=True)
    return nn.Parameter(there, requires_grad=False) if isinstance(tensor, nn.Parameter) else there
