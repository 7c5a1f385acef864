"""Adapted layers inside a family's model: which they are, and the model without what was added or with it merged in.

An adapted layer is told by its parts, as peft makes it: the family's own layer as `base_layer`, and the two factors beside
it. So everything here works without peft, which only `models.lora` imports.

Shapes: O outputs, I inputs of a layer.
Left out: making adapters and saving them, which is `models.lora`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from partita.config.schema import key

NAME = "default"  # what peft calls the one set of adapters that a model has here
PARTS = {"base_layer", "lora_A", "lora_B"}
ZERO_STARTS = ("zero", "gaussian")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on frozen weights, W + alpha / rank · B A (Hu et al. 2021, arXiv:2106.09685, equation 3).

    There is no dropout: sampling and training must give the same log-probs.
    """

    rank: int = key(8, "columns of B and rows of A", ge=1)
    alpha: int = key(16, "the product B A is multiplied by alpha / rank", ge=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = key(
        "all-linear",
        "names of the linear layers that are adapted, as they end: [q_proj, v_proj]; all-linear: all but the output head",
    )
    init: Literal["zero", "gaussian", "pissa", "olora"] = key(
        "zero",
        "zero: B is 0 and A uniform; gaussian: B is 0 and A normal; pissa, olora: A and B are taken out of the frozen weights, "
        "by singular values or QR: then the model without adapters is not the starting policy",
    )


def started_at_zero(config: LoraConfig) -> bool:
    """Whether the model without its adapters is the policy that training started from."""
    return config.init in ZERO_STARTS


def is_adapted(module: nn.Module) -> bool:
    """Whether this is a family's layer with an adapter around it."""
    return {name for name, _ in module.named_children()} >= PARTS


def bare(module: Any) -> Any:
    """The family's own layer, without the adapter around it."""
    return module.base_layer if is_adapted(module) else module


def adapted_layers(module: nn.Module) -> list[Any]:
    """Every adapted layer inside, once."""
    return [layer for layer in module.modules() if is_adapted(layer)]


def family_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The family's own parameters under its own names; of an adapted layer those without the adapter."""
    paths = {f"{path}.base_layer": path for path, layer in module.named_modules() if is_adapted(layer)}
    added = {id(p) for layer in adapted_layers(module) for p in layer.parameters()}
    added -= {id(p) for layer in adapted_layers(module) for p in layer.base_layer.parameters()}
    found = dict[str, nn.Parameter]()
    for name, parameter in module.named_parameters():
        if id(parameter) not in added:
            path, dot, last = name.rpartition(".")
            found[paths.get(path, path) + dot + last] = parameter
    return found


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """W + alpha / rank · B A of an adapted layer, [O, I] or as the family lays W out, in at least float32."""
    weight = layer.base_layer.weight
    with torch.autocast(weight.device.type, enabled=False):
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) + layer.get_delta_weight(NAME)


def merged_layer(layer: Any, dtype: torch.dtype | None = None) -> nn.Module:
    """The family's layer with its adapter merged in, on memory of its own, in `dtype` or the precision that it has."""
    base = layer.base_layer
    wanted = dtype or base.weight.dtype
    given: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(wanted, copy=True)) for p in base.parameters()}
    given[id(base.weight)] = nn.Parameter(merged_weight(layer).to(wanted))
    return copy.deepcopy(base, given)
