"""Divergences from frozen models through the seam: equal to whole logits, value and gradient, whatever the two run as."""

import pytest
import torch

from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import Against, PackedModel
from partita.ops.packing import pack
from partita.records import Row

TEMPERATURE = 0.8


def model(title, kind="packed", **ways):
    register()
    lm = tiny(title)
    if kind == "packed":
        lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm, kind=kind, **ways)


def row(ids, trained):
    return Row(list(ids), [i in trained for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))


SAMPLES = [
    [row([1, 2, 3, 40, 50, 60], {3, 4, 5})],
    [row([9, 8, 70, 71], {2, 3})],
    [row([1, 2, 3, 41, 7, 42, 43], {3, 5, 6})],
    [row([5, 6, 80], {2}), row([5, 6, 80, 4, 81, 82], {4, 5})],
]
GROUPS = [0, 1, 0, 2]


def log_softmax_TV(lm):
    """[T, V] by the family's own forward, one row at a time, in the order of the trained tokens."""
    rows = [r for sample in SAMPLES for r in sample]
    logits = [lm(input_ids=torch.tensor([r.ids]), use_cache=False).logits[0] / TEMPERATURE for r in rows]
    kept = [x[i - 1] for x, r in zip(logits, rows, strict=True) for i, trained in enumerate(r.trained) if trained]
    return torch.stack(kept).log_softmax(-1)


def kl(p_TV, q_TV):
    return (p_TV.exp() * (p_TV - q_TV)).sum(-1)


def gradients(lm, loss):
    lm.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def assert_close(mine, wanted):
    """Families normalise in float32 whatever the weights are, so two orders of the same sums differ by its rounding."""
    assert mine.keys() == wanted.keys()
    for name, grad in mine.items():
        assert (grad - wanted[name]).abs().max() < 1e-6 * wanted[name].abs().max(), name


WAYS = {
    "packed and packed": (("Llama", "packed", {}), ("GPT-2: learned positions", "packed", {})),
    "packed and plain": (("Llama", "packed", {}), ("Gemma 2: soft-caps, sliding window", "plain", {})),
    "plain and packed": (("Qwen3", "plain", {"padded": False}), ("Llama", "packed", {})),
    "whole logits, and packed": (("Qwen3", "plain", {"known_head": False}), ("Llama", "packed", {})),
    "packed, and whole logits": (("Qwen3", "packed", {}), ("Llama", "plain", {"known_head": False})),
}


@pytest.mark.parametrize("way", WAYS)
def test_both_divergences_and_their_gradients_equal_whole_logits(way):
    (title, kind, ways), (other_title, other_kind, other_ways) = WAYS[way]
    policy, other = model(title, kind, **ways), model(other_title, other_kind, **other_ways)
    own, theirs = tiny(title), tiny(other_title)
    packed = pack(SAMPLES, GROUPS)
    push_T = torch.linspace(-1, 2, packed.target_T.shape[0], dtype=torch.float64)

    def ours(against):
        return policy(packed, temperature=TEMPERATURE, entropy=True, against=against)

    streams = ours(Against(reference=other, old=other))
    with torch.no_grad():
        theirs_TV = log_softmax_TV(theirs)
        want_ref_T, want_old_T = kl(log_softmax_TV(own), theirs_TV), kl(theirs_TV, log_softmax_TV(own))
    assert (streams.kl_full_ref_T - want_ref_T).abs().max() < 1e-9
    assert (streams.kl_full_old_T - want_old_T).abs().max() < 1e-9
    mine = gradients(policy.lm, (ours(Against(reference=other)).kl_full_ref_T * push_T).sum())
    assert_close(mine, gradients(own, (kl(log_softmax_TV(own), theirs_TV) * push_T).sum()))
    mine = gradients(policy.lm, (ours(Against(old=other)).kl_full_old_T * push_T).sum())
    assert_close(mine, gradients(own, (kl(theirs_TV, log_softmax_TV(own)) * push_T).sum()))
    assert all(p.grad is None for p in other.parameters())


def test_other_streams_are_the_same_with_and_without_company():
    policy, packed = model("Llama"), pack(SAMPLES, GROUPS)
    alone = policy(packed, temperature=TEMPERATURE, entropy=True)
    beside = policy(packed, temperature=TEMPERATURE, entropy=True, against=Against(model("Qwen3"), model("OLMo 2")))
    assert torch.equal(alone.logprobs_T, beside.logprobs_T) and torch.equal(alone.entropy_T, beside.entropy_T)
    assert alone.kl_full_ref_T is None and alone.kl_full_old_T is None
    empty = policy(packed, temperature=TEMPERATURE, against=Against())
    assert empty.kl_full_ref_T is None and empty.kl_full_old_T is None


def test_under_autocast_a_copy_of_the_policy_is_at_distance_zero():
    policy, copy = (PackedModel(tiny("Llama", torch.float32), kind="plain") for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        streams = policy(pack(SAMPLES, GROUPS), temperature=1.0, against=Against(copy, copy))
    assert streams.kl_full_ref_T.dtype == torch.float32
    assert not streams.kl_full_ref_T.any() and not streams.kl_full_old_T.any()
    (streams.kl_full_ref_T + streams.kl_full_old_T).sum().backward()
    assert all(not p.grad.any() for p in policy.parameters())


def test_no_trained_token_gives_empty_divergences():
    policy = model("Llama")
    streams = policy(pack([[row([1, 2, 3], set())]], [0]), temperature=1.0, against=Against(policy, policy))
    assert streams.kl_full_ref_T.shape == streams.kl_full_old_T.shape == (0,)
    streams.kl_full_ref_T.sum().backward()


def test_a_model_of_another_vocabulary_is_refused_by_name():
    policy, other = model("Llama"), model("Qwen3")
    policy.lm.name_or_path, other.lm.name_or_path = "here/policy", "there/reference"
    other.lm.resize_token_embeddings(100)
    with pytest.raises(ValueError, match=r"there/reference gives logits of 100 tokens and here/policy of 96"):
        policy(pack(SAMPLES, GROUPS), temperature=1.0, against=Against(reference=other))
