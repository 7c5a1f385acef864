"""The kinds of ratio: value, and which token's log-prob moves which token's ratio."""

import pytest
import torch

from partita.algo.gate import MinClip
from partita.algo.ratio import RATIOS, NoRatio, ProductRatio, SequenceRatio, SequenceTokenRatio, TokenRatio
from partita.algo.tokens import Current, live_tokens

LOG_RATIOS, LENGTHS = [0.3, -0.1, 0.4, -0.2], [3, 1]


@pytest.fixture
def ratios(by_hand):
    """Values [T] and the Jacobian [T, T] of ratios with respect to log-probs."""

    def of(kind, log_ratios=LOG_RATIOS, lengths=LENGTHS, **streams):
        tokens, logprobs_T = by_hand(log_ratios, lengths=lengths, **streams)
        ratio_T = kind(tokens)
        rows = [torch.autograd.grad(one, logprobs_T, retain_graph=True)[0] for one in ratio_T]
        return ratio_T.detach(), torch.stack(rows)

    return of


def test_each_token_has_its_own(ratios, close):
    value_T, moves_TT = ratios(TokenRatio())
    close(value_T, torch.tensor(LOG_RATIOS).double().exp())
    close(moves_TT, torch.diag(value_T))


def test_a_sequence_has_the_geometric_mean_and_every_token_moves_it(ratios, close):
    value_T, moves_TT = ratios(SequenceRatio())
    close(value_T, [1.221403, 1.221403, 1.221403, 0.818731])  # exp(0.6 / 3), neither exp(0.6) nor a padded width's
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[:3, :3], expected[3, 3] = value_T[0] / 3, value_T[3]
    close(moves_TT, expected)


def test_under_a_stop_gradient_only_the_token_itself_moves_it(ratios, close):
    value_T, moves_TT = ratios(SequenceTokenRatio())
    close(value_T, ratios(SequenceRatio())[0])
    close(moves_TT, torch.diag(value_T))


def test_a_product_is_the_ratio_of_whole_responses(ratios, close):
    value_T, moves_TT = ratios(ProductRatio())
    close(value_T, [1.822119, 1.822119, 1.822119, 0.818731])  # exp(0.6)
    assert moves_TT[:3, 3].tolist() == [0.0] * 3
    close(moves_TT[:3, :3], torch.full((3, 3), 1.822119))


def test_no_ratio_is_the_log_prob_and_not_a_constant(ratios, close):
    value_T, moves_TT = ratios(NoRatio())
    close(value_T, [-0.7, -1.1, -0.6, -1.2])
    close(moves_TT, torch.eye(4))


@pytest.mark.parametrize("level", RATIOS)
def test_a_ratio_a_hundred_nats_away_is_finite(ratios, level):
    value_T, moves_TT = ratios(RATIOS[level], [100.0, 100.0, 100.0, -100.0])
    assert bool(torch.isfinite(value_T).all())
    assert bool(torch.isfinite(moves_TT).all())


def test_the_mean_is_held_not_its_tokens(ratios, close):
    close(ratios(SequenceRatio(), [90.0, -89.4, 0.0, 0.0])[0], [1.221403] * 3 + [1.0])


@pytest.mark.parametrize("kind", [SequenceRatio(), SequenceTokenRatio(), ProductRatio()])
def test_tokens_without_weight_are_not_in_the_sequence(by_hand, close, kind):
    whole, _ = by_hand([0.3, 7.0, -0.1, -9.0, 0.4], weight_T=torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]))
    alone, _ = by_hand([0.3, -0.1, 0.4])
    close(kind(whole)[[0, 2, 4]], kind(alone).detach())


def test_a_sequence_is_clipped_as_one(by_hand, close):
    """Three tokens of ratio e^0.9, e^-0.6 and 1: clipped by the token, the mean objective would be 0.882937."""
    tokens, logprobs_T = by_hand([0.9, -0.6, 0.0])
    ratio_T = SequenceRatio()(tokens)
    gated = MinClip(0.1, 0.1)(ratio_T, tokens)
    (gradient_T,) = torch.autograd.grad(gated.objective_T.mean(), logprobs_T)
    close(ratio_T, [1.105171] * 3)
    close(gated.objective_T, [1.1] * 3)
    assert gradient_T.tolist() == [0.0] * 3
    by_token = MinClip(0.1, 0.1)(TokenRatio()(tokens), tokens)
    close(by_token.objective_T.mean(), 0.882937)


def test_which_ratios_belong_to_the_whole_sequence():
    whole = {level for level, ratio in RATIOS.items() if ratio.whole_sequence}
    assert whole == {"sequence", "sequence_product"}
    assert len({ratio.formula() for ratio in RATIOS.values()}) == len(RATIOS)


@pytest.mark.parametrize("level", RATIOS)
def test_on_policy_a_ratio_is_exactly_one(by_hand, make_batch, level):
    tokens, _ = by_hand([0.0] * 4, lengths=LENGTHS)
    if level != "none":
        assert RATIOS[level](tokens).tolist() == [1.0] * 4
    empty = make_batch().select([3]).with_(weight_T=torch.zeros(0), advantages_T=torch.zeros(0))
    nothing = live_tokens(empty, Current(torch.zeros(0, requires_grad=True)), torch.zeros(0))
    assert RATIOS[level](nothing).shape == (0,)
