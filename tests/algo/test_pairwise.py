"""Losses of preferences by hand, in packed tokens of unequal lengths, and at the ends of the number range."""

import math

import pytest
import torch

from partita.algo.pairwise import Hinge, Ipo, Kto, Orpo, Pairs, Robust, Sigmoid, Simpo, judged_loss, pair_loss

ALL = (Sigmoid(0.1), Sigmoid(0.1, 0.2), Robust(0.1, 0.2), Hinge(0.1), Ipo(0.1), Simpo(2.0, 0.5), Orpo(0.1))
EVERY = pytest.mark.parametrize("loss", ALL, ids=lambda loss: f"{type(loss).__name__}-{loss.beta:g}")
COLUMNS = ([-12.0, -20.5, -7.0], [-14.0, -18.0, -7.0], [-13.0, -20.0, -8.0], [-13.5, -19.0, -6.5])
LENGTHS = ([4, 5, 2], [6, 3, 2])


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
    [
        (Sigmoid(0.25), 0.386871), (Hinge(0.25), 0.25), (Ipo(0.25), 1.0),
        (Robust(0.25, 0.2), 0.136871),  # (0.8 · 0.386871 - 0.2 · 1.136871) / 0.6
        (Simpo(0.25, 0.5), 0.693147),  # -log σ(0.25 · 2 - 0.5): the log-probs, not the ratios
        (Orpo(0.25), 1.021551),  # 1 - 0.25 log σ(-0.541325 - -2.948931)
    ],
    ids=lambda p: type(p).__name__,
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("loss", "slopes"),
    [
        (Sigmoid(0.5), lambda h: -0.5 / (1 + math.exp(0.5 * h))),
        (Sigmoid(0.5, 0.1), lambda h: -0.45 / (1 + math.exp(0.5 * h)) + 0.05 / (1 + math.exp(-0.5 * h))),
        (Robust(0.5, 0.1), lambda h: (-0.45 / (1 + math.exp(0.5 * h)) - 0.05 / (1 + math.exp(-0.5 * h))) / 0.8),
        (Hinge(0.5), lambda h: -0.5 if h < 2 else 0.0),
        (Ipo(0.5), lambda h: 2 * (h - 1)),
        (Simpo(0.5, 0.3), lambda h: -0.5 / (1 + math.exp(0.5 * h - 0.3))),
    ],
    ids=lambda p: type(p).__name__,
)
@pytest.mark.parametrize("h", [-3.0, 0.0, 1.5, 4.0])
def test_slopes_in_the_difference(close, loss, slopes, h):
    both = pairs([h - 1.0], [-1.0], [0.0], [0.0], lengths=([1], [1]))
    better, worse = torch.autograd.grad(pair_loss(loss, both, 1).value, (both.policy_chosen_N, both.policy_rejected_N))
    close(better, [slopes(h)])
    close(worse, [-slopes(h)])


def test_orpo_is_cross_entropy_and_odds_of_means(close):
    """The slope of the log odds in a mean log-prob is 1 / (1 - p); both are shared out over a response's tokens."""
    policy_T, _, seq_T = packed([[-0.5, -1.5], [-2.0] * 4], [[0.0] * 2, [0.0] * 4])
    found = pair_loss(Orpo(0.3), Pairs.of_tokens(policy_T, None, seq_T, 1), 1)
    p, q = math.exp(-1.0), math.exp(-2.0)
    odds = math.log(p / (1 - p)) - math.log(q / (1 - q))
    close(found.value, 1.0 + 0.3 * math.log1p(math.exp(-odds)))
    (gradient_T,) = torch.autograd.grad(found.value, policy_T)
    pull = 0.3 / (1 + math.exp(odds))
    close(gradient_T, [-(1 + pull / (1 - p)) / 2] * 2 + [pull / (1 - q) / 4] * 4)


