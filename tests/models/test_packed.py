"""The seam: same log-probs and gradients however the micro-batches are cut, alignment, precision, weights in and out."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel, tied_names, weights
from partita.ops.packing import micro_batches, pack
from partita.records import Row


def packed_model(title="GPT-2: learned positions", dtype=torch.float64):
    register()
    lm = tiny(title, dtype)
    lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm)


def row(ids, trained):
    return Row(list(ids), [i in trained for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))


def workload():
    """Ragged samples of three groups: several rows, tool tokens, equal answers, a prompt alone, a very long one."""
    generator = torch.Generator().manual_seed(5)

    def ids(n):
        return torch.randint(0, 96, (n,), generator=generator).tolist()

    a, b, c = ids(6), ids(3), ids(11)
    samples = [
        [row([*a, *ids(4)], {6, 7, 8, 9})],
        [row([*b, 5, 5], {3, 4})],
        [row([*a, *ids(9)], {6, 7, 12, 13, 14})],
        [row([*b, 5, 5], {3, 4})],
        [row([*c, *ids(2)], {11, 12}), row([*c[:5], *ids(8)], {10, 12})],
        [row([*a, *ids(60)], set(range(6, 66)))],
        [row(a, set())],
        [row([*c, *ids(1)], {11})],
    ]
    return samples, [0, 1, 0, 1, 2, 0, 0, 2]


def gradients(model, samples, groups, batches):
    """Summed over micro-batches: gradient of sum_t weight_t log p_t, with weights that belong to the sample."""
    model.zero_grad()
    for batch in batches:
        streams = model(pack([samples[s] for s in batch], [groups[s] for s in batch]), temperature=0.8, entropy=True)
        weight_T = torch.cat([torch.full((length(samples[s]),), 1.0 + s, dtype=torch.float64) for s in batch])
        (streams.logprobs_T * weight_T + streams.entropy_T * weight_T.flip(0) * 0).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def length(sample):
    return sum(sum(r.trained) for r in sample)


def test_gradients_do_not_depend_on_budget_or_order():
    model, (samples, groups) = packed_model(), workload()
    everything = list(range(len(samples)))
    truth = gradients(model, samples, groups, [everything])
    scale = max(float(g.abs().max()) for g in truth)
    cuts = {
        "one by one": [[s] for s in everything],
        "three at a time": [everything[i : i + 3] for i in range(0, 8, 3)],
        "permuted": [[5, 2, 7, 1, 0, 6, 4, 3]],
        "by budget": micro_batches(samples, groups, 80),
        "by a small budget": micro_batches(samples, groups, 12),
    }
    for name, batches in cuts.items():
        for mine, theirs in zip(gradients(model, samples, groups, batches), truth, strict=True):
            assert (mine - theirs).abs().max() < 1e-12 * scale, name


def test_log_probs_of_a_ragged_batch_equal_rows_alone():
    model, (samples, groups) = packed_model("Qwen3"), workload()
    together = model(pack(samples, groups), temperature=0.8, entropy=True)
    alone = [model(pack([s], [0]), temperature=0.8, entropy=True) for s in samples]
    assert torch.allclose(together.logprobs_T, torch.cat([a.logprobs_T for a in alone]), atol=1e-9, rtol=0)
    assert torch.allclose(together.entropy_T, torch.cat([a.entropy_T for a in alone]), atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", ["packed", "plain"])
@pytest.mark.parametrize("padded", [True, False])
def test_both_ways_give_the_streams_of_whole_logits(kind, padded):
    samples, groups = workload()
    lm = tiny("Qwen3")
    logits = [[lm(input_ids=torch.tensor([r.ids])).logits[0] / 0.8 for r in sample] for sample in samples]
    logprobs, entropies = [], []
    for sample, rows in zip(samples, logits, strict=True):
        for r, logits_LV in zip(sample, rows, strict=True):
            log_LV = logits_LV.log_softmax(-1)
            at = [i for i, trained in enumerate(r.trained) if trained]
            logprobs += [log_LV[i - 1, r.ids[i]] for i in at]
            entropies += [-(log_LV[i - 1].exp() * log_LV[i - 1]).sum() for i in at]
    model = packed_model("Qwen3") if kind == "packed" else PackedModel(lm, kind="plain", padded=padded)
    streams = model(pack(samples, groups), temperature=0.8, entropy=True)
    assert torch.allclose(streams.logprobs_T, torch.stack(logprobs), atol=1e-9, rtol=0)
    assert torch.allclose(streams.entropy_T, torch.stack(entropies), atol=1e-9, rtol=0)


class Successor(nn.Module):
    """Logits 5 on (id + 1) mod 4 and 0 elsewhere, in the shape of a model class of transformers."""

    def __init__(self):
        super().__init__()
        self.config = LlamaConfig(vocab_size=4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight.data = 5.0 * torch.eye(4).roll(1, 0)

    def base_model(self, input_ids, **_):
        return SimpleNamespace(last_hidden_state=nn.functional.one_hot(input_ids, 4).float())

    def get_output_embeddings(self):
        return self.head


def test_a_token_is_scored_by_the_logits_of_the_token_before_it():
    streams = PackedModel(Successor())(pack([[row([0, 1, 2, 3, 0], {3, 4})]], [0]), temperature=1.0)
    assert streams.logprobs_T.tolist() == pytest.approx([-0.020012, -0.020012], abs=1e-6)


def test_autocast_gives_wide_log_probs_near_the_wide_ones():
    model, (samples, groups) = packed_model("Llama", torch.float32), workload()
    packed = pack(samples, groups)
    wide = model(packed, temperature=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(packed, temperature=1.0, entropy=True)
    assert narrow.logprobs_T.dtype == narrow.entropy_T.dtype == torch.float32
    assert (narrow.logprobs_T - wide.logprobs_T).abs().mean() < 0.1
    narrow.logprobs_T.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_gradient_checkpointing_of_the_family_changes_nothing():
    model, (samples, groups) = packed_model("Llama"), workload()
    truth = gradients(model, samples, groups, [list(range(8))])
    model.lm.activation_checkpointing_enable()
    model.train()
    for mine, theirs in zip(gradients(model, samples, groups, [list(range(8))]), truth, strict=True):
        assert torch.equal(mine, theirs)


def test_two_forwards_can_be_alive_at_once():
    model, (samples, groups) = packed_model("Llama"), workload()
    first = model(pack(samples[:2], groups[:2]), temperature=1.0)
    second = model(pack(samples[2:], groups[2:]), temperature=1.0)
    (first.logprobs_T.sum() + second.logprobs_T.sum()).backward()
    together = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(pack(samples[:2], groups[:2]), temperature=1.0).logprobs_T.sum().backward()
    model(pack(samples[2:], groups[2:]), temperature=1.0).logprobs_T.sum().backward()
    for a, b in zip(together, model.parameters(), strict=True):
        assert torch.allclose(a, b.grad, atol=1e-4, rtol=1e-6)


def test_no_trained_token_gives_empty_streams():
    streams = packed_model()(pack([[row([1, 2, 3], set())]], [0]), temperature=1.0, entropy=True)
    assert streams.logprobs_T.shape == streams.entropy_T.shape == (0,)
    streams.logprobs_T.sum().backward()


def test_a_tied_head_is_published_once():
    names = [name for name, _ in weights(packed_model("Llama, tied embeddings (SmolLM2)"))]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names))


def test_weights_are_copied_in_place_and_cast():
    trainer = packed_model("Llama, tied embeddings (SmolLM2)", torch.float32)
    rollout = copy.deepcopy(trainer).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.mul_(1.5)
    places = [p.data_ptr() for p in rollout.parameters()]
    rollout.load_weights(weights(trainer))
    assert places == [p.data_ptr() for p in rollout.parameters()]
    for mine, theirs in zip(rollout.parameters(), trainer.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16())
    assert rollout.lm.lm_head.weight is rollout.lm.model.embed_tokens.weight


def test_wrong_weights_are_refused_by_name():
    model = packed_model("Llama")
    given = dict(weights(model))
    with pytest.raises(ValueError, match=r"lm_head\.weight.*has shape \(96, 32\)"):
        model.load_weights([("lm_head.weight", torch.zeros(3, 3))])
    with pytest.raises(ValueError, match=r"ghost.*not a weight"):
        model.load_weights([*given.items(), ("ghost", torch.zeros(1))])
    del given["lm_head.weight"]
    with pytest.raises(ValueError, match=r"not given.*lm_head\.weight"):
        model.load_weights(given.items())


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_the_embedding_has_a_name_of_its_own(tied):
    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = PackedModel(LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied)), kind="plain")
    assert tied_names(model) == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})
    assert set(tied_names(model)).isdisjoint(name for name, _ in weights(model))
