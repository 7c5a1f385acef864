"""The divergence over the whole vocabulary: known numbers, both gradients, chunks, precision, and what a fixed side costs."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from partita.ops.logprobs import Side, full_kl

GOLDEN = Path(__file__).parent.parent / "golden"


def identity(x):
    return x


def dense(p_TV, q_TV, temperature):
    """The definition, all at once."""
    log_p_TV, log_q_TV = (p_TV / temperature).log_softmax(-1), (q_TV / temperature).log_softmax(-1)
    return (log_p_TV.exp() * (log_p_TV - log_q_TV)).sum(-1)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_old_against_new_and_its_gradient_are_the_golden_ones():
    case = json.loads((GOLDEN / "loss_ppo_penalty_full_vocab.json").read_text())
    inputs, want = case["inputs"], case["expected"]
    old_TV = torch.tensor(inputs["old_logits"], dtype=torch.float64)
    new_TV = torch.tensor(inputs["new_logits"], dtype=torch.float64, requires_grad=True)
    kl_T = full_kl(Side(identity, old_TV, fixed=True), Side(identity, new_TV), chunk=1)
    assert kl_T.tolist() == pytest.approx(want["kl_per_token"], abs=1e-6)
    chosen_T = torch.tensor(inputs["actions"])[:, None]
    ratio_T = (new_TV.log_softmax(-1) - old_TV.log_softmax(-1)).gather(1, chosen_T)[:, 0].exp()
    assert ratio_T.tolist() == pytest.approx(want["ratio"], abs=1e-6)
    loss = (-ratio_T * torch.tensor(inputs["advantages"]) + case["config"]["kl_coef"] * kl_T).mean()
    loss.backward()
    assert loss.item() == pytest.approx(want["loss"], abs=1e-6)
    assert torch.allclose(new_TV.grad, torch.tensor(want["grad_logits"], dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_both_directions_have_the_golden_value_and_gradient(direction):
    case = json.loads((GOLDEN / "kl_expected_gradients.json").read_text())
    policy_V = torch.tensor([case["inputs"]["logits"]], dtype=torch.float64, requires_grad=True)
    ref = Side(identity, torch.tensor([case["inputs"]["ref_logits"]], dtype=torch.float64), fixed=True)
    policy = Side(identity, policy_V)
    kl_T = full_kl(policy, ref, chunk=4) if direction == "reverse" else full_kl(ref, policy, chunk=4)
    kl_T.sum().backward()
    name = {"reverse": "true_grad_reverse_KL_pi_ref", "forward": "true_grad_forward_KL_ref_pi"}[direction]
    assert kl_T.item() == pytest.approx(case["expected"][f"kl_{direction}"], abs=1e-9)
    assert policy_V.grad[0].tolist() == pytest.approx(case["expected"][name], abs=1e-9)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("learning", ["p", "q", "both"])
def test_equals_the_dense_computation_forward_and_backward(chunk, temperature, learning):
    """Two heads of different widths over eleven tokens; the side that is fixed gets no gradient, nor does its head."""
    start = [normal(1, 7, 5), normal(2, 11, 5), normal(3, 7, 4), normal(4, 11, 4)]
    push_T = normal(5, 7)

    def run(compute):
        hidden_p, weight_p, hidden_q, weight_q = (x.clone().requires_grad_() for x in start)
        kl_T = compute(hidden_p, weight_p, hidden_q, weight_q)
        (kl_T * push_T).sum().backward()
        return kl_T, [x.grad for x in (hidden_p, weight_p, hidden_q, weight_q)]

    def ours(hidden_p, weight_p, hidden_q, weight_q):
        p = Side(lambda x: x @ weight_p.T, hidden_p, fixed=learning == "q")
        q = Side(lambda x: x @ weight_q.T, hidden_q, fixed=learning == "p")
        return full_kl(p, q, chunk=chunk, temperature=temperature)

    mine_T, mine = run(ours)
    truth_T, truth = run(lambda hp, wp, hq, wq: dense(hp @ wp.T, hq @ wq.T, temperature))
    assert mine_T.dtype == torch.float64
    assert (mine_T - truth_T).abs().max() < 1e-12
    for side, pair in (("p", (0, 1)), ("q", (2, 3))):
        for i in pair:
            if learning in (side, "both"):
                assert (mine[i] - truth[i]).abs().max() < 1e-12
            else:
                assert mine[i] is None


def test_gradients_agree_with_finite_differences():
    p_TV, q_TV = normal(1, 3, 6).requires_grad_(), normal(2, 3, 6).requires_grad_()

    def kl(p, q):
        return full_kl(Side(identity, p), Side(identity, q), chunk=2, temperature=0.7)

    assert torch.autograd.gradcheck(kl, (p_TV, q_TV), eps=1e-6, atol=1e-7)


def test_a_policy_against_itself_has_divergence_and_gradient_exactly_zero():
    logits_TV = (normal(1, 4, 1000) * 5).float().requires_grad_()
    for temperature in (1.0, 0.3):
        other = Side(identity, logits_TV.detach().clone(), fixed=True)
        for p, q in ((Side(identity, logits_TV), other), (other, Side(identity, logits_TV))):
            kl_T = full_kl(p, q, chunk=3, temperature=temperature)
            (grad_TV,) = torch.autograd.grad(kl_T.sum(), logits_TV)
            assert kl_T.tolist() == [0.0] * 4 and not grad_TV.any()


def test_float32_keeps_the_digits_of_a_small_divergence_over_a_large_vocabulary():
    p_TV = (normal(1, 8, 32000) * 3).float()
    q_TV = p_TV + normal(2, 8, 32000).float() * 1e-2
    ours_T = full_kl(Side(identity, p_TV), Side(identity, q_TV), chunk=8).double()
    truth_T = dense(p_TV.double(), q_TV.double(), 1.0)
    assert truth_T.max() < 1e-4
    assert ((ours_T - truth_T).abs() / truth_T).max() < 1e-3
    plain_T = dense(p_TV, q_TV, 1.0).double()
    assert ((plain_T - truth_T).abs() / truth_T).max() > 2e-3  # what the form of the sum protects from


def test_narrow_logits_are_widened_first():
    p_TV, q_TV = ((normal(i, 16, 3000) * 3).bfloat16() for i in (1, 2))
    ours_T = full_kl(Side(identity, p_TV), Side(identity, q_TV), chunk=8)
    assert ours_T.dtype == torch.float32
    assert (ours_T.double() - dense(p_TV.double(), q_TV.double(), 1.0)).abs().max() < 1e-5
    mixed_T = full_kl(Side(identity, p_TV), Side(identity, q_TV.double()), chunk=8)
    assert mixed_T.dtype == torch.float64


def test_tokens_that_are_ruled_out():
    """What p rules out adds nothing, even where q does too; what only q rules out is infinitely far."""
    p_TV = torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]], requires_grad=True)
    q_TV = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, -math.inf], [0.0, 0.0, -math.inf]])
    kl_T = full_kl(Side(identity, p_TV), Side(identity, q_TV, fixed=True), chunk=3)
    assert kl_T[0].item() == pytest.approx(math.log(1.5))
    assert kl_T[1].item() == pytest.approx(math.log((1 + math.e) / 2) - 0.5)
    assert kl_T[2].item() == math.inf
    kl_T[:2].sum().backward()
    assert torch.isfinite(p_TV.grad[:2]).all()


def test_no_chunk_sees_more_than_its_tokens_and_the_fixed_head_leaves_no_graph():
    seen = []

    def head(name):
        def run(hidden_CD):
            seen.append((name, hidden_CD.shape[0], torch.is_grad_enabled()))
            return hidden_CD

        return run

    hidden_TD = torch.randn(5, 6, requires_grad=True)
    full_kl(Side(head("p"), hidden_TD), Side(head("q"), hidden_TD, fixed=True), chunk=4).sum().backward()
    once = [("p", 4, True), ("q", 4, False), ("p", 1, True), ("q", 1, False)]
    assert seen[:4] == once
    assert sorted(seen[4:]) == sorted(once)


def test_nothing_is_kept_where_no_gradient_is_asked_for():
    logits_TV = normal(1, 3, 4).requires_grad_()
    with torch.no_grad():
        kl_T = full_kl(Side(identity, logits_TV), Side(identity, normal(2, 3, 4)), chunk=2)
    assert not kl_T.requires_grad
    assert torch.allclose(kl_T, dense(logits_TV.detach(), normal(2, 3, 4), 1.0), atol=1e-12)


def test_the_caller_s_tensors_are_left_alone():
    p_TV, q_TV = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 3.0]])
    full_kl(Side(identity, p_TV), Side(identity, q_TV), chunk=2, temperature=0.5)
    assert p_TV.tolist() == [[2.0, 0.0]] and q_TV.tolist() == [[1.0, 3.0]]


def test_no_tokens_give_no_values_and_a_zero_gradient():
    hidden_TD = torch.randn(0, 6, requires_grad=True)
    fixed = Side(identity, torch.randn(0, 3), fixed=True)
    for kl_T in (
        full_kl(Side(identity, hidden_TD), fixed, chunk=4),
        full_kl(fixed, Side(identity, hidden_TD), chunk=4),
    ):
        assert kl_T.shape == (0,)
        kl_T.sum().backward()


def test_a_temperature_that_is_not_positive_is_refused():
    side = Side(identity, torch.zeros(1, 3))
    with pytest.raises(ValueError, match="temperature"):
        full_kl(side, side, chunk=1, temperature=0.0)


MEMORY = """
import resource, torch
from partita.ops.logprobs import Side, chunk_tokens, full_kl
T, V = 1024, 151936
head = lambda x: torch.nn.functional.linear(x, weight)
weight, hidden, other = torch.randn(V, 4) / 4, torch.randn(T, 4, requires_grad=True), torch.randn(T, 4)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
full_kl(Side(head, hidden[:1]), Side(head, other[:1], fixed=True), chunk=1).sum().backward()
before = peak()
full_kl(Side(head, hidden), Side(head, other, fixed=True), chunk=chunk_tokens(V)).sum().backward()
print((peak() - before) / (2 * T * V * 4))
"""


@pytest.mark.slow
def test_forward_and_backward_need_a_small_part_of_the_logits_of_both():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5
