"""Chunked log-probs equal the full computation, forward and backward, and never hold it."""

import subprocess
import sys

import pytest
import torch

from partita.ops.logprobs import chunk_tokens, token_logprobs


def full(logits_TV, target_T, temperature):
    """The definition, all at once."""
    logprobs_TV = (logits_TV / temperature).log_softmax(-1)
    return logprobs_TV.gather(1, target_T[:, None])[:, 0], -(logprobs_TV.exp() * logprobs_TV).sum(-1)


def test_known_value_at_temperature_one_half():
    logits_TV = torch.tensor([[2.0, 0.0, 1.0]])
    target_T = torch.tensor([0])
    half, _ = token_logprobs(lambda x: x, logits_TV, target_T, chunk=8, temperature=0.5)
    one, _ = token_logprobs(lambda x: x, logits_TV, target_T, chunk=8)
    assert half.item() == pytest.approx(-0.142932, abs=1e-6)
    assert one.item() == pytest.approx(-0.407606, abs=1e-6)


def test_gradient_is_scaled_by_the_temperature():
    logits_TV = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    token_logprobs(lambda x: x, logits_TV, torch.tensor([0]), chunk=8, temperature=0.5)[0].sum().backward()
    p = torch.tensor([4.0, 0.0, 2.0], dtype=torch.float64).softmax(-1)  # logits / 0.5
    expected = (torch.tensor([1.0, 0.0, 0.0]) - p) / 0.5
    assert torch.allclose(logits_TV.grad[0], expected, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_equals_the_full_computation_in_float64(chunk, temperature):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden_TD, weight_VD, target_T = normal(7, 5), normal(11, 5) * 2, torch.tensor([0, 10, 3, 3, 7, 1, 5])
    push_T, push_entropy_T = normal(7), normal(7)

    def run(compute):
        hidden, weight = hidden_TD.clone().requires_grad_(), weight_VD.clone().requires_grad_()
        logprobs_T, entropy_T = compute(hidden, weight)
        (logprobs_T * push_T + entropy_T * push_entropy_T).sum().backward()
        return logprobs_T, entropy_T, hidden.grad, weight.grad

    ours = run(
        lambda h, w: token_logprobs(lambda x: x @ w.T, h, target_T, chunk=chunk, temperature=temperature, entropy=True)
    )
    for mine, truth in zip(ours, run(lambda h, w: full(h @ w.T, target_T, temperature)), strict=True):
        assert mine.dtype == torch.float64
        assert (mine - truth).abs().max() < 1e-12


def test_gradient_without_entropy_and_without_gradients_at_all():
    hidden_TD = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target_T = torch.tensor([5, 0, 2, 2])
    logprobs_T, entropy_T = token_logprobs(lambda x: 3 * x, hidden_TD, target_T, chunk=3, temperature=2.0)
    assert entropy_T is None
    (mine,) = torch.autograd.grad(logprobs_T.pow(2).sum(), hidden_TD)
    (truth,) = torch.autograd.grad(full(3 * hidden_TD, target_T, 2.0)[0].pow(2).sum(), hidden_TD)
    assert (mine - truth).abs().max() < 1e-12
    with torch.no_grad():
        again_T, _ = token_logprobs(lambda x: 3 * x, hidden_TD, target_T, chunk=3, temperature=2.0)
    assert torch.equal(again_T, logprobs_T)


def test_no_chunk_sees_more_than_its_tokens_forward_or_backward():
    seen = []

    def head(hidden_CD):
        seen.append(hidden_CD.shape[0])
        return hidden_CD

    hidden_TD = torch.randn(10, 6, requires_grad=True)
    token_logprobs(head, hidden_TD, torch.zeros(10, dtype=torch.long), chunk=4)[0].sum().backward()
    assert seen == [4, 4, 2, 2, 4, 4]


def test_the_caller_s_tensors_are_left_alone():
    logits_TV = torch.tensor([[2.0, 0.0, 1.0]])
    with torch.no_grad():
        token_logprobs(lambda x: x, logits_TV, torch.tensor([0]), chunk=8, temperature=0.5, entropy=True)
    assert logits_TV.tolist() == [[2.0, 0.0, 1.0]]


def test_bfloat16_logits_are_widened_before_the_softmax():
    generator = torch.Generator().manual_seed(0)
    logits_TV = (torch.randn(16, 32000, generator=generator) * 3).bfloat16()
    target_T = torch.randint(0, 32000, (16,), generator=generator)
    ours, _ = token_logprobs(lambda x: x, logits_TV, target_T, chunk=8)
    truth, _ = full(logits_TV.double(), target_T, 1.0)
    assert ours.dtype == torch.float32
    assert (ours.double() - truth).abs().max() < 1e-5
    narrow = logits_TV.log_softmax(-1).gather(1, target_T[:, None])[:, 0]
    assert (narrow.double() - truth).abs().max() > 1e-2  # what the test protects from


def test_under_autocast_the_head_is_narrow_and_its_weight_gradient_is_not_summed_narrow():
    torch.manual_seed(0)
    weight_VD = torch.randn(50, 16).requires_grad_()
    hidden_TD, target_T = torch.randn(1024, 16), torch.randint(0, 3, (1024,))
    kinds = set()

    def head(hidden_CD):
        logits_CV = torch.nn.functional.linear(hidden_CD, weight_VD)
        kinds.add(logits_CV.dtype)
        return logits_CV

    with torch.autocast("cpu", torch.bfloat16):
        logprobs_T, _ = token_logprobs(head, hidden_TD, target_T, chunk=1)
    logprobs_T.sum().backward()
    assert kinds == {torch.bfloat16}
    assert logprobs_T.dtype == torch.float32
    (truth,) = torch.autograd.grad(full(hidden_TD @ weight_VD.T, target_T, 1.0)[0].sum(), weight_VD)
    # 0.0028 with a float32 sum over the chunks, 0.024 with a bfloat16 one
    assert (weight_VD.grad - truth).norm() / truth.norm() < 5e-3


def test_no_tokens_give_no_values_and_a_zero_gradient():
    hidden_TD = torch.randn(0, 6, requires_grad=True)
    logprobs_T, entropy_T = token_logprobs(
        lambda x: x, hidden_TD, torch.zeros(0, dtype=torch.long), chunk=4, entropy=True
    )
    assert logprobs_T.shape == entropy_T.shape == (0,)
    logprobs_T.sum().backward()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(lambda x: x, torch.zeros(1, 3), torch.tensor([0]), chunk=1, temperature=temperature)


def test_chunks_shrink_with_the_vocabulary():
    assert chunk_tokens(151936) == 82
    assert chunk_tokens(1 << 30) == 1


MEMORY = """
import resource, torch
from partita.ops.logprobs import chunk_tokens, token_logprobs
T, V = 2048, 151936
weight, hidden, target = torch.randn(V, 4) / 4, torch.randn(T, 4), torch.randint(0, V, (T,))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with torch.no_grad():
    token_logprobs(lambda x: x @ weight.T, hidden[:1], target[:1], chunk=1)
    before = peak()
    ours, _ = token_logprobs(lambda x: x @ weight.T, hidden, target, chunk=chunk_tokens(V), temperature={temperature})
    extra = peak() - before
    few = (hidden[:64] @ weight.T / {temperature}).log_softmax(-1).gather(1, target[:64, None])[:, 0]
    assert (few - ours[:64]).abs().max() < 1e-5
print(extra / (T * V * 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scoring_needs_a_small_part_of_the_full_logits(temperature):
    script = MEMORY.replace("{temperature}", str(temperature))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.15
