"""Adapters: they start as nothing, alone are trained, come off bit for bit, and leave the house merged, or in peft's format."""

import copy
import dataclasses
import json
import runpy
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from partita.config.schema import keys_of
from partita.models import adapters, lora
from partita.models.adapters import adapted_layers, family_parameters, started_at_zero
from partita.models.attention import ATTENTION, register
from partita.models.export import export_hf
from partita.models.families import FAMILIES, tiny
from partita.models.fused import fuse
from partita.models.lean import LeanModel
from partita.models.load import _no_dropout
from partita.models.lora import (
    AdapterError,
    LoraConfig,
    MissingPeftError,
    add_adapters,
    base_view,
    export_adapter,
    trained_parameters,
)
from partita.models.packed import Against, PackedModel, cast_copy, weights
from partita.models.quiet import quiet
from partita.models.selfcheck import Probe, Slots, _rows, _slot_decoded, decoding_copy, self_check
from partita.ops.packing import pack
from partita.records import Row

LLAMA, GPT_2 = "Llama, tied embeddings (SmolLM2)", "GPT-2: learned positions"
DEEPSEEK, JAMBA = "DeepSeek-V3: latent attention, experts", "Jamba: Mamba and attention layers"
KINDS = ["packed", "plain"]
CLOSE = {"rtol": 0.0, "atol": 1e-5}
RANK_4 = LoraConfig(rank=4)


def made(title=LLAMA, kind="packed", dtype=torch.float32):
    """A tiny model as `load_causal_lm` leaves it."""
    lm = tiny(title, dtype)
    _no_dropout(lm)
    fuse(lm)
    if kind == "packed":
        register()
        lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm, kind=kind).eval()


def adapted(title=LLAMA, kind="packed", config=RANK_4, moved=True):
    """With adapters that do something, unless `moved` is false."""
    model = made(title, kind)
    add_adapters(model, config, seed=3)
    if moved:
        shift(model)
    return model


@torch.no_grad()
def shift(model):
    generator = torch.Generator().manual_seed(1)
    for parameter in trained_parameters(model).values():
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def batch():
    """Two answers to one prompt, and a row of its own."""
    generator = torch.Generator().manual_seed(5)

    def row(ids, first):
        return [Row(ids, [i >= first for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))]

    a, b, c, d = (torch.randint(3, 96, (n,), generator=generator).tolist() for n in (6, 5, 8, 9))
    return pack([row(a + b, 6), row(a + c, 6), row(d, 2)], [0, 0, 1])


def logprobs(model, **options):
    with torch.no_grad():
        return model(batch(), temperature=0.8, **options).logprobs_T