def test_gradients_reach_every_token_of_a_response_alike(close):
    policy_T, ref_T, seq_T = packed([[-2.0] * 3, [-2.0] * 10], [[-3.0] * 3, [-1.5] * 10])
    both = Pairs.of_tokens(policy_T, ref_T, seq_T, 1)
    for loss, size in ((Sigmoid(0.1), (1.0, 1.0)), (Ipo(0.1), (1 / 3, 1 / 10))):
        (gradient_T,) = torch.autograd.grad(pair_loss(loss, both, 1).value, policy_T, retain_graph=True)
        slope = -0.1 / (1 + math.exp(0.8)) if isinstance(loss, Sigmoid) else 2 * (1.5 - 5)
        close(gradient_T, [slope * size[0]] * 3 + [-slope * size[1]] * 10)


@EVERY
def test_swapping_the_sides_mirrors_the_gradient_of_a_tie(close, loss):
    same = pairs([-7.0], [-7.0], [-8.0], [-8.0], lengths=([7], [7]))
    found = pair_loss(loss, same, 1)
    better, worse = torch.autograd.grad(found.value, (same.policy_chosen_N, same.policy_rejected_N))
    more = 1 / 7 if isinstance(loss, Orpo) else 0.0  # its cross-entropy is on the chosen side alone
    close(better + more, -worse)
    assert float(better) < 0


def test_labels_that_are_wrong_by_chance_cost_as_much_as_right_ones(close):
    """What `Robust` is for: over labels of which a share ε is swapped, its mean is DPO's loss of the right ones."""
    straight = pairs([-12.0], [-14.0], [-13.0], [-13.5])
    swapped = pairs([-14.0], [-12.0], [-13.5], [-13.0])
    right, wrong = (pair_loss(Robust(0.5, 0.3), of, 1).value for of in (straight, swapped))
    close(0.7 * right + 0.3 * wrong, pair_loss(Sigmoid(0.5), straight, 1).value)
    close(pair_loss(Robust(0.5, 0.0), straight, 1).value, pair_loss(Sigmoid(0.5), straight, 1).value)


@pytest.mark.parametrize("kind", [Sigmoid, Robust])
@pytest.mark.parametrize("wrong", [-0.1, 0.5, 1.0])
def test_a_chance_of_wrong_labels_is_below_one_half(kind, wrong):
    with pytest.raises(ValueError, match=rf"label_smoothing={wrong}: from 0 to below 0.5"):
        kind(0.1, wrong)


@pytest.mark.parametrize(("gamma", "cost"), [(0.0, 0.126928), (1.0, 0.313262), (2.0, 0.693147)])
def test_simpo_asks_for_a_margin_in_the_unit_of_its_reward(close, gamma, cost):
    """β 2, means -1 and -2: βh is 2 whatever the lengths; γ comes off it, and γ/β off h."""
    for lengths in (([1], [1]), ([4], [9])):
        both = pairs([-1.0 * lengths[0][0]], [-2.0 * lengths[1][0]], [0.0], [0.0], lengths=lengths)
        close(pair_loss(Simpo(2.0, gamma), both, 1).value, cost)


def test_losses_without_a_reference_do_not_read_one(close):
    for loss in (Simpo(2.0, 0.5), Orpo(0.1)):
        given = pairs([-6.0], [-20.0], [-9.0], [-15.0], lengths=([3], [10]))
        alone = Pairs(given.policy_chosen_N, given.policy_rejected_N, None, None, *map(torch.tensor, ([3], [10])))
        close(pair_loss(loss, given, 1).value, pair_loss(loss, alone, 1).value)
        close(pair_loss(loss, alone, 1).chosen_reward_N, [-2.0 * loss.beta])
        with pytest.raises(ValueError, match="Pairs needs ref_chosen_N and ref_rejected_N"):
            pair_loss(Sigmoid(0.1), alone, 1)


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
        "preference/logprob_chosen": (-32.5, 2.0),
        "preference/logprob_rejected": (-32.0, 2.0),
    }
    assert not any(value.requires_grad for value in (found.loss_N, found.margin_N, found.chosen_reward_N))


