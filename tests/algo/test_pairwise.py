"""Losses of preference pairs by hand, in packed tokens of unequal lengths, and at the ends of the number range."""

import math

import pytest
import torch

from partita.algo.pairwise import Hinge, Ipo, Pairs, Sigmoid, pair_loss


def pairs(*sums, lengths=None, dtype=torch.float64):
    tensors = [torch.tensor(column, dtype=dtype) for column in sums]
    tensors[0].requires_grad_(), tensors[1].requires_grad_()
    return Pairs(*tensors, *([None, None] if lengths is None else map(torch.tensor, lengths)))


def packed(policy, ref):
    """Rows of token log-probs, chosen and rejected in turns, as packed tokens."""
    seq_T = torch.tensor([row for row, tokens in enumerate(policy) for _ in tokens])
    policy_T = torch.tensor([value for tokens in policy for value in tokens], dtype=torch.float64)
    ref_T = torch.tensor([value for tokens in ref for value in tokens], dtype=torch.float64)
    return policy_T.requires_grad_(), ref_T, seq_T


@pytest.mark.parametrize(
    ("loss", "value"),
    [(Sigmoid(0.25), 0.386871), (Hinge(0.25), 0.25), (Ipo(0.25), 1.0)],
    ids=lambda p: type(p).__name__,
)
def test_each_loss_of_one_token_a_side_and_a_margin_of_three(close, loss, value):
    policy_T, ref_T, seq_T = packed([[-1.0], [-3.0]], [[-2.0], [-1.0]])
    close(pair_loss(loss, Pairs.of_tokens(policy_T, ref_T, seq_T, 1), 1).value, value)


def test_ipo_compares_means_per_token_and_the_others_sums(close):
    policy = [[-2.0] * 3, [-2.0] * 10]
    ref = [[-3.0] * 3, [-1.5] * 10]
    policy_T, ref_T, seq_T = packed(policy, ref)
    both = Pairs.of_tokens(policy_T, ref_T, seq_T, 1)
    close(pair_loss(Ipo(0.1), both, 1).value, 12.25)  # (1 - -0.5 - 5)²; sums would give 9
    close(pair_loss(Sigmoid(0.1), both, 1).value, 0.371101)
    close(pair_loss(Hinge(0.1), both, 1).value, 0.2)
    by_sums = pairs([-6.0], [-20.0], [-9.0], [-15.0], lengths=([3], [10]))
    close(pair_loss(Ipo(0.1), by_sums, 1).value, 12.25)


def test_gradients_reach_every_token_of_a_response_alike(close):
    policy_T, ref_T, seq_T = packed([[-2.0] * 3, [-2.0] * 10], [[-3.0] * 3, [-1.5] * 10])
    both = Pairs.of_tokens(policy_T, ref_T, seq_T, 1)
    for loss, size in ((Sigmoid(0.1), (1.0, 1.0)), (Ipo(0.1), (1 / 3, 1 / 10))):
        (gradient_T,) = torch.autograd.grad(pair_loss(loss, both, 1).value, policy_T, retain_graph=True)
        slope = -0.1 / (1 + math.exp(0.8)) if isinstance(loss, Sigmoid) else 2 * (1.5 - 5)
        close(gradient_T, [slope * size[0]] * 3 + [-slope * size[1]] * 10)


def test_identical_responses_cost_log_two_and_pull_apart_equally(close):
    same = pairs([-7.0], [-7.0], [-8.0], [-8.0])
    found = pair_loss(Sigmoid(0.1), same, 1)
    close(found.value, math.log(2))
    better, worse = torch.autograd.grad(found.value, (same.policy_chosen_N, same.policy_rejected_N))
    close(better, [-0.05])
    close(worse, [0.05])
    assert float(found.stats["preference/accuracy"].sum) == 0.0  # a tie is not ranked rightly


