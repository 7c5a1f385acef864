"""Swapped modules give the family's numbers and gradients, keep their parameters' names, and leave strangers alone."""

import copy

import pytest
import torch
from torch import nn

from partita.models.families import FAMILIES, tiny
from partita.models.fused import GatedMLP, RMSNorm, fuse

LLAMA = "Llama, tied embeddings (SmolLM2)"


def swapped(lm):
    return {type(m).__name__ for m in lm.modules() if isinstance(m, RMSNorm | GatedMLP)}


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        (LLAMA, {"RMSNorm", "GatedMLP"}),
        ("Qwen2", {"RMSNorm", "GatedMLP"}),
        ("Qwen3", {"RMSNorm", "GatedMLP"}),
        ("Mistral, sliding window", {"RMSNorm", "GatedMLP"}),
        ("Phi-3", {"RMSNorm"}),  # gate and up are one matrix
        ("Gemma 2: soft-caps, sliding window", set()),  # 1 + weight, and a gelu
        ("GPT-2: learned positions", set()),
    ],
)
def test_what_is_swapped(title, kinds):
    lm = tiny(title, torch.float32)
    fuse(lm)
    assert swapped(lm) == kinds


@pytest.mark.parametrize("title", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_family_s_own_forward_gives_the_same_bits(title, dtype):
    lm, ids = tiny(title, dtype), torch.arange(12)[None] * 7 % 96
    before = lm(input_ids=ids, use_cache=False).logits
    names = list(lm.state_dict())
    fuse(lm)
    assert torch.equal(lm(input_ids=ids, use_cache=False).logits, before)
    assert list(lm.state_dict()) == names


@pytest.mark.parametrize("title", [LLAMA, "Qwen3"])
@pytest.mark.parametrize(("mixed", "limit"), [(False, 1e-5), (True, 2e-2)])
def test_gradients_are_the_family_s(title, mixed, limit):
    """Under autocast the two branches of a gated block add their gradients in bfloat16: noise of its own size."""
    own, ours, ids = tiny(title, torch.float32), tiny(title, torch.float32), torch.arange(24)[None] * 7 % 96
    fuse(ours)
    grads = []
    for lm in (own, ours):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = lm(input_ids=ids, use_cache=False).logits
        grads.append(torch.autograd.grad(logits.float().log_softmax(-1)[..., 5].sum(), list(lm.parameters())))
    for truth, mine in zip(*grads, strict=True):
        assert (mine - truth).norm() < limit * truth.norm()


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_a_norm_keeps_the_dtypes_of_the_family_under_autocast(wide):
    own = next(m for m in tiny(LLAMA, torch.float32).modules() if type(m).__name__ == "LlamaRMSNorm")
    own.weight.data.uniform_(0.5, 2.0)
    ours, x = RMSNorm(own.weight, own.variance_epsilon), torch.randn(2, 5, 32, dtype=wide)
    out = []
    for norm in (own, ours):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = norm(given)
        out.append((y, *torch.autograd.grad(y.sin().sum(), [given, own.weight])))
    for theirs, mine in zip(*out, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.allclose(mine, theirs, rtol=1e-2 if wide == torch.bfloat16 else 1e-5, atol=1e-5)
    assert torch.equal(out[0][0], out[1][0])


class OddRMSNorm(nn.Module):
    """The parts of Llama's norm and another formula."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.zeros(8)), 1e-5

    def forward(self, x):
        return (1 + self.weight) * x


def test_the_same_parts_with_another_formula_stay():
    model = nn.Sequential(OddRMSNorm())
    fuse(model)
    assert type(model[0]) is OddRMSNorm


def test_a_copy_has_weights_of_its_own_and_a_wrapped_projection_is_called():
    lm, ids = tiny(LLAMA, torch.float32), torch.arange(6)[None]
    fuse(lm)
    other = copy.deepcopy(lm)
    with torch.no_grad():
        other.model.norm.weight.mul_(2.0)
    assert torch.allclose(other(input_ids=ids).logits, 2 * lm(input_ids=ids).logits, atol=1e-5)
    before, mlp = lm(input_ids=ids).logits, lm.model.layers[0].mlp
    mlp.gate_proj = nn.Sequential(mlp.gate_proj, nn.Tanh())
    assert not torch.allclose(lm(input_ids=ids).logits, before)


def test_squares_that_overflow_give_no_gradient_that_looks_like_one():
    weight = nn.Parameter(torch.ones(4))
    x = torch.full((1, 4), 1e25, requires_grad=True)
    RMSNorm(weight, 1e-5)(x).sum().backward()
    assert x.grad is not None and bool(x.grad.isnan().all())
    assert weight.grad is not None and bool(weight.grad.isnan().all())


class ClampedMLP(GatedMLP):
    """Of the same parts, and equal wherever nothing is large."""

    def forward(self, x):
        gate, up = self.gate_proj(x).clamp(max=10), self.up_proj(x).clamp(-10, 10)
        return self.down_proj(self.act_fn(gate) * up)


def test_a_block_that_clamps_what_is_large_is_left_alone():
    parts = [nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8), nn.SiLU()]
    holder = nn.ModuleDict({"clamped": ClampedMLP(*parts), "plain": nn.Sequential()})
    fuse(holder)
    assert type(holder["clamped"]) is ClampedMLP


def test_a_block_without_parameters_is_left_alone():
    class Stored(nn.Module):
        """A projection whose weight is a buffer, as quantised ones keep it."""

        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(8, 8))

        def forward(self, x):
            return x @ self.weight

    holder = nn.ModuleDict({"stored": ClampedMLP(Stored(), Stored(), Stored(), nn.SiLU())})
    fuse(holder)
    assert type(holder["stored"]) is ClampedMLP