@EVERY
def test_micro_batches_add_up_to_the_step(close, loss):
    whole = pair_loss(loss, pairs(*COLUMNS, lengths=LENGTHS), 3).value
    cut = [[[column[rows] for column in of] for of in (COLUMNS, LENGTHS)] for rows in (slice(0, 1), slice(1, 3))]
    close(sum(pair_loss(loss, pairs(*columns, lengths=lengths), 3).value for columns, lengths in cut), whole)


@EVERY
def test_padding_partners_and_order_change_nothing(close, loss):
    """A pair costs the same alone and beside a longer one: only its own tokens are packed."""
    rows = [[-1.0, -0.5, -2.0], [-1.5] * 7, [-0.2] * 12, [-3.0]]
    ref = [[-1.2, -0.5, -1.0], [-1.0] * 7, [-0.4] * 12, [-2.0]]
    policy_T, ref_T, seq_T = packed(rows, ref)
    together = pair_loss(loss, Pairs.of_tokens(policy_T, ref_T, seq_T, 2), 2)
    for n in range(2):
        alone_T, alone_ref_T, alone_seq_T = packed(rows[2 * n : 2 * n + 2], ref[2 * n : 2 * n + 2])
        close(
            pair_loss(loss, Pairs.of_tokens(alone_T, alone_ref_T, alone_seq_T, 1), 1).loss_N, together.loss_N[n : n + 1]
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EVERY
def test_margins_of_thousands_stay_finite(loss, dtype):
    both = pairs(
        [-10000.0, -1.0], [-1.0, -10000.0], [-1.0, -10000.0], [-10000.0, -1.0], lengths=([1, 1], [1, 1]), dtype=dtype
    )
    value = pair_loss(loss, both, 2).value
    gradients = torch.autograd.grad(value, (both.policy_chosen_N, both.policy_rejected_N))
    assert all(torch.isfinite(part).all() for part in (value, *gradients))


def test_gradients_at_the_ends_are_the_limits(close):
    """A pair that is wrong by thousands has the whole slope, one that is right by thousands none but ε's."""
    ends = {
        Sigmoid(0.1): (-0.05, 0.0), Sigmoid(0.1, 0.2): (-0.04, 0.01), Robust(0.1, 0.2): (-0.04 / 0.6, -0.01 / 0.6),
        Hinge(0.1): (-0.05, 0.0), Simpo(2.0, 0.5): (-1.0, 0.0),
    }  # fmt: skip
    for loss, expected in ends.items():
        both = pairs([-10000.0, -1.0], [-1.0, -10000.0], [-1.0] * 2, [-1.0] * 2, lengths=([1, 1], [1, 1]))
        (gradient_N,) = torch.autograd.grad(pair_loss(loss, both, 2).value, both.policy_chosen_N)
        close(gradient_N, expected)


def test_certain_and_empty_responses_have_finite_odds(close):
    for chosen, rejected, lengths in ((0.0, -2.0, (3, 3)), (-2.0, 0.0, (3, 0)), (0.0, 0.0, (0, 0))):
        both = pairs([chosen], [rejected], [0.0], [0.0], lengths=([lengths[0]], [lengths[1]]))
        found = pair_loss(Orpo(0.1), both, 1)
        gradients = torch.autograd.grad(found.value, (both.policy_chosen_N, both.policy_rejected_N))
        assert all(bool(torch.isfinite(part).all()) for part in (found.value, *gradients))
    close(found.value, 0.1 * math.log(2))


def test_the_sequence_log_probs_of_the_golden_pairs(golden, close):
    for name in ("dpo_sigmoid", "dpo_sigmoid_label_smoothing", "dpo_extreme_margin"):
        case = golden(name)
        sides = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
        both = pairs(*(case["inputs"][side] for side in sides))
        loss = Sigmoid(case["config"]["beta"], case["config"].get("label_smoothing", 0.0))
        found = pair_loss(loss, both, len(case["inputs"]["ref_chosen"]))
        close(found.loss_N, case["expected"]["per_pair_loss"])
        close(found.value, case["expected"]["loss"])
        better, worse = torch.autograd.grad(found.value, (both.policy_chosen_N, both.policy_rejected_N))
        close(better, case["expected"]["grad_policy_chosen"])
        close(worse, case["expected"]["grad_policy_rejected"])


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
        (Robust(0.1, 0.25), "(-0.75 log σ(0.1 h) + 0.25 log σ(-0.1 h)) / 0.5"),
        (Simpo(2.0, 0.5), "-log σ(2 h - 0.5), h of mean log-probs"),
        (Orpo(0.1), "-c - 0.1 log σ(log odds(c) - log odds(r)), c and r mean log-probs"),
        (Kto(0.1, 1.0, 1.5), "1 (1 - σ(0.1 (h - z))) if desirable, else 1.5 (1 - σ(0.1 (z - h)))"),
    ],
)
def test_formulas(loss, formula):
    assert loss.formula() == formula


