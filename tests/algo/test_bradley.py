"""The reward model's loss by hand, its slopes, and at the ends of the number range."""

import math

import pytest
import torch

from partita.algo.bradley import BradleyTerry, ranking_loss


def scores(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def test_a_pair_by_hand(close):
    """Scores 2 and 0.5: -log σ(1.5); with a margin of 1, -log σ(0.5); centred, 0.1 · 2.5² more."""
    chosen_N, rejected_N = scores(2.0), scores(0.5)
    close(ranking_loss(BradleyTerry(), chosen_N, rejected_N, 1).value, 0.201413)
    close(ranking_loss(BradleyTerry(), chosen_N, rejected_N, 1, torch.tensor([1.0])).value, 0.474077)
    close(ranking_loss(BradleyTerry(0.1), chosen_N, rejected_N, 1).value, 0.826413)


def test_slopes(close):
    """-σ(m - d) on the better score, + on the worse, and 2κ(s_c + s_r) on both."""
    chosen_N, rejected_N = scores(2.0, -1.0), scores(0.5, 3.0)
    value = ranking_loss(BradleyTerry(0.1), chosen_N, rejected_N, 2, torch.tensor([1.0, 0.0])).value
    better_N, worse_N = torch.autograd.grad(value, (chosen_N, rejected_N))
    pull = [1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-4.0))]
    close(better_N, [(-pull[0] + 0.5) / 2, (-pull[1] + 0.4) / 2])
    close(worse_N, [(pull[0] + 0.5) / 2, (pull[1] + 0.4) / 2])


def test_equal_scores_cost_log_two_and_are_not_ranked_rightly(close):
    found = ranking_loss(BradleyTerry(), scores(1.5), scores(1.5), 1)
    close(found.value, math.log(2))
    assert float(found.stats["reward_model/accuracy"].sum) == 0.0


def test_only_the_difference_counts_until_scores_are_centred(close):
    for shift in (-100.0, 7.0):
        close(
            ranking_loss(BradleyTerry(), scores(2.0 + shift), scores(0.5 + shift), 1).value,
            ranking_loss(BradleyTerry(), scores(2.0), scores(0.5), 1).value,
        )
    held = [ranking_loss(BradleyTerry(0.01), scores(2.0 + s), scores(0.5 + s), 1).value for s in (-1.25, 0.0, 3.0)]
    assert held[0] < held[1] < held[2]
    close(held[0], ranking_loss(BradleyTerry(), scores(2.0), scores(0.5), 1).value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_scores_far_apart_stay_finite_with_the_slopes_of_the_limits(close, dtype):
    chosen_N, rejected_N = scores(-4096.0, 4096.0, dtype=dtype), scores(4096.0, -4096.0, dtype=dtype)
    found = ranking_loss(BradleyTerry(), chosen_N, rejected_N, 2)
    close(found.value, 4096.0)
    better_N, worse_N = torch.autograd.grad(found.value, (chosen_N, rejected_N))
    close(better_N, [-0.5, 0.0])
    close(worse_N, [0.5, 0.0])
    assert found.value.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("loss", [BradleyTerry(), BradleyTerry(0.01)])
def test_micro_batches_add_up_to_the_step(close, loss):
    chosen, rejected, margin = (2.0, -1.0, 0.3), (0.5, 3.0, 0.3), torch.tensor([1.0, 0.0, 0.5])
    whole = ranking_loss(loss, scores(*chosen), scores(*rejected), 3, margin).value
    parts = [ranking_loss(loss, scores(*chosen[rows]), scores(*rejected[rows]), 3, margin[rows]).value
             for rows in (slice(0, 1), slice(1, 3))]  # fmt: skip
    close(sum(parts), whole)


def test_stats_are_sums_and_counts_without_gradient():
    found = ranking_loss(BradleyTerry(0.5), scores(2.0, -1.0), scores(0.5, 3.0), 5, torch.tensor([9.0, 9.0]))
    assert {name: tuple(map(float, stat)) for name, stat in found.stats.items()} == {
        "reward_model/accuracy": (1.0, 2.0),
        "reward_model/margin": (-2.5, 2.0),
        "reward_model/score_chosen": (1.0, 2.0),
        "reward_model/score_rejected": (3.5, 2.0),
    }
    assert found.difference_N.tolist() == [1.5, -4.0]
    assert not any(value.requires_grad for value in (found.loss_N, found.difference_N))


def test_dpo_is_this_loss_of_its_implicit_rewards(close):
    """β log π/π_ref as scores: DPO's reading of a policy as a reward model (arXiv 2305.18290, equation 7)."""
    close(ranking_loss(BradleyTerry(), scores(0.1, -0.05, 0.1), scores(-0.05, 0.1, -0.05), 3).value, 0.67095704779)


def test_formulas_and_refusals():
    assert BradleyTerry().formula() == "-log σ(s_c - s_r - m)"
    assert BradleyTerry(0.01).formula() == "-log σ(s_c - s_r - m) + 0.01 (s_c + s_r)²"
    with pytest.raises(ValueError, match=r"centring=-0.1: below 0 .* 0.01 is common"):
        BradleyTerry(-0.1)
