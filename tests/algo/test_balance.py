"""Positive against negative advantages: by factors or by leaving samples out, on one optimizer step."""

from dataclasses import replace

import pytest
import torch

from partita.algo.balance import Downsample, Reweight
from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, BalanceConfig
from partita.algo.reduce import SeqMeanTokenSum


def sizes(advantages_T, weight_T):
    """Σ w|A⁺| and Σ w|A⁻|."""
    product_T = weight_T * advantages_T
    return float(product_T.clamp(min=0).sum()), float(-product_T.clamp(max=0).sum())


def test_golden_factors(golden, close):
    case = golden("sampling_pos_neg_reweight")
    advantages_T = torch.tensor(case["inputs"]["advantages"], dtype=torch.float64)
    found = Reweight(case["config"]["target_pos_fraction"]).scale(advantages_T, torch.ones_like(advantages_T))
    close(found, case["expected"]["advantages"])


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.9])
def test_both_sides_have_their_share_under_the_weights_of_the_loss(fraction):
    advantages_T = torch.tensor([2.0, -1.0, -1.0, 0.0], dtype=torch.float64)
    weight_T = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    up, down = sizes(Reweight(fraction).scale(advantages_T, weight_T), weight_T)
    assert (up, down) == (pytest.approx(fraction * 1.375), pytest.approx((1 - fraction) * 1.375))


@pytest.mark.parametrize("advantages", [[1.0, 2.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
def test_one_side_alone_is_left_as_it_is(advantages):
    advantages_T = torch.tensor(advantages)
    assert torch.equal(Reweight(0.5).scale(advantages_T, torch.ones(3)), advantages_T)


def test_a_token_without_weight_is_on_no_side(close):
    advantages_T, weight_T = torch.tensor([1.0, 5.0, -3.0]).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    close(Reweight(0.5).scale(advantages_T, weight_T), [2.0, 10.0, -2.0])


def signed(padded, advantages, lots, in_loss=None):
    batch = padded({"mask": [[1.0]] * len(advantages), "rewards": [0.0] * len(advantages)}).batch(
        advantages_T=torch.tensor(advantages), lot_S=torch.tensor(lots)
    )
    return batch, torch.ones(len(advantages), dtype=torch.bool) if in_loss is None else torch.tensor(in_loss)


@pytest.mark.parametrize(
    ("advantages", "fraction", "kept"),
    [
        ([1.0, 1.0, 1.0, -1.0], 0.5, [False, True, False, True]),  # the lowest lot of the larger side stays
        ([1.0, 1.0, 1.0, -1.0], 2 / 3, [True, True, False, True]),
        ([-1.0, -1.0, -1.0, 1.0], 0.5, [False, True, False, True]),
        ([1.0, -1.0, 0.0, 0.0], 0.5, [True] * 4),
        ([1.0, 1.0, 1.0, 0.0], 0.5, [True] * 4),  # one side alone
        ([1.0, 1.0, 1.0, -1.0], 0.1, [False, True, False, True]),  # never down to nothing
    ],
)
def test_the_larger_side_is_cut_by_lot(padded, advantages, fraction, kept):
    batch, all_in = signed(padded, advantages, [0.5, 0.1, 0.9, 0.7])
    assert Downsample(fraction).rows(batch, all_in).tolist() == kept


def test_who_is_left_out_does_not_depend_on_the_order(padded):
    batch, all_in = signed(padded, [1.0, 1.0, 1.0, -1.0, 0.0], [0.5, 0.1, 0.9, 0.7, 0.2])
    order = [4, 2, 0, 3, 1]
    kept = Downsample(0.5).rows(batch, all_in)
    assert torch.equal(Downsample(0.5).rows(batch.select(order), all_in), kept[order])


def test_samples_out_of_the_loss_are_on_no_side(padded):
    batch, in_loss = signed(padded, [1.0, 1.0, -1.0], [0.5, 0.1, 0.9], [True, False, True])
    assert Downsample(0.5).rows(batch, in_loss).tolist() == [True, False, True]


def test_the_sign_of_a_sample_is_that_of_its_sum(padded):
    batch = padded({"mask": [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], "rewards": [0.0] * 3}).batch(
        advantages_T=torch.tensor([-1.0, 3.0, 1.0, -1.0]), lot_S=torch.tensor([0.9, 0.1, 0.5])
    )
    assert Downsample(0.5).rows(batch, torch.ones(3, dtype=torch.bool)).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="lot_S"):
        Downsample(0.5).rows(batch.with_(lot_S=None), torch.ones(3, dtype=torch.bool))


def test_a_step_is_balanced_by_itself_and_what_is_left_out_leaves_the_denominator(padded):
    batch, _ = signed(padded, [1.0, 1.0, 1.0, -1.0], [0.5, 0.1, 0.9, 0.7])
    for mode, weights, advantages in (
        ("reweight", [0.25] * 4, [2 / 3, 2 / 3, 2 / 3, -2.0]),
        ("downsample", [0.0, 0.5, 0.0, 0.5], [1.0, 1.0, 1.0, -1.0]),
    ):
        algorithm = compose(AlgorithmKeys(balance=BalanceConfig(mode)), n_samples=4, max_new_tokens=4)
        found = algorithm.weights(batch)
        assert found.weight_T.tolist() == pytest.approx(weights)
        assert found.advantages_T.tolist() == pytest.approx(advantages)
        by_sequence = replace(algorithm, reduce=SeqMeanTokenSum()).weights(batch)
        assert by_sequence.weight_T.tolist() == pytest.approx(weights)
        alone = algorithm.weights(batch.select([0, 1]))  # a minibatch without a negative side
        assert alone.advantages_T.tolist() == [1.0, 1.0]
        assert alone.weight_T.tolist() == [0.5, 0.5]
