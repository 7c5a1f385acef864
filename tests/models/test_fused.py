"""Swapped modules give the family's numbers and gradients, keep their parameters' names, and leave strangers alone."""

import copy

import pytest
import torch
from torch import nn

from partita.models.families import FAMILIES, tiny
from partita.models.fused import GatedMLP, RMSNorm, fuse
from partita.models.rotary import RotaryAttention, turn

LLAMA = "Llama, tied embeddings (SmolLM2)"


def swapped(lm):
    return {type(m).__name__ for m in lm.modules() if isinstance(m, RMSNorm | GatedMLP | RotaryAttention)}


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        (LLAMA, {"RMSNorm", "GatedMLP", "RotaryAttention"}),
        ("Qwen2", {"RMSNorm", "GatedMLP", "RotaryAttention"}),
        ("Qwen3", {"RMSNorm", "GatedMLP", "RotaryAttention"}),
        ("Mistral, sliding window", {"RMSNorm", "GatedMLP", "RotaryAttention"}),
        ("Gemma 3 (text): sliding pattern", {"RotaryAttention"}),
        ("Ministral 3: queries scaled by position", {"RMSNorm", "GatedMLP"}),
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


def gradients(lm, mixed):
    ids = torch.arange(24)[None] * 7 % 96
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        logits = lm(input_ids=ids, use_cache=False).logits
    return torch.autograd.grad(logits.float().log_softmax(-1)[..., 5].sum(), list(lm.parameters()))


@pytest.mark.parametrize("title", [LLAMA, "Qwen2", "Qwen3"])
def test_gradients_are_the_family_s(title):
    own, ours = tiny(title, torch.float32), tiny(title, torch.float32)
    fuse(ours)
    for truth, mine in zip(gradients(own, mixed=False), gradients(ours, mixed=False), strict=True):
        assert (mine - truth).norm() < 1e-5 * truth.norm()


@pytest.mark.parametrize("title", [LLAMA, "Qwen2", "Qwen3"])
def test_gradients_under_autocast_are_as_near_to_the_truth_as_the_family_s(title):
    own, ours = tiny(title, torch.float32), tiny(title, torch.float32)
    fuse(ours)
    truth, theirs, mine = (
        torch.cat([grad.flatten() for grad in gradients(lm, mixed)])
        for lm, mixed in ((own, False), (own, True), (ours, True))
    )
    assert (mine - truth).norm() < 1.15 * (theirs - truth).norm() < 0.05 * truth.norm()


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_a_norm_under_autocast_rounds_what_the_family_leaves_to_each_product(wide):
    own = next(m for m in tiny(LLAMA, torch.float32).modules() if type(m).__name__ == "LlamaRMSNorm")
    own.weight.data.uniform_(0.5, 2.0)
    ours, x = RMSNorm(own.weight, own.variance_epsilon), torch.randn(2, 5, 32, dtype=wide)
    out = []
    for norm in (own, ours):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = norm(given)
        rounded = y.to(torch.bfloat16) if wide == torch.float32 else y
        out.append((rounded, *torch.autograd.grad(rounded.float().sin().sum(), [given, own.weight])))
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


@pytest.mark.parametrize("mixed", [False, True])
def test_a_wrapped_query_product_is_called(mixed):
    lm, ids = tiny(LLAMA, torch.float32), torch.arange(6)[None]
    fuse(lm)
    attention = lm.model.layers[0].self_attn
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        before = lm(input_ids=ids).logits
        attention.q_proj = nn.Sequential(attention.q_proj, nn.Tanh())
        assert not torch.allclose(lm(input_ids=ids).logits, before)


class Thinned(nn.Module):
    """Has the parts and facts of Llama's attention, and hands other keys down."""

    def __init__(self, old):
        super().__init__()
        for name, part in old.named_children():
            setattr(self, name, part)
        self.config, self.layer_idx, self.head_dim, self.old = old.config, old.layer_idx, old.head_dim, [old]

    def forward(self, hidden_states, **options):
        return self.old[0](hidden_states=hidden_states.clamp(-100, 100), **options)


def test_an_attention_that_hands_down_something_else_where_numbers_are_large_is_left_alone():
    lm = tiny(LLAMA, torch.float32)
    lm.model.layers[0].self_attn = Thinned(lm.model.layers[0].self_attn)
    fuse(lm)
    assert [type(layer.self_attn).__name__ for layer in lm.model.layers] == ["Thinned", "RotaryAttention"]


def test_frozen_weights_get_no_gradient_and_the_others_theirs():
    lm, ids = tiny("Qwen2", torch.float32), torch.arange(6)[None]
    fuse(lm)
    attention = lm.model.layers[0].self_attn
    attention.k_proj.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        lm(input_ids=ids).logits.float().square().sum().backward()
    assert attention.k_proj.weight.grad is None and attention.k_proj.bias.grad is None
    assert attention.q_proj.weight.grad.norm() > 0 and attention.v_proj.bias.grad.norm() > 0


def test_a_rotation_turns_pairs_by_their_angle_and_gradients_back():
    """(1, 0) at 90 degrees is (0, 1); a pair keeps its length."""
    q, half_turn = torch.tensor([1.0, 3.0, 0.0, 4.0]).view(1, 1, 1, 4), torch.tensor([torch.pi / 2, 0.0]).repeat(2)
    given = q.clone().requires_grad_()
    turned, _ = turn(given, q, half_turn.cos().view(1, 1, 4), half_turn.sin().view(1, 1, 4))
    assert torch.allclose(turned.flatten(), torch.tensor([0.0, 3.0, 1.0, 4.0]), atol=1e-6)
    (back,) = torch.autograd.grad(turned, given, turned.detach())
    assert torch.allclose(back, q, atol=1e-6)


def test_a_rotation_s_gradients_agree_with_finite_differences():
    q, k, cos, sin = (
        torch.randn(shape, dtype=torch.float64) for shape in [(2, 3, 2, 4), (2, 3, 1, 4), (1, 3, 4), (1, 3, 4)]
    )
    assert torch.autograd.gradcheck(lambda a, b: turn(a, b, cos, sin), [q.requires_grad_(), k.requires_grad_()])


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