def test_smoothing_weighs_the_loss_of_the_swapped_pair(close):
    straight, swapped = pairs([-12.0], [-14.0], [-13.0], [-13.5]), pairs([-14.0], [-12.0], [-13.5], [-13.0])
    plain = [float(pair_loss(Sigmoid(0.1), of, 1).value.detach()) for of in (straight, swapped)]
    close(pair_loss(Sigmoid(0.1, 0.1), straight, 1).value, 0.9 * plain[0] + 0.1 * plain[1])
    certain = pair_loss(Sigmoid(1.0, 0.1), pairs([0.0], [-80.0], [0.0], [0.0]), 1).value
    close(certain, 8.0)  # without smoothing 0: a label that may be wrong is never certain


def test_margins_rewards_and_accuracy(close):
    found = pair_loss(Sigmoid(0.1), pairs([-12.0, -20.5], [-14.0, -18.0], [-13.0, -20.0], [-13.5, -19.0]), 2)
    close(found.chosen_reward_N, [0.1, -0.05])
    close(found.rejected_reward_N, [-0.05, 0.1])
    close(found.margin_N, [0.15, -0.15])
    assert {name: tuple(map(float, stat)) for name, stat in found.stats.items()} == {
        "preference/accuracy": (1.0, 2.0),
        "preference/margin": (pytest.approx(0.0), 2.0),
        "preference/reward_chosen": (pytest.approx(0.05), 2.0),
        "preference/reward_rejected": (pytest.approx(0.05), 2.0),
    }
    assert not any(value.requires_grad for value in (found.loss_N, found.margin_N, found.chosen_reward_N))


def test_micro_batches_add_up_to_the_step(close):
    columns = ([-12.0, -20.5, -7.0], [-14.0, -18.0, -7.0], [-13.0, -20.0, -8.0], [-13.5, -19.0, -6.5])
    whole = pair_loss(Sigmoid(0.1), pairs(*columns), 3).value
    parts = [pair_loss(Sigmoid(0.1), pairs(*[column[rows] for column in columns]), 3).value
             for rows in (slice(0, 1), slice(1, 3))]  # fmt: skip
    close(sum(parts), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [Sigmoid(0.1), Sigmoid(0.1, 0.2), Hinge(0.1), Ipo(0.1)])
def test_margins_of_thousands_stay_finite(loss, dtype):
    both = pairs(
        [-10000.0, -1.0], [-1.0, -10000.0], [-1.0, -10000.0], [-10000.0, -1.0], lengths=([1, 1], [1, 1]), dtype=dtype
    )
    value = pair_loss(loss, both, 2).value
    gradients = torch.autograd.grad(value, (both.policy_chosen_N, both.policy_rejected_N))
    assert all(torch.isfinite(part).all() for part in (value, *gradients))


def test_single_precision_tokens_are_summed_in_double():
    # 4096 tokens of two responses whose sums differ by less than a float32 can hold at their size
    policy_T = torch.full((8192,), -1.2345678, dtype=torch.float32)
    policy_T[0] += 1e-4
    seq_T = torch.arange(2).repeat_interleave(4096)
    found = pair_loss(Sigmoid(1.0), Pairs.of_tokens(policy_T, torch.zeros_like(policy_T), seq_T, 1), 1)
    assert float(found.margin_N) == pytest.approx(1e-4, rel=2e-3)


def test_a_response_without_tokens_has_the_log_prob_zero(close):
    policy_T, ref_T, seq_T = packed([[-1.0, -2.0], []], [[-2.0, -2.0], []])
    both = Pairs.of_tokens(policy_T, ref_T, seq_T, 1)
    close(pair_loss(Sigmoid(0.5), both, 1).margin_N, [0.5])
    close(pair_loss(Ipo(0.5), both, 1).value, (0.5 - 1.0) ** 2)


def test_means_need_lengths():
    with pytest.raises(ValueError, match="Pairs needs chosen_length_N and rejected_length_N"):
        pair_loss(Ipo(0.1), pairs([-1.0], [-1.0], [-1.0], [-1.0]), 1)


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (Sigmoid(0.1), "-log σ(0.1 h)"),
        (Sigmoid(0.1, 0.25), "-0.75 log σ(0.1 h) - 0.25 log σ(-0.1 h)"),
        (Hinge(0.5), "max(0, 1 - 0.5 h)"),
        (Ipo(0.1), "(h - 5)², h per token"),
    ],
)
def test_formulas(loss, formula):
    assert loss.formula() == formula
