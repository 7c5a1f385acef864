"""The fused linear head equals the definition and the general way, forward and backward, a chunk at a time."""

import math

import pytest
import torch
import torch.nn.functional as F

from partita.ops import linear_head
from partita.ops.linear_head import LinearHead
from partita.ops.logprobs import token_logprobs

RULES = [(1.0, None), (0.5, None), (1.0, 2.0), (0.7, 3.0)]


def normal(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def whole(hidden_TD, weight_VD, bias_V, target_T, temperature, scale=1.0, softcap=None):
    """The definition, all at once."""
    logits_TV = F.linear(hidden_TD, weight_VD, bias_V) * scale
    if softcap is not None:
        logits_TV = torch.tanh(logits_TV / softcap) * softcap
    log_TV = (logits_TV / temperature).log_softmax(-1)
    return log_TV.gather(1, target_T[:, None])[:, 0], -(log_TV.exp() * log_TV).sum(-1)


@pytest.fixture
def small_blocks(monkeypatch):
    """Two tokens a block and three rows of the weight gradient, so that seams are everywhere."""
    monkeypatch.setattr(linear_head, "BLOCK_LOGITS", 22)
    monkeypatch.setattr(linear_head, "BLOCK_WEIGHTS", 15)


def test_known_value_at_temperature_one_half():
    head, hidden_TD = LinearHead(torch.eye(3)), torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    logprobs_T, entropy_T = token_logprobs(head, hidden_TD, torch.tensor([0]), chunk=8, temperature=0.5, entropy=True)
    assert logprobs_T.item() == pytest.approx(-0.142932, abs=1e-6)
    assert entropy_T.item() == pytest.approx(0.142932 + 4 * 0.015876 + 2 * 0.117310, abs=1e-5)
    logprobs_T.sum().backward()
    assert hidden_TD.grad[0].tolist() == pytest.approx([0.266378, -0.031752, -0.234620], abs=1e-5)  # (1 - p) / 0.5


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(("scale", "softcap"), RULES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("pushed", ["logprobs", "entropy", "both"])
def test_equals_the_definition_forward_and_backward(chunk, scale, softcap, biased, pushed):
    start = [normal(1, 7, 5), normal(2, 11, 5) * 2, normal(3, 11)][: 3 if biased else 2]
    target_T, push_T, push_entropy_T = torch.tensor([0, 10, 3, 3, 7, 1, 5]), normal(4, 7), normal(5, 7)

    def run(compute):
        given = [x.clone().requires_grad_() for x in start]
        logprobs_T, entropy_T = compute(*given, *([] if biased else [None]))
        loss = logprobs_T @ push_T if pushed == "logprobs" else entropy_T @ push_entropy_T
        loss = loss + logprobs_T @ push_T if pushed == "both" else loss
        loss.backward()
        return [logprobs_T, entropy_T, *(x.grad for x in given)]

    def ours(hidden_TD, weight_VD, bias_V):
        head = LinearHead(weight_VD, bias_V, scale, softcap)
        return token_logprobs(head, hidden_TD, target_T, chunk=chunk, temperature=0.7, entropy=True)

    for mine, truth in zip(run(ours), run(lambda *x: whole(*x, target_T, 0.7, scale, softcap)), strict=True):
        assert mine.dtype == torch.float64
        assert (mine - truth).abs().max() < 1e-12


@pytest.mark.usefixtures("small_blocks")
def test_gradients_agree_with_finite_differences():
    given = [normal(i, *shape).requires_grad_() for i, shape in enumerate([(4, 3), (6, 3), (6,)])]

    def run(hidden_TD, weight_VD, bias_V):
        head = LinearHead(weight_VD, bias_V, 0.8, 2.0)
        return token_logprobs(head, hidden_TD, torch.tensor([5, 0, 2, 2]), chunk=3, temperature=1.3, entropy=True)

    assert torch.autograd.gradcheck(run, given, eps=1e-6, atol=1e-7)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_the_general_way_in_the_same_precision(dtype):
    """Under autocast too, and a product of narrow numbers is summed over the chunks in float32."""
    weight_VD, hidden_TD = (normal(i, n, 16, dtype=torch.float32).requires_grad_() for i, n in ((1, 50), (2, 64)))
    target_T, push_T = torch.randint(0, 50, (64,), generator=torch.Generator().manual_seed(3)), normal(4, 64).float()

    def run(head):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logprobs_T, entropy_T = token_logprobs(head, hidden_TD, target_T, chunk=7, temperature=0.9, entropy=True)
        return (
            logprobs_T,
            entropy_T,
            *torch.autograd.grad((logprobs_T + 0.1 * entropy_T) @ push_T, [hidden_TD, weight_VD]),
        )

    fused, general = run(LinearHead(weight_VD)), run(lambda x: F.linear(x, weight_VD))
    for mine, other in zip(fused, general, strict=True):
        assert mine.dtype == other.dtype == torch.float32
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_narrow_weight_gets_a_narrow_gradient_that_was_summed_wide():
    weight_VD, hidden_TD = normal(1, 50, 16, dtype=torch.bfloat16).requires_grad_(), normal(2, 1024, 16).bfloat16()
    target_T = torch.randint(0, 3, (1024,), generator=torch.Generator().manual_seed(3))
    logprobs_T, _ = token_logprobs(LinearHead(weight_VD), hidden_TD, target_T, chunk=1)
    logprobs_T.sum().backward()
    assert logprobs_T.dtype == torch.float32 and weight_VD.grad.dtype == torch.bfloat16
    wide_VD = weight_VD.detach().float().requires_grad_()
    whole(hidden_TD.float(), wide_VD, None, target_T, 1.0)[0].sum().backward()
    assert (weight_VD.grad - wide_VD.grad).norm() / wide_VD.grad.norm() < 5e-3


def test_what_is_frozen_gets_no_gradient():
    hidden_TD, weight_VD = normal(1, 4, 3).requires_grad_(), normal(2, 6, 3)
    token_logprobs(LinearHead(weight_VD), hidden_TD, torch.tensor([5, 0, 2, 2]), chunk=3)[0].sum().backward()
    assert weight_VD.grad is None and hidden_TD.grad.any()
    weight_VD.requires_grad_()
    fixed = token_logprobs(LinearHead(weight_VD), hidden_TD.detach(), torch.tensor([5, 0, 2, 2]), chunk=3)[0]
    fixed.sum().backward()
    assert weight_VD.grad.any()


def test_the_caller_s_tensors_are_left_alone():
    hidden_TD, weight_VD = normal(1, 4, 3), normal(2, 6, 3).requires_grad_()
    before = hidden_TD.clone(), weight_VD.detach().clone()
    head = LinearHead(weight_VD, None, 0.5, 2.0)
    token_logprobs(head, hidden_TD, torch.tensor([5, 0, 2, 2]), chunk=3, temperature=0.5)[0].sum().backward()
    assert torch.equal(hidden_TD, before[0]) and torch.equal(weight_VD, before[1])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_logits_that_are_not_finite_look_as_they_do_in_general(bad):
    bias_V = torch.tensor([0.0, bad, 1.0, 0.0])
    hidden_TD, weight_VD = normal(1, 3, 2, dtype=torch.float32), normal(2, 4, 2, dtype=torch.float32)
    target_T = torch.tensor([0, 1, 2])
    fused = token_logprobs(LinearHead(weight_VD, bias_V), hidden_TD, target_T, chunk=2, entropy=True)
    general = token_logprobs(lambda x: F.linear(x, weight_VD, bias_V), hidden_TD, target_T, chunk=2, entropy=True)
    for mine, other in zip(fused, general, strict=True):
        assert torch.allclose(mine, other, equal_nan=True)


def test_no_tokens_give_no_values_and_a_zero_gradient():
    hidden_TD, head = torch.randn(0, 3, requires_grad=True), LinearHead(torch.randn(6, 3, requires_grad=True))
    logprobs_T, entropy_T = token_logprobs(head, hidden_TD, torch.zeros(0, dtype=torch.long), chunk=4, entropy=True)
    assert logprobs_T.shape == entropy_T.shape == (0,)
    logprobs_T.sum().backward()


def test_narrow_logits_come_in_larger_chunks():
    head = LinearHead(torch.zeros(151936, 1))
    with torch.autocast("cpu", torch.bfloat16):
        assert head.chunk_tokens == 662
    assert head.chunk_tokens == 331
    assert LinearHead(torch.zeros(1, 1).expand(1 << 30, 1)).chunk_tokens == 1


@pytest.mark.parametrize(("chunk", "products"), [(64, 1), (32, 3), (24, 5)])
def test_logits_of_the_last_chunk_are_computed_once(chunk, products):
    """By the profiler's count of products as wide as the vocabulary; a second backward pass computes all of them again and
    gives the same.
    """
    weight_VD, hidden_TD = (normal(i, n, 16, dtype=torch.float32).requires_grad_() for i, n in ((1, 50), (2, 64)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
        logprobs_T, _ = token_logprobs(LinearHead(weight_VD), hidden_TD, torch.zeros(64, dtype=torch.long), chunk=chunk)
        first = torch.autograd.grad(logprobs_T.sum(), [weight_VD, hidden_TD], retain_graph=True)
    wide = [e for e in seen.events() if e.name == "aten::mm" and e.input_shapes[1] == [16, 50]]
    assert len(wide) == products
    again = torch.autograd.grad(logprobs_T.sum(), [weight_VD, hidden_TD])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_logits_of_one_chunk_exist_at_a_time():
    """What the pass allocates at its peak, by the allocator's own record, is far from the logits of all tokens."""
    weight_VD, hidden_TD = torch.randn(4096, 8, requires_grad=True), torch.randn(512, 8, requires_grad=True)
    target_T, activity = torch.zeros(512, dtype=torch.long), torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as seen:
        token_logprobs(LinearHead(weight_VD), hidden_TD, target_T, chunk=16, entropy=True)[0].sum().backward()
    total = peak = 0
    for event in sorted(
        (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()
    ):
        total += event.nbytes()
        peak = max(peak, total)
    assert 16 * 4096 * 4 < peak < 4 * 16 * 4096 * 4 + 4096 * 8 * 4 * 3 < 512 * 4096 * 4 / 4
