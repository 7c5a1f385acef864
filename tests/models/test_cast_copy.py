"""A copy in another precision: parameters are rounded, the angles of positions are not."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from partita.engine.cache import Capture
from partita.engine.layouts import PrefillLayout
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel, cast_copy
from partita.ops.packing import pack
from partita.records import Row

FAMILIES = [
    "Llama", "Llama, tied embeddings (SmolLM2)", "Qwen2", "Qwen3", "Qwen3-MoE", "Gemma 2: soft-caps, sliding window",
    "Gemma 3 (text): sliding pattern", "Granite: attention, residual and logit scales", "Mixtral, experts",
    "gpt-oss: sinks, experts", "DeepSeek-V3: latent attention, experts",
]  # fmt: skip


def packed_model(lm) -> PackedModel:
    register()
    lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm.eval())


def logprobs(model: PackedModel, ids: list[int], first: int) -> torch.Tensor:
    row = Row(ids, [i >= first for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))
    with torch.no_grad():
        return model(pack([[row]], [0]), temperature=1.0).logprobs_T


def random_ids(n: int) -> list[int]:
    return torch.randint(0, 96, (n,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("title", FAMILIES)
def test_every_family_runs_with_narrow_parameters_and_wide_buffers(title: str) -> None:
    model, ids = packed_model(tiny(title, torch.float32)), random_ids(40)
    narrow = cast_copy(model, torch.bfloat16)
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    buffers = dict(model.named_buffers())
    assert buffers  # rotary frequencies, scales of embeddings, biases of routers
    assert all(b.dtype == torch.float32 and torch.equal(b, buffers[name]) for name, b in narrow.named_buffers())
    wide_T, narrow_T = logprobs(model, ids, 1), logprobs(narrow, ids, 1)
    assert narrow_T.dtype == torch.float32
    assert (narrow_T - wide_T).abs().mean() < 0.1
    layout, position_BQ = PrefillLayout(), torch.arange(39)[None]
    with torch.no_grad():
        logits_BV = narrow.step(
            torch.tensor([ids[:39]]), position_BQ, layout=layout, cache=Capture().call(), last_B=torch.tensor([38])
        )
    assert logits_BV.dtype == torch.float32
    assert float(logits_BV[0].log_softmax(-1)[ids[39]]) == pytest.approx(float(narrow_T[-1]), abs=0.1)


def test_far_positions_are_nearer_to_the_truth_than_with_rounded_frequencies() -> None:
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, initializer_range=0.2, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    model, ids = packed_model(LlamaForCausalLM(config)), random_ids(520)
    truth_T = logprobs(model, ids, 480)
    kept = (logprobs(cast_copy(model, torch.bfloat16), ids, 480) - truth_T).abs().mean()
    rounded = (logprobs(copy.deepcopy(model).to(torch.bfloat16), ids, 480) - truth_T).abs().mean()
    assert kept < 0.5 * rounded  # measured: 0.028 nats against 0.075


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_shares_nothing_and_keeps_what_is_tied_or_frozen(dtype: torch.dtype) -> None:
    model = packed_model(tiny("Llama, tied embeddings (SmolLM2)", torch.float32))
    model.lm.model.norm.weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    other = cast_copy(model, dtype)
    assert other.lm.lm_head.weight is other.lm.model.embed_tokens.weight
    frozen = [name for name, p in other.named_parameters() if not p.requires_grad]
    assert frozen == ["lm.model.norm.weight"]
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(bool(b.any()) for b in model.buffers())
