"""Weights spread over the ranks of a run by FSDP2: each holds a part of every parameter and gathers a layer while it is used.

A gradient is the sum over ranks, never their mean: a step's loss is a plain sum over micro-batches, whoever computes them.
Whatever copies or wraps a model (`cast_copy`, `base_view`, adapters, a value head) comes before `shard`.

Zhao et al. 2023 (arXiv 2304.11277); FSDP2 is its form in which a part is a tensor of its own for every parameter.
Left out: tensor and pipeline parallelism, and other numbers than on one rank: parts are float32 masters, and what autocast rounds
for its products is rounded before it is gathered where that is the same. So the graph keeps no rounded copy of all layers.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from partita.config.schema import key
from partita.ops.ranks import Ranks

if TYPE_CHECKING:
    from partita.models.packed import PackedModel


@dataclass(frozen=True)
class ShardConfig:
    """How the weights of a model lie on several learner ranks; without effect on one."""

    reshard_after_forward: bool = key(
        True, "a layer's gathered weights are dropped after its forward pass and gathered again for the backward pass: less "
        "memory, half as much to send again",
    )  # fmt: skip
    offload: bool = key(
        False,
        "on a GPU: each rank's part of weights, gradients and optimizer waits in main memory, where the optimizer steps",
    )


DEFAULT = ShardConfig()


@dataclass(frozen=True)
class Sharding:
    """Over whom a model is spread, by which rules, where and in which precision it computes, and its shape without weights, to
    make twins of.
    """

    ranks: Ranks
    spec: ShardConfig
    device: torch.device
    dtype: torch.dtype
    blank: PackedModel


def shard(
    model: PackedModel, ranks: Ranks, spec: ShardConfig = DEFAULT, dtype: torch.dtype = torch.float32
) -> PackedModel:
    """The same model, of whose weights every rank holds its part from here on; untouched where a rank is alone.

    dtype: of products; where that is not float32, every pass is one under autocast. Every rank gives the same weights.
    Decoding (`step`, `plain_step`) needs a copy from before.
    """
    if ranks.alone:
        return model
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else model.device
    return _spread(model, Sharding(ranks, spec, device, dtype, hollow(model)))


def hollow(model: PackedModel) -> PackedModel:
    """A copy without weights: modules to read off what a model is like, whatever becomes of its own."""
    empty: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()
    }
    return copy.deepcopy(model, empty)


@torch.no_grad()
def twin(model: PackedModel) -> PackedModel:
    """A frozen model of the same shape, spread in the same way, that takes the model's weights by `follow`. Of a whole model it
    shares what is frozen there.
    """
    if not is_sharded(model):
        same: dict[int, Any] = {id(p): p for p in model.parameters() if not p.requires_grad}
        return copy.deepcopy(model, same).requires_grad_(False).eval()
    sharding = model.sharding
    assert sharding is not None, "shard says how it spread a model"
    made = copy.deepcopy(sharding.blank).requires_grad_(False).eval()
    buffers = [buffer.clone() for buffer in made.buffers()]
    _spread(made, sharding).to_empty(device="cpu" if sharding.spec.offload else sharding.device)
    for buffer, kept in zip(made.buffers(), buffers, strict=True):
        buffer.data = kept.to(sharding.device)
    follow(made, model)
    return made


@torch.no_grad()
def follow(old: PackedModel, now: PackedModel) -> None:
    """Give a twin the weights that the model has now."""
    settle(old)
    settle(now)
    for own, new in zip(old.parameters(), now.parameters(), strict=True):
        if own is not new:
            local(own).copy_(local(new))


def settle(model: nn.Module) -> None:
    """Drop what was gathered, so that the parameters of a sharded model are its parts: before they are read, written or saved.
    The next forward pass gathers anew.
    """
    if is_sharded(model):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of it."""
    return isinstance(model, FSDPModule)


def device_kind(tensor: Tensor) -> str:
    """Of the device that a parameter is used on, wherever its parts wait."""
    return tensor.device_mesh.device_type if isinstance(tensor, DTensor) else tensor.device.type


def full(tensor: Tensor) -> Tensor:
    """A whole parameter, gradient or moment of a settled model: gathered from all ranks, each of which must ask; itself where
    it is not spread.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part, in its own memory; the tensor itself where it is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def place(own: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor, the same on all ranks, into a parameter or moment: each rank takes its part."""
    if isinstance(own, DTensor):
        mesh = own.device_mesh
        parts = whole.chunk(mesh.size(), 0)  # as FSDP cuts: the last ranks may have less, or nothing
        rank = mesh.get_local_rank()
        own, whole = own.to_local(), parts[rank] if rank < len(parts) else whole[:0]
    own.copy_(whole)


def _spread(model: PackedModel, sharding: Sharding) -> PackedModel:
    spec, device = sharding.spec, sharding.device
    mesh = init_device_mesh(device.type, (sharding.ranks.size,))
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if spec.offload else OffloadPolicy()
    given: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
    for layer in _layers(model):
        rounded = _rounded(layer, sharding.dtype)
        if rounded.param_dtype is not None:
            for norm in _norms(layer):  # they are small: gathered once for both passes
                fully_shard(norm, reshard_after_forward=False, **given)
        fully_shard(layer, reshard_after_forward=spec.reshard_after_forward, mp_policy=rounded, **given)
    fully_shard(model, **given)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    # nothing changes a stream in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    for method in ("values", "fixed_side"):
        register_fsdp_forward_method(model, method)
    model.sharding = sharding
    return model


def _rounded(layer: nn.Module, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """How a layer is gathered: in the precision that autocast would round its weights to, once its norms are apart, which it
    reads in float32. As it is where it `reads_wide`.
    """
    given = {p.dtype for p in layer.parameters()}
    if dtype == torch.float32 or given != {torch.float32} or reads_wide(layer):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def reads_wide(layer: nn.Module) -> bool:
    """Whether a layer reads other vectors than norms and biases in float32, as gpt-oss has sinks and Mamba decays: it is gathered
    as it is.
    """
    norms = _norms(layer)
    others = [p for m in layer.modules() if m not in norms for p in m.named_parameters(recurse=False)]
    return any(p.ndim < 2 and name != "bias" for name, p in others)


def _norms(layer: nn.Module) -> list[nn.Module]:
    """The modules that have vectors alone."""
    leaves = [module for module in layer.modules() if not [*module.children()]]
    return [leaf for leaf in leaves if (own := list(leaf.parameters())) and all(p.ndim < 2 for p in own)]


def _layers(model: PackedModel) -> list[nn.Module]:
    """What is gathered one after another: the decoder layers. None, so that all is gathered at once, where a pass may run them
    more often on one rank than on another (rows of a plain model that cannot be padded), or where they share weights.
    """
    if model.kind == "plain" and not model.padded:
        return []
    count = model.lm.config.get_text_config().num_hidden_layers
    stacks = [m for m in model.backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    layers = list(stacks[0]) if stacks else []  # the outermost comes first
    owners: dict[int, int] = {}
    for layer in layers:
        for parameter in layer.parameters():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return [] if any(many > 1 for many in owners.values()) else layers
