"""What items cost, on numbers laid by hand: weights of the whole step, shares that add up, whose log-prob is whose."""

import math

import pytest
import torch
from offline_items import CONVERSATIONS, JUDGED, PAIRS, row

from partita.algo.bradley import BradleyTerry
from partita.algo.pairwise import Kto, Orpo, Sigmoid, Simpo
from partita.algo.reduce import SeqMeanTokenMean, TokenMean
from partita.train.objectives import Imitate, Judge, Prefer, Rank
from partita.train.offline import Item, Said

NONE = torch.zeros(0, dtype=torch.float64)


def said(*samples: list[float], ref: list[float] | None = None) -> Said:
    """Log-probs of the trained tokens of each sample."""
    counts = torch.tensor([len(one) for one in samples])
    return Said(
        torch.repeat_interleave(torch.arange(len(samples)), counts), len(samples),
        torch.tensor([x for one in samples for x in one], requires_grad=True),
        None if ref is None else torch.tensor(ref, dtype=torch.float64),
    )  # fmt: skip


def conversation(*lengths: int) -> Item:
    """One of a row for each length."""
    return Item(str(lengths), (tuple(row([3], range(4, 4 + length)) for length in lengths),))


@pytest.mark.parametrize(
    "reduce, want, weights",
    [
        (TokenMean(), (1 + 2 + 3 + 6) / 4, [0.25, 0.25, 0.25, 0.25]),
        (SeqMeanTokenMean(), (6 / 1 + (1 + 2 + 3) / 3) / 2, [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
    ],
)
def test_imitation_weighs_tokens_by_the_whole_step(reduce, want, weights) -> None:
    items = [conversation(2, 1), conversation(1)]  # two rows of one conversation are one sample
    loss = Imitate(reduce).of_step(items, NONE)
    whole = said([-1.0, -2.0, -3.0], [-6.0])
    share = loss([0, 1], whole)
    assert share.value.item() == pytest.approx(want)
    share.value.backward()
    assert whole.logprobs_T is not None
    assert (-whole.logprobs_T.grad).tolist() == pytest.approx(weights)
    # in parts and in another order: each part knows its own tokens
    parts = [loss([1], said([-6.0])), loss([0], said([-1.0, -2.0, -3.0]))]
    assert sum(part.value.item() for part in parts) == pytest.approx(want)
    assert loss([1, 0], said([-6.0], [-1.0, -2.0, -3.0])).value.item() == pytest.approx(want)
    assert [float(x) for x in share.stats["sft/nll"]] == [12.0, 4.0]


def test_ranking_takes_scores_in_turns_and_each_pair_s_own_margin() -> None:
    scores_S = torch.tensor([1.0, 0.5, -1.0, 2.0], requires_grad=True)
    loss = Rank(BradleyTerry()).of_step(PAIRS, NONE)  # the step has four pairs, this part the two with margins
    share = loss([1, 2], Said(torch.zeros(0, dtype=torch.long), 4, scores_S=scores_S))
    want = (math.log1p(math.exp(-(0.5 - 1.5))) + math.log1p(math.exp(-(-3.0 - 0.25)))) / 4
    assert share.value.item() == pytest.approx(want)
    share.value.backward()
    pulls = [1 / (1 + math.exp(0.5 - 1.5)) / 4, 1 / (1 + math.exp(-3.25)) / 4]
    assert scores_S.grad is not None
    assert scores_S.grad.tolist() == pytest.approx([-pulls[0], pulls[0], -pulls[1], pulls[1]])
    without = loss([0, 3], Said(torch.zeros(0, dtype=torch.long), 4, scores_S=scores_S.detach()))
    assert without.value.item() == pytest.approx((math.log1p(math.exp(-0.5)) + math.log1p(math.exp(3.0))) / 4)


def test_preferences_compare_sums_with_the_reference_and_means_without_one() -> None:
    given = said([-1.0, -2.0], [-4.0], ref=[-2.0, -1.0])
    with_ref = Prefer(Sigmoid(0.5))
    assert with_ref.reference and not with_ref.scores
    margin = (-3.0 + 2.0) - (-4.0 + 1.0)
    share = with_ref.of_step(PAIRS, NONE)([0], given)
    assert share.value.item() == pytest.approx(math.log1p(math.exp(-0.5 * margin)) / 4)
    assert float(share.stats["preference/margin"][0]) == pytest.approx(0.5 * margin)
    assert [float(share.stats[f"preference/logprob_{side}"][0]) for side in ("chosen", "rejected")] == [-3.0, -4.0]
    for loss in (Simpo(2.0, 0.5), Orpo(0.1)):
        assert not Prefer(loss).reference
    found = Prefer(Simpo(2.0, 0.5)).of_step(PAIRS, NONE)([0], said([-1.0, -2.0], [-4.0]))
    assert found.value.item() == pytest.approx(math.log1p(math.exp(-(2.0 * (-1.5 + 4.0) - 0.5))) / 4)


def test_judged_answers_share_one_rest_of_the_whole_step_that_has_no_gradient() -> None:
    objective = Judge(Kto(0.5, 1.0, 1.3))
    ratio_B = torch.tensor([0.5, -0.1, 0.8], dtype=torch.float64, requires_grad=True)
    loss, rest = objective.of_step(JUDGED, ratio_B), (0.5 - 0.1 + 0.8) / 3
    given = said([-1.0, -1.0], [-3.0], ref=[-3.0, -3.5])
    share = loss([0, 1], given)
    good = 1 - 1 / (1 + math.exp(-0.5 * (1.0 - rest)))
    bad = 1.3 * (1 - 1 / (1 + math.exp(-0.5 * (rest - 0.5))))
    assert share.value.item() == pytest.approx((good + bad) / 3)
    logprobs = [tuple(map(float, share.stats[f"preference/logprob_{kind}"])) for kind in ("desirable", "undesirable")]
    assert logprobs == [(-2.0, 1.0), (-3.0, 1.0)]
    share.value.backward()
    assert ratio_B.grad is None and given.logprobs_T is not None and given.logprobs_T.grad is not None
    # z is the whole step's for every part, and 0 where the mean is below it or nothing stands beside
    alone = loss([1], said([-3.0], ref=[-3.5]))
    assert alone.value.item() == pytest.approx(bad / 3)
    for beside in (torch.tensor([-1.0, -2.0]), NONE):
        held = objective.of_step(JUDGED, beside)([1], said([-3.0], ref=[-3.5]))
        assert held.value.item() == pytest.approx(1.3 * (1 - 1 / (1 + math.exp(0.25))) / 3)


def test_a_conversation_in_two_rows_is_one_sample() -> None:
    loss = Imitate(SeqMeanTokenMean()).of_step(CONVERSATIONS, NONE)
    share = loss([1], said([-1.0] * 6))
    assert share.value.item() == pytest.approx(1 / 3)
