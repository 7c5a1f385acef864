"""Memory formulas against what a tiny model really keeps, and by hand."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from partita.engine.cache import Memory as CacheMemory
from partita.engine.cache import stretch
from partita.models.adapters import LoraConfig
from partita.models.load import load_causal_lm
from partita.models.lora import add_adapters
from partita.models.packed import PackedModel
from partita.ops.packing import pack
from partita.plan.memory import (
    Part,
    Pass,
    Shards,
    Slots,
    activation_bytes,
    cache_bytes,
    freed_of,
    gathered_bytes,
    layer_bytes,
    logit_bytes,
    memory_of,
    pass_of,
    rounded_bytes,
    weights_of,
)
from partita.plan.sizes import sizes, sizes_of
from partita.records import Row
from partita.run_models import recompute
from partita.train.config import OptimizerConfig

PROMPT, RESPONSE, SAMPLES = 40, 25, 4


def packed(groups: int):
    rows = [
        [Row([5] * PROMPT + [7 + sample] * RESPONSE, [False] * PROMPT + [True] * RESPONSE, [], [])]
        for _ in range(groups)
        for sample in range(SAMPLES)
    ]
    return pack(rows, [index // SAMPLES for index in range(len(rows))])


def kept(model: PackedModel, groups: int, dtype: torch.dtype) -> int:
    """Bytes that autograd keeps of a forward pass, each storage once, without parameters."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found, alive = Counter[int](), list[torch.Tensor]()

    def save(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)  # so that no storage is another one's successor at the same place
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            found[place] = tensor.untyped_storage().nbytes()
        return tensor

    watched = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with watched, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        model(packed(groups), temperature=1.0, entropy=True)
    return found.total()


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "adapters"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_activations_of_a_tiny_model(model_folder, lora, checkpointing, dtype):
    model = load_causal_lm(str(model_folder), dtype=torch.float32).model
    if lora is not None:
        pytest.importorskip("peft")
        add_adapters(model, lora, 1)
    if checkpointing:
        recompute(model)
    known = sizes_of(str(model_folder), lora)
    counts = [len(packed(groups).ids_N) for groups in (2, 6)]
    true = kept(model, 6, dtype) - kept(model, 2, dtype)  # without what does not grow with tokens
    one = Pass(counts[1] - counts[0], 0, PROMPT + RESPONSE - 1, dtype.itemsize, checkpointing)
    planned = activation_bytes(known, one)
    if checkpointing:  # the layer that is computed again is not there yet, and who computes it again keeps the angles
        planned -= one.tokens * (layer_bytes(known, one) + 8 * known.width)
    assert planned == pytest.approx(true, rel=0.12)


def test_sizes_are_those_of_the_loaded_model(model_folder):
    model, known = load_causal_lm(str(model_folder), dtype=torch.float32).model, sizes_of(str(model_folder))
    assert known.parameters == sum(p.numel() for p in model.parameters())
    assert (known.layers, known.hidden, known.inner, known.queries, known.keys, known.width) == (2, 32, 64, 4, 2, 8)
    assert known.layer * known.layers + known.table + known.hidden == known.parameters  # tied, and one last norm
    assert known.products == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert known.common and known.tied and not known.head_norms
    assert known == sizes(model.lm) or not sizes(model.lm).common  # loaded layers are fused ones


def test_adapters_are_counted_as_peft_makes_them(model_folder):
    pytest.importorskip("peft")
    lora = LoraConfig(rank=3)
    model = load_causal_lm(str(model_folder), dtype=torch.float32).model
    add_adapters(model, lora, 1)
    known = sizes_of(str(model_folder), lora)
    assert known.adapters == known.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_weights_moments_and_gradients_of_a_real_optimizer(model_folder):
    model, known = load_causal_lm(str(model_folder), dtype=torch.float32).model, sizes_of(str(model_folder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=OptimizerConfig().lr, fused=True)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    true = {
        "policy: weights, float32": sum(p.nbytes for p in model.parameters()),
        "policy: gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "policy: two moments": sum(s[k].nbytes for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")),
    }
    assert {part.name: part.bytes for part in weights_of("policy", known, Shards(), "step")} == true
    halves = {part.name: part.bytes for part in weights_of("policy", known, Shards(2), "step")}
    assert halves == {name: size / 2 for name, size in true.items()}


