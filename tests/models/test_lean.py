"""Decoding over prepared weights: the same log-probs as the modules they were made of, and a refusal where not."""

import re
import shutil

import pytest
import torch

from partita.models.attention import ATTENTION, register
from partita.models.families import FAMILIES, tiny
from partita.models.fused import fuse
from partita.models.lean import LeanModel, PlainProduct, PrepackedProduct, can_prepack, lean_reason
from partita.models.packed import PackedModel, weights
from partita.models.selfcheck import Probe, Slots, _rows, _slot_decoded, decoding_copy

COMMON_SHAPE = {
    "Llama", "Llama, tied embeddings (SmolLM2)", "Mistral, sliding window", "Qwen2", "Qwen2, sliding window in the upper layer",
    "Qwen3",
}  # fmt: skip
CPU = torch.device("cpu")
NORMS = 2e-5  # the families take their norms in float32, whatever the model's precision is


def packed_model(title, dtype=torch.float64):
    register()
    lm = tiny(title, dtype)
    fuse(lm)
    lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm)


def decoded(model, lm):
    """Log-probs of random rows, token by token, slots at different positions."""
    return torch.cat(_slot_decoded(model, Probe(_rows(lm.config), (), 0.0, False), Slots()))


@pytest.mark.parametrize("title", sorted(COMMON_SHAPE))
@torch.no_grad()
def test_the_same_log_probs_as_the_modules(title):
    model = packed_model(title)
    lean = LeanModel(model, torch.float64)
    torch.testing.assert_close(decoded(lean, model.lm), decoded(model, model.lm), rtol=0, atol=NORMS)


@torch.no_grad()
def test_biases_and_head_norms_are_seen():
    """A bias or a norm of ones and zeros would hide that it was left out."""
    for title, part in (("Qwen2", "q_proj.bias"), ("Qwen3", "k_norm.weight")):
        model = packed_model(title)
        for name, parameter in model.lm.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                parameter.copy_(torch.linspace(0.5, 1.5, parameter.numel()))
        assert any(name.endswith(part) for name, _ in model.lm.named_parameters())
        lean = LeanModel(model, torch.float64)
        torch.testing.assert_close(decoded(lean, model.lm), decoded(model, model.lm), rtol=0, atol=NORMS)


HIDDEN = (
    "Granite: attention, residual and logit scales", "Ministral 3: queries scaled by position",
    "SmolLM3: layers without positions",
)  # fmt: skip


def test_which_families_have_the_common_shape():
    reasons = {}
    for title in FAMILIES:
        lm = tiny(title, torch.float32)
        fuse(lm)
        reasons[title] = lean_reason(PackedModel(lm))
    assert {title for title, reason in reasons.items() if not reason} == COMMON_SHAPE | set(HIDDEN)
    assert reasons["Mixtral, experts"] == "its MLP is not gated by SiLU alone"
    assert "q_norm" not in reasons["OLMo 2"] and "post_feedforward_layernorm" in reasons["OLMo 2"]
    assert (
        lean_reason(PackedModel(tiny("Jamba: Mamba and attention layers"), kind="plain")) == "it runs on the plain path"
    )


def test_a_weight_that_decoding_would_not_read_is_a_reason():
    model = packed_model("Llama", torch.float32)
    model.backbone.layers[1].self_attn.sink = torch.nn.Parameter(torch.zeros(4))
    assert lean_reason(model) == "a layer has weights beside its products and norms"


