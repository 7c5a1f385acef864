"""Elementwise modules of a family, swapped for equal ones whose backward pass keeps little and writes in place.

A module is swapped by its parts (a norm also by the end of its name), and only if it then gives the very numbers that it
gave before. Names of parameters stay, so weights are saved, loaded and published as ever.

Shapes: ... tokens, D width of a norm, M inner width of a gated block.
Left out: rotary embeddings, a function of transformers' modules that no single model owns; norms that do something else
(Gemma's 1 + weight), gates other than SiLU, experts.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SCALES = (1.0, 1e4)  # some families clamp what is large


class RMSNorm(nn.Module):
    """x / rms(x) in float32, rounded to the dtype of x, times the weight: what Llama does, and most after it."""

    def __init__(self, weight_D: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight_D, epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., D] -> [..., D]; keeps its input and one number per token for the backward pass."""
        return cast(Tensor, _Normed.apply(hidden_states, self.weight, self.variance_epsilon))  # pyright: ignore


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)); the three projections are the family's own, whatever wraps them later."""

    def __init__(self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module, act_fn: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = gate_proj, up_proj, down_proj, act_fn

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]; keeps what gate and up gave. Under autocast x is rounded once, not for each of them."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype(kind))
        return self.down_proj(_SiluTimes.apply(self.gate_proj(x), self.up_proj(x)))


class _Normed(torch.autograd.Function):
    """With r = 1 / rms(x) and n = x r: y = w n, dx = r (w dy - n mean(n w dy)), dw = sum of n dy over tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        wide = x.to(torch.float32)
        r = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight_D, r)
        normed = (wide * r).to(x.dtype)
        return normed.mul_(weight_D) if normed.dtype == weight_D.dtype else weight_D * normed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore
        x, weight_D, r = ctx.saved_tensors
        r = r.masked_fill(r == 0, torch.nan)  # squares beyond float32: a gradient of zero would hide it
        normed, grad_D = x.to(torch.float32) * r, None
        if ctx.needs_input_grad[1]:
            grad_D = (grad * normed.to(x.dtype)).flatten(0, -2).sum(0).to(weight_D.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_D, None
        pushed = (grad * weight_D).to(x.dtype).to(torch.float32)
        shared = torch.linalg.vecdot(pushed, normed)[..., None].div_(x.shape[-1])
        return pushed.sub_(normed.mul_(shared)).mul_(r).to(x.dtype), grad_D, None


class _SiluTimes(torch.autograd.Function):
    """silu(gate) * up, which keeps gate and up only."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        gate, up = ctx.saved_tensors
        grad_gate = grad * up
        torch.ops.aten.silu_backward(grad_gate, gate, grad_input=grad_gate)
        return grad_gate, F.silu(gate).mul_(grad)


@torch.no_grad()
def fuse(lm: nn.Module) -> None:
    """Swap every module of `lm` that can be swapped, in place."""
    for parent in list(lm.modules()):
        for name, child in list(parent.named_children()):
            fused = _fused(child)
            if fused is not None and _equal(child, fused):
                setattr(parent, name, fused.train(child.training))


def _fused(module: nn.Module) -> nn.Module | None:
    """The fast module made of the same parts, if the parts are those of one that is known here."""
    children, own = dict(module.named_children()), dict(module.named_parameters(recurse=False))
    if type(module).__name__.endswith("RMSNorm") and not children and set(own) == {"weight"}:
        epsilon = vars(module).get("variance_epsilon")
        return RMSNorm(own["weight"], epsilon) if isinstance(epsilon, float) else None
    if set(children) == GATED and not own and isinstance(children["act_fn"], nn.SiLU | SiLUActivation):
        return GatedMLP(**children)
    return None


def _equal(old: nn.Module, new: nn.Module) -> bool:
    """Whether both give the same numbers for the same random tokens, small and large."""
    weight = next(old.parameters(), None)
    if weight is None:
        return False
    x = torch.randn(1, 3, weight.shape[-1], generator=torch.Generator().manual_seed(0)).to(weight)
    try:
        return all(torch.equal(old(scale * x), new(scale * x)) for scale in SCALES)
    except (RuntimeError, TypeError):  # a family's module may want more than one tensor
        return False