def test_keys_and_values_take_what_the_cache_grows_to(model_folder):
    known = sizes_of(str(model_folder))
    slots = Slots(rows=6, prompts=2, prompt=20, response=100, width=4)
    like = torch.zeros(known.keys, 20, known.width)
    memory = CacheMemory(like, 6, stretch(21, 512), 6 * 512)
    for end in range(21, 121):
        memory.lay(6, stretch(end, 512), 6)
    assert cache_bytes(known, slots, 512) == 2 * known.layers * memory._flat.nbytes


def test_a_long_prompt_is_held_once_for_its_samples(model_folder):
    known = sizes_of(str(model_folder))
    of_token = 2 * known.keys * known.width * known.layers * 4
    held = cache_bytes(known, Slots(8, 2, 200, 16, 4), 512)
    assert held == of_token * (8 * 16 + 2 * 200)


def test_logits_and_rounded_weights_by_hand(model_folder):
    known = sizes_of(str(model_folder))
    assert logit_bytes(known, Pass(100, 10, 50, 2)) == 10 * known.vocabulary * 2
    assert logit_bytes(known, Pass(10**7, 10**7, 50, 2)) == 192 * 2**20  # one chunk, however many tokens
    assert rounded_bytes(known, Shards(), Pass(100, 10, 50, 4)) == 0
    assert rounded_bytes(known, Shards(), Pass(100, 10, 50, 2)) == 2 * (known.products + known.table)
    assert rounded_bytes(known, Shards(), Pass(100, 0, 50, 2)) == 2 * known.products  # values have no vocabulary's head


def test_ranks_gather_layers_rounded_and_keep_no_copy_of_them(model_folder):
    known = sizes_of(str(model_folder))
    two, one, outside = Shards(2), Pass(100, 10, 50, 2), 4 * (known.table + known.hidden)
    assert rounded_bytes(known, two, one) == 2 * known.table  # the head's
    gradient = 4 * known.layer
    assert gathered_bytes(known, Shards(), 2) == 0
    assert gathered_bytes(known, two, 2) == outside + 2 * (2 * known.layer) + gradient
    assert gathered_bytes(known, two, 4) == outside + 2 * (4 * known.layer) + gradient
    many = replace(known, layers=5, parameters=known.parameters + 3 * known.layer)
    assert gathered_bytes(many, two, 2) == gathered_bytes(known, two, 2)
    assert gathered_bytes(many, Shards(2, keeps=True), 2) == outside + 5 * (2 * known.layer) + gradient
    few = replace(known, adapters=2 * 100)
    assert gathered_bytes(few, two, 2) == outside + 2 * (2 * known.layer) + 4 * 100  # gradients of adapters alone
    left = {part.name: part.leaves * part.bytes for part in pass_of("p", known, two, one, ("learn", "step"))}
    assert left["p: gathered weights"] == pytest.approx(1.5 * (outside + 2 * (2 * known.layer)))


def test_a_family_that_reads_vectors_in_float32_is_gathered_in_float32(model_folder):
    assert not sizes_of(str(model_folder)).wide
    tiny = GptOssConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    with torch.device("meta"):
        known = sizes(GptOssForCausalLM(tiny))
    assert known.wide  # it has sinks
    assert rounded_bytes(known, Shards(2), Pass(100, 10, 50, 2)) == 2 * (known.products + known.table)
    assert gathered_bytes(known, Shards(2), 2) == 4 * (known.outside + 3 * known.layer)


def test_the_peak_is_the_fullest_moment():
    memory = memory_of([Part("a", 5), Part("b", 3, ("learn",)), Part("c", 4, ("step",)), Part("nothing", 0)])
    assert (memory.peak_at, memory.peak, memory.at("learn"), memory.at("sample")) == ("step", 9, 8, 5)
    assert [part.name for part in memory.parts] == ["a", "b", "c"]


def test_several_micro_batches_meet_the_gradients_of_the_first(model_folder):
    known = sizes_of(str(model_folder))
    name = "policy: gradients while activations are there"
    one, two = (
        {
            part.name: part.bytes
            for part in pass_of("policy", known, Shards(), Pass(100, 50, 60, 4, False, count), ("learn", "step"))
        }
        for count in (1, 2)
    )
    assert one[name] == 4 * known.table
    assert two[name] == 4 * known.parameters


def test_what_a_pass_leaves_behind_stays_with_the_process():
    parts = [Part("a", 100, ("learn",), 0.2), Part("b", 300, ("step",), 0.1), Part("c", 10, ("start", "publish"), 0.5)]
    assert freed_of(parts).bytes == 30 + 5