@pytest.mark.parametrize("title", HIDDEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_modules_do_beside_the_common_shape_is_found_by_the_log_probs(title, dtype):
    model = packed_model(title, torch.float32)
    sampler, note = decoding_copy(model, dtype, alone=False)
    assert isinstance(sampler, PackedModel) and sampler is not model
    assert "fused layers are off by" in note


def test_a_failure_over_a_family_s_parts_closes_this_way_only():
    model = packed_model("Llama", torch.float32)
    for block in model.backbone.layers:
        del block.self_attn.scaling
        block.self_attn.forward = None
    sampler, note = decoding_copy(model, torch.bfloat16, alone=True)
    assert isinstance(sampler, PackedModel)
    assert "AttributeError" in note and "scaling" in note


def test_a_policy_that_nobody_changes_meanwhile_is_shared_and_not_copied():
    model = packed_model("Granite: attention, residual and logit scales", torch.float32)
    sampler, _ = decoding_copy(model, torch.float32, alone=True)
    assert sampler is model
    writes = [p._version for p in model.parameters()]
    sampler.load_weights(weights(model))
    assert [p._version for p in model.parameters()] == writes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lean_copy_is_chosen_and_says_how_close_it_is(dtype):
    model = packed_model("Llama, tied embeddings (SmolLM2)", torch.float32)
    sampler, note = decoding_copy(model, dtype, alone=True)
    assert isinstance(sampler, LeanModel) and sampler.dtype == dtype
    assert "fused layers, checked" in note


@torch.no_grad()
def test_new_weights_are_in_use_and_later_changes_of_the_policy_are_not():
    model = packed_model("Llama, tied embeddings (SmolLM2)")
    lean, first = LeanModel(model, torch.float64), decoded(model, model.lm)
    for parameter in model.lm.parameters():
        parameter.mul_(1.25)
    torch.testing.assert_close(decoded(lean, model.lm), first, rtol=0, atol=NORMS)
    lean.load_weights(weights(model))
    torch.testing.assert_close(decoded(lean, model.lm), decoded(model, model.lm), rtol=0, atol=NORMS)
    assert not torch.allclose(decoded(lean, model.lm), first)


@torch.no_grad()
def test_wrong_weights_are_refused_and_change_nothing():
    model = packed_model("Llama")
    lean, given = LeanModel(model, torch.float64), dict(weights(model))
    before = decoded(lean, model.lm)
    with pytest.raises(ValueError, match=r"lm_head\.weight.*has shape \(96, 32\)"):
        lean.load_weights(
            [*((name, 2 * tensor) for name, tensor in given.items()), ("lm_head.weight", torch.zeros(3, 3))]
        )
    with pytest.raises(ValueError, match=r"not given.*model\.norm\.weight"):
        lean.load_weights((name, tensor) for name, tensor in given.items() if name != "model.norm.weight")
    assert torch.equal(decoded(lean, model.lm), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 200])
@torch.no_grad()
def test_prepacked_products_are_the_plain_ones(dtype, rows):
    if not can_prepack(CPU, dtype):
        pytest.skip("this machine has no prepacked products in this precision")
    generator = torch.Generator().manual_seed(rows)
    weight_OI = torch.randn(48, 32, generator=generator).to(dtype)
    bias_O = torch.randn(48, generator=generator).to(dtype)
    x_NI, other_NO = (torch.randn(rows, n, generator=generator).to(dtype) for n in (32, 48))
    for bias in (None, bias_O):
        plain, packed = PlainProduct(weight_OI, bias), PrepackedProduct(weight_OI, bias)
        tolerance = {"rtol": 0.03, "atol": 0.15} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
        torch.testing.assert_close(packed(x_NI), plain(x_NI), **tolerance)
        torch.testing.assert_close(packed.silu(x_NI), plain.silu(x_NI), **tolerance)
        torch.testing.assert_close(packed.plus(x_NI, other_NO), plain.plus(x_NI, other_NO), **tolerance)
        torch.testing.assert_close(packed.times(x_NI, other_NO), plain.times(x_NI, other_NO), **tolerance)
        wide = torch.nn.functional.linear(x_NI.double(), weight_OI.double(), None if bias is None else bias.double())
        torch.testing.assert_close(packed(x_NI).double(), wide, **tolerance)


def test_double_precision_is_never_prepacked():
    assert not can_prepack(CPU, torch.float64)
    assert not can_prepack(torch.device("meta"), torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler")
def test_compiled_layers_give_the_same_log_probs_and_say_what_they_took():
    model = packed_model("Qwen3", torch.float32)
    plain, _ = decoding_copy(model, torch.float32, alone=True)
    compiled, note = decoding_copy(model, torch.float32, alone=True, compiled=True)
    assert isinstance(compiled, LeanModel), note
    assert re.search(r"compiled in \d+ s", note)
    with torch.inference_mode():
        torch.testing.assert_close(decoded(compiled, model.lm), decoded(plain, model.lm), rtol=0, atol=1e-3)
        compiled.load_weights((name, 1.1 * tensor) for name, tensor in weights(model))
        assert not torch.allclose(decoded(compiled, model.lm), decoded(plain, model.lm), atol=1e-3)