def gradients(model):
    model.zero_grad()
    (-model(batch(), temperature=0.8).logprobs_T.mean()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def bits(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["zero", "gaussian"])
def test_adapters_start_as_nothing(kind, init):
    truth = logprobs(made(kind=kind))
    model = adapted(kind=kind, config=LoraConfig(init=init), moved=False)
    assert torch.equal(logprobs(model), truth)


def test_every_linear_layer_but_the_head_is_adapted_with_rank_and_scale():
    model = adapted(config=LoraConfig(rank=3, alpha=12))
    shapes = {
        name.split(".layers.0.")[1]: tuple(p.shape) for name, p in trained_parameters(model).items() if ".0." in name
    }
    assert shapes["self_attn.k_proj.lora_A.default.weight"] == (3, 32)
    assert shapes["self_attn.k_proj.lora_B.default.weight"] == (16, 3)
    assert len(shapes) == 2 * 7 and len(trained_parameters(model)) == 2 * 2 * 7
    assert model.lm.lm_head.weight is model.lm.model.embed_tokens.weight
    layer = model.backbone.layers[0].self_attn.k_proj
    wanted = layer.base_layer.weight + 12 / 3 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(dict(weights(model))["model.layers.0.self_attn.k_proj.weight"], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_only_adapters_and_the_value_head_are_trained(kind):
    model = made(kind=kind)
    model.add_value_head()
    add_adapters(model, LoraConfig(rank=4), seed=0)
    before = bits(model)
    optimizer = torch.optim.AdamW(trained_parameters(model).values(), lr=1e-2, weight_decay=0.1)
    for _ in range(2):  # in the first step A has no gradient, for B is zero
        streams = model(batch(), temperature=1.0, values=True)
        (streams.logprobs_T.mean() + (streams.values_T - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(trained_parameters(model)) == {n for n in before if ".lora_" in n or n == "value_head.weight"}


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_say_the_same(kind):
    model = adapted(kind=kind)
    before, truth = bits(model), logprobs(model)
    assert (truth - logprobs(made(kind=kind))).abs().max() > 0.05
    second = made(kind=kind)
    second.load_weights(weights(model))
    torch.testing.assert_close(logprobs(second), truth, **CLOSE)
    torch.testing.assert_close(logprobs(cast_copy(model, torch.float32)), truth, **CLOSE)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_published_weights_have_the_family_s_names_and_are_made_one_by_one():
    model, plain = adapted(), made()
    published = list(weights(model))
    assert [(name, w.shape) for name, w in published] == [(name, p.shape) for name, p in plain.lm.named_parameters()]
    assert list(family_parameters(model.lm)) == [name for name, _ in plain.lm.named_parameters()]
    given = weights(model)
    first = dict(next(given) for _ in range(2))
    with torch.no_grad():
        model.backbone.layers[1].mlp.up_proj.lora_B["default"].weight.zero_()
    rest = dict(given)
    assert not set(first) & set(rest)
    assert torch.equal(rest["model.layers.1.mlp.up_proj.weight"], plain.lm.model.layers[1].mlp.up_proj.weight)
    assert not any(weight.requires_grad for weight in rest.values())


FEW = [GPT_2, "Qwen2", "BLOOM: ALiBi", DEEPSEEK, JAMBA]


@pytest.mark.parametrize("title", [t if t in FEW else pytest.param(t, marks=pytest.mark.slow) for t in FAMILIES])
def test_every_family_honours_its_adapters(title):
    lm = tiny(title, torch.float32)
    _no_dropout(lm)
    fuse(lm)
    with quiet():
        verdict = self_check(lm)
    model = PackedModel(lm, kind=verdict.kind, padded=verdict.padded, known_head=verdict.known_head).eval()
    base = logprobs(model)
    add_adapters(model, LoraConfig(rank=4), seed=0)
    assert torch.equal(logprobs(model), base)
    shift(model)
    found = gradients(model)
    assert set(found) == set(trained_parameters(model)) and all(bool(grad.any()) for grad in found.values())
    torch.testing.assert_close(logprobs(cast_copy(model, torch.float32)), logprobs(model), rtol=0, atol=5e-5)
    assert torch.equal(logprobs(base_view(model)), base)


@pytest.mark.parametrize("title", [LLAMA, GPT_2])
def test_an_export_is_a_plain_model(title, tmp_path, tokenizer):
    model = adapted(title)
    before = bits(model)
    export_hf(model, tokenizer, tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert set(dict(exported.named_parameters())) == set(family_parameters(model.lm))
    torch.testing.assert_close(logprobs(PackedModel(exported.eval(), kind="plain")), logprobs(model), **CLOSE)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("title", "config"),
    [
        (LLAMA, LoraConfig(rank=4)),
        (GPT_2, LoraConfig(rank=4)),
        (LLAMA, LoraConfig(rank=2, target_modules=("0.mlp.up_proj",))),
    ],
)
def test_peft_reads_an_exported_adapter(title, config, tmp_path):
    model = adapted(title, config=config)
    export_adapter(model, tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["inference_mode"]) == (config.rank, config.alpha, True)
    lm = peft.PeftModel.from_pretrained(tiny(title, torch.float32), tmp_path / "adapter").merge_and_unload()
    assert len(load_file(tmp_path / "adapter" / "adapter_model.safetensors")) == 2 * len(adapted_layers(model.lm))
    torch.testing.assert_close(logprobs(PackedModel(lm.eval(), kind="plain")), logprobs(model), **CLOSE)


def test_names_of_an_exported_adapter_are_short_where_they_can_be(tmp_path):
    for targets, wanted in (
        (("q_proj", "down_proj"), ["down_proj", "q_proj"]),
        (("0.mlp.up_proj",), ["model.layers.0.mlp.up_proj"]),
    ):
        export_adapter(adapted(config=LoraConfig(target_modules=targets)), tmp_path / "adapter")
        written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert sorted(written["target_modules"]) == wanted


def test_an_adapter_that_nobody_could_read_is_not_written(tmp_path):
    for model, reason in (
        (made(), "has none to export"),
        (adapted(config=LoraConfig(init="pissa")), "init=pissa fit only the weights"),
        (adapted(DEEPSEEK), r"peft would read \['down_proj', 'gate_proj', 'up_proj'\] as weights of the experts"),
    ):
        with pytest.raises(AdapterError, match=reason):
            export_adapter(model, tmp_path / "adapter")
    assert not list(tmp_path.iterdir())


def test_trained_parameters_are_saved_and_loaded(tmp_path):
    model, again = adapted(), adapted(moved=False)
    save_file({name: p.detach() for name, p in trained_parameters(model).items()}, tmp_path / "trained.safetensors")
    stored = load_file(tmp_path / "trained.safetensors")
    with torch.no_grad():
        for name, parameter in trained_parameters(again).items():
            parameter.copy_(stored[name])
    assert torch.equal(logprobs(again), logprobs(model))


@pytest.mark.parametrize("kind", KINDS)
def test_without_adapters_the_model_is_the_base_bit_for_bit(kind):
    model, plain = adapted(kind=kind), made(kind=kind)
    with_them, view = logprobs(model), base_view(model)
    assert torch.equal(logprobs(view), logprobs(plain))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(logprobs(view), logprobs(plain))
    assert torch.equal(logprobs(model), with_them)


def test_a_model_that_is_trained_whole_has_no_base():
    model = made()
    with pytest.raises(AdapterError, match="all of its weights are trained"):
        base_view(model)


def test_a_view_of_the_base_shares_its_memory_and_runs_in_the_same_step():
    model, plain = made(), made()
    model.add_value_head()
    add_adapters(model, LoraConfig(rank=4), seed=3)
    shift(model)
    view = base_view(model).requires_grad_(False)
    assert torch.equal(logprobs(view), logprobs(plain))
    owned = {p.data_ptr() for p in model.parameters()}
    assert all(p.data_ptr() in owned for p in view.parameters())
    assert view.value_head is None and view.adapters is None and not adapted_layers(view)
    assert model.value_head.weight.requires_grad and len(trained_parameters(model)) == 2 * 2 * 7 + 1
    streams = model(batch(), temperature=0.8, against=Against(view))
    apart = model(batch(), temperature=0.8, against=Against(plain.requires_grad_(False)))
    assert torch.equal(streams.kl_full_ref_T, apart.kl_full_ref_T) and bool((streams.kl_full_ref_T > 1e-4).all())
    streams.kl_full_ref_T.sum().backward()
    assert all(p.grad is not None for name, p in trained_parameters(model).items() if name != "value_head.weight")


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_what_is_taken_out_of_the_weights_starts_as_the_base_and_cannot_be_left_out(init):
    truth, model = logprobs(made()), adapted(config=LoraConfig(rank=4, init=init), moved=False)
    assert not started_at_zero(model.adapters)
    for same in (model, cast_copy(model, torch.float32)):
        torch.testing.assert_close(logprobs(same), truth, rtol=0, atol=5e-5)
    assert (logprobs(base_layers(model)) - truth).abs().max() > 0.1
    reason = f"init={init} the model without its adapters is not the starting policy.*reference of its own"
    with pytest.raises(AdapterError, match=reason):
        base_view(model)


def base_layers(model):
    """What adapter-off would be, were it allowed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in trained_parameters(other).values():
            parameter.zero_()
    return other


def test_the_seed_alone_decides_and_no_random_state_moves():
    torch.manual_seed(11)
    state = torch.random.get_rng_state()
    first = bits(adapted(moved=False))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(12)
    assert all(torch.equal(p, first[name]) for name, p in bits(adapted(moved=False)).items())
    other = made()
    add_adapters(other, LoraConfig(rank=4), seed=4)
    assert all(torch.equal(p, first[name]) != ("lora_A" in name) for name, p in bits(other).items())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_rounds_products_and_no_adapter(kind):
    model = adapted(kind=kind)
    truth, exact = logprobs(model), gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert (logprobs(model) - truth).abs().mean() < 0.05
        rounded = gradients(model)
    assert {p.dtype for p in trained_parameters(model).values()} == {torch.float32}
    norm = torch.cat([grad.flatten() for grad in exact.values()]).norm()
    gap = torch.cat([(rounded[name] - grad).flatten() for name, grad in exact.items()]).norm()
    assert gap < 0.1 * norm


def test_adapters_of_narrow_weights_are_wide_and_merged_wide():
    model = made(dtype=torch.bfloat16)
    add_adapters(model, LoraConfig(rank=4), seed=3)
    shift(model)
    assert {p.dtype for p in trained_parameters(model).values()} == {torch.float32}
    published = dict(weights(model))
    assert published["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    assert published["model.norm.weight"].dtype == torch.bfloat16
    assert cast_copy(model, torch.bfloat16).lm.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        merged_in_autocast = dict(weights(model))
    assert all(torch.equal(published[name], weight) for name, weight in merged_in_autocast.items())


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_activations_give_the_same_gradients(kind):
    model = adapted(kind=kind)
    truth = gradients(model)
    model.lm.activation_checkpointing_enable()
    model.train()
    found = gradients(model)
    assert set(found) == set(truth) == set(trained_parameters(model))
    for name, grad in found.items():
        torch.testing.assert_close(grad, truth[name])
        assert bool(grad.any())


@torch.no_grad()
def decoded(model, lm):
    return torch.cat(_slot_decoded(model, Probe(_rows(lm.config), (), 0.0, False), Slots()))


@pytest.mark.parametrize("title", [LLAMA, "Granite: attention, residual and logit scales"])
def test_the_engine_decodes_merged_weights_of_its_own(title):
    model = adapted(title, moved=False)
    sampler, note = decoding_copy(model, torch.float32, alone=True)
    assert sampler is not model
    assert ("fused layers, checked" in note) == isinstance(sampler, LeanModel) == (title == LLAMA)
    first = decoded(sampler, model.lm)
    shift(model)
    assert torch.equal(decoded(sampler, model.lm), first)
    sampler.load_weights(weights(model))
    torch.testing.assert_close(decoded(sampler, model.lm), decoded(model, model.lm), rtol=0, atol=1e-4)
    assert not torch.allclose(decoded(sampler, model.lm), first, atol=1e-2)


def test_an_engine_that_was_there_before_the_adapters_takes_merged_weights():
    model = made()
    sampler, _ = decoding_copy(model, torch.float32, alone=True)
    add_adapters(model, LoraConfig(rank=4, init="pissa"), seed=3)
    shift(model)
    sampler.load_weights(weights(model))
    torch.testing.assert_close(decoded(sampler, model.lm), decoded(model, model.lm), rtol=0, atol=1e-4)


def test_adapters_of_some_layers_leave_the_fused_way_open():
    model = adapted(config=LoraConfig(target_modules=("1.self_attn.q_proj",)))
    assert isinstance(decoding_copy(model, torch.float32, alone=True)[0], LeanModel)


def test_a_model_with_adapters_takes_no_whole_weights():
    model = adapted()
    with pytest.raises(ValueError, match="a model with adapters takes no whole weights"):
        model.load_weights(weights(made()))


def test_copies_are_whole_and_trainable_and_old_policies_keep_their_adapters():
    model = adapted()
    whole = cast_copy(model, torch.float32)
    assert all(p.requires_grad for p in whole.parameters()) and whole.adapters is None
    assert whole.lm.lm_head.weight is whole.lm.model.embed_tokens.weight
    assert not {p.data_ptr() for p in whole.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert model.adapters == LoraConfig(rank=4) and adapted_layers(model)
    old = copy.deepcopy(model).requires_grad_(False).eval()
    assert torch.equal(logprobs(old), logprobs(model)) and old.adapters == model.adapters


@pytest.mark.parametrize(
    ("title", "config", "reason"),
    [
        (LLAMA, LoraConfig(target_modules=("q_proj", "gate_pro")), "no layer is named 'gate_pro'. Near: gate_proj"),
        (
            LLAMA,
            LoraConfig(target_modules=("embed_tokens",)),
            "model.embed_tokens is Embedding, and adapters are for linear",
        ),
        (LLAMA, LoraConfig(target_modules=("lm_head",)), "lm_head shares its weight with the embedding"),
        (LLAMA, LoraConfig(rank=17, init="pissa"), "k_proj has 16 directions, fewer than rank=17"),
        (LLAMA, LoraConfig(target_modules=()), r"target_modules=\(\) names no layer of LlamaForCausalLM"),
        (JAMBA, LoraConfig(target_modules=("dt_proj",)), "dt_proj is read by its family past the layer"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused_and_change_nothing(title, config, reason):
    model = made(title, "plain")
    before = logprobs(model)
    with pytest.raises(AdapterError, match=reason):
        add_adapters(model, config, seed=0)
    assert torch.equal(logprobs(model), before) and all(p.requires_grad for p in model.parameters())


def test_a_head_of_its_own_can_be_adapted():
    model = adapted("Llama", config=LoraConfig(rank=4, target_modules=("lm_head",)))
    assert len(trained_parameters(model)) == 2 and all(bool(grad.any()) for grad in gradients(model).values())
    torch.testing.assert_close(logprobs(cast_copy(model, torch.float32)), logprobs(model), **CLOSE)
    sampler, _ = decoding_copy(model, torch.float32, alone=True)
    assert isinstance(sampler, LeanModel)
    torch.testing.assert_close(decoded(sampler, model.lm), decoded(model, model.lm), rtol=0, atol=1e-4)


def test_adapters_are_added_once():
    with pytest.raises(AdapterError, match="has adapters already"):
        add_adapters(adapted(), LoraConfig(), seed=0)


def test_without_peft_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    for module in (adapters, lora):
        assert runpy.run_path(module.__file__)  # importing needs no peft
    with pytest.raises(MissingPeftError, match=r"pip install 'partita\[lora\]'"):
        add_adapters(made(), LoraConfig(), seed=0)


def test_the_section_s_keys():
    assert dataclasses.astuple(LoraConfig()) == (8, 16, "all-linear", "zero")
    assert keys_of(LoraConfig)["target_modules"].kind == "all-linear or list of str"
