"""Modules of a family, swapped for equal ones that pass over memory less often and keep little for the backward pass.

A module is swapped by its parts (a norm also by the end of its name), and only if it then gives the very numbers that it
gave before; an attention, if it hands the very same queries, keys, values and rule down. Names of parameters stay, so
weights are saved, loaded and published as ever.

Shapes: ... or T tokens, C tokens of a piece, D width of a norm, M inner width of a gated block.
Left out: norms that do something else (Gemma's 1 + weight), gates other than SiLU, experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from partita.models.attention import ATTENTION, Rule, register
from partita.models.memory import pieces
from partita.models.rotary import RotaryAttention

GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
PROJECTIONS, HEAD_NORMS = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm"}
ATTENTION_FACTS = {"config", "layer_idx", "head_dim"}
SCALES = (1.0, 1e4)  # some families clamp what is large


class RMSNorm(nn.Module):
    """x / rms(x) in float32, rounded to the dtype of x, times the weight: what Llama does, and most after it."""

    def __init__(self, weight_D: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight_D, epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., D] -> [..., D]; keeps its input and one number per token for the backward pass. Under autocast a float32
        result is rounded here, once, for the products that follow.
        """
        kind, dtype = hidden_states.device.type, torch.promote_types(hidden_states.dtype, self.weight.dtype)
        if torch.is_autocast_enabled(kind) and hidden_states.dtype == torch.float32:
            dtype = torch.get_autocast_dtype(kind)
        return cast(Tensor, _Normed.apply(hidden_states, self.weight, self.variance_epsilon, dtype))  # pyright: ignore


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
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        x_TD = x.flatten(0, -2)
        out_TD, r_T1 = torch.empty_like(x_TD, dtype=dtype), torch.empty_like(x_TD[:, :1], dtype=torch.float32)
        for at in pieces(x_TD):
            wide_CD = x_TD[at].to(torch.float32)
            r_C1 = (wide_CD * wide_CD).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
            normed_CD = (wide_CD * r_C1).to(x.dtype)
            r_T1[at] = r_C1
            out_TD[at] = normed_CD.mul_(weight_D) if normed_CD.dtype == weight_D.dtype else weight_D * normed_CD
        ctx.save_for_backward(x, weight_D, r_T1)
        return out_TD.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # pyright: ignore
        x, weight_D, r_T1 = ctx.saved_tensors
        x_TD, grad_TD = x.flatten(0, -2), grad.flatten(0, -2)
        d_TD = torch.empty_like(x_TD) if ctx.needs_input_grad[0] else None
        d_D = torch.zeros_like(weight_D, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for at in pieces(x_TD):
            r_C1 = r_T1[at].masked_fill(
                r_T1[at] == 0, torch.nan
            )  # squares beyond float32: a gradient of zero would hide it
            normed_CD, push_CD = x_TD[at].to(torch.float32) * r_C1, grad_TD[at].to(torch.float32)
            if d_D is not None:
                d_D += (push_CD * normed_CD.to(x.dtype)).sum(0)
            if d_TD is not None:
                pushed_CD = (push_CD * weight_D).to(x.dtype).to(torch.float32)
                shared_C1 = torch.linalg.vecdot(pushed_CD, normed_CD)[:, None].div_(x.shape[-1])
                d_TD[at] = pushed_CD.sub_(normed_CD.mul_(shared_C1)).mul_(r_C1)
        return None if d_TD is None else d_TD.view_as(x), None if d_D is None else d_D.to(weight_D.dtype), None, None


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
    register()
    for parent in reversed(list(lm.modules())):  # parts before what is made of them
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
    if set(children) in (PROJECTIONS, PROJECTIONS | HEAD_NORMS) and not own and vars(module).keys() >= ATTENTION_FACTS:
        seen = _handed_down(module, 1.0)
        return None if seen is None else RotaryAttention(module, seen.rule)
    return None


def _equal(old: nn.Module, new: nn.Module) -> bool:
    """Whether both give the same numbers for the same random tokens, small and large."""
    if isinstance(new, RotaryAttention):
        pairs = ((_handed_down(old, scale), _handed_down(new, scale)) for scale in SCALES)
        return all(a is not None and b is not None and a.equals(b) for a, b in pairs)
    weight = next(old.parameters(), None)
    if weight is None:
        return False
    x = _tokens(weight)
    try:
        return all(torch.equal(old(scale * x), new(scale * x)) for scale in SCALES)
    except (RuntimeError, TypeError):  # a family's module may want more than one tensor
        return False


def _tokens(weight: Tensor) -> Tensor:
    """Three random ones, as wide as the inputs of a product with this weight."""
    return torch.randn(1, 3, weight.shape[-1], generator=torch.Generator().manual_seed(0)).to(weight)


@dataclass(frozen=True)
class _Seen:
    """What an attention module hands down, and what it makes of an answer."""

    given: tuple[Tensor, Tensor, Tensor]
    rule: Rule
    out: Tensor

    def equals(self, other: _Seen) -> bool:
        """Whether nothing differs."""
        same = all(torch.equal(a, b) for a, b in zip((*self.given, self.out), (*other.given, other.out), strict=True))
        rules = ((rule.scaling, rule.window, rule.softcap) for rule in (self.rule, other.rule))
        return same and len(set(rules)) == 1 and self.rule.sinks_H is other.rule.sinks_H is None


class _Witness:
    """A `Layout` that remembers what it was asked and answers with the queries."""

    def __init__(self) -> None:
        self.asked: tuple[tuple[Tensor, Tensor, Tensor], Rule] | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`."""
        self.asked = (q, k, v), rule
        return q.transpose(1, 2)


def _handed_down(module: Any, scale: float) -> _Seen | None:
    """For random tokens and angles; None where the module cannot be asked like this."""
    x, witness, own = scale * _tokens(module.q_proj.weight), _Witness(), module.config._attn_implementation
    angles = torch.linspace(0.0, 3.0, 3 * module.head_dim).view(1, 3, -1)
    both = (angles.cos().to(x), angles.sin().to(x))  # unlike a family's, the two halves differ
    module.config._attn_implementation = ATTENTION
    try:
        out, _ = module(hidden_states=x, position_embeddings=both, attention_mask=None, layout=witness)
    except Exception:  # any failure over a family's parts only means that it is left alone
        return None
    finally:
        module.config._attn_implementation = own
    return None if witness.asked is None else _Seen(*witness.asked, out)