# ---- single judged responses


def ratios(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_kto_by_hand(close):
    """β 0.5, z 1: 1.5 (1 - σ(0.5)) and 0.8 (1 - σ(0.5 · 3)) over two responses; slopes ∓ w β σ(1 - σ) over two."""
    kto, ratio_S = Kto(0.5, 1.5, 0.8), ratios(2.0, -2.0)
    found = judged_loss(kto, ratio_S, torch.tensor([True, False]), torch.tensor(1.0), 2)
    wrong = [1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(1.5))]
    close(found.loss_S, [1.5 * wrong[0], 0.8 * wrong[1]])
    close(found.value, (1.5 * wrong[0] + 0.8 * wrong[1]) / 2)
    (gradient_S,) = torch.autograd.grad(found.value, ratio_S)
    slope = [weight * 0.5 * part * (1 - part) / 2 for weight, part in zip((1.5, 0.8), wrong, strict=True)]
    close(gradient_S, [-slope[0], slope[1]])


def test_the_rest_point_is_a_mean_that_is_held_at_zero_and_has_no_gradient(close):
    kto, mismatched_S = Kto(0.1), ratios(3.0, -1.0, 1.0)
    close(kto.rest(mismatched_S), 1.0)
    close(kto.rest(ratios(-3.0, 1.0)), 0.0)  # the mean, not the values: those would give 0.5
    close(kto.rest(ratios()), 0.0)
    assert not kto.rest(mismatched_S).requires_grad


def test_a_response_at_the_rest_point_costs_half_its_weight_on_either_side(close):
    found = judged_loss(Kto(0.1, 1.0, 1.4), ratios(0.5, 0.5), torch.tensor([True, False]), torch.tensor(0.5), 2)
    close(found.loss_S, [0.5, 0.7])
    assert float(found.stats["preference/accuracy"].sum) == 0.0


def test_judged_micro_batches_add_up_and_far_ratios_are_finite(close):
    kto, rest = Kto(0.1, 1.2), torch.tensor(0.3)
    values, desirable_S = (1.0, -5000.0, 5000.0, 0.2), torch.tensor([True, True, False, False])
    ratio_S = ratios(*values)
    whole = judged_loss(kto, ratio_S, desirable_S, rest, 4).value
    parts = [judged_loss(kto, ratios(*values[rows]), desirable_S[rows], rest, 4).value
             for rows in (slice(0, 1), slice(1, 4))]  # fmt: skip
    close(sum(parts), whole)
    (gradient_S,) = torch.autograd.grad(whole, ratio_S)
    assert bool(torch.isfinite(gradient_S).all())
    close(gradient_S[1:3], [0.0, 0.0])  # unlike DPO's: what is hopelessly wrong is let go


def test_judged_stats_are_means_over_their_own_kind():
    found = judged_loss(Kto(0.5), ratios(2.0, -4.0, 1.0), torch.tensor([True, True, False]), torch.tensor(0.5), 3)
    assert {name: tuple(map(float, stat)) for name, stat in found.stats.items()} == {
        "preference/accuracy": (1.0, 3.0),
        "preference/reward_desirable": (-1.0, 2.0),
        "preference/reward_undesirable": (0.5, 1.0),
        "preference/rest": (0.75, 3.0),
    }
    assert not any(value.requires_grad for value in (found.loss_S, found.reward_S))
