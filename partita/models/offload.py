"""Models that wait in main memory until they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from partita.models.parallel import is_sharded


@contextmanager
def resident(model: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Inside, a frozen model that waits elsewhere has weights and buffers on `device`, tied ones once; afterwards its own again,
    without copying back. None, or one that is there, is left alone; so is a sharded one, which fetches what it needs by itself.
    """
    modules = () if model is None or is_sharded(model) else model.modules()
    places = [(held, name) for m in modules for held in _held(m) for name in held]
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
