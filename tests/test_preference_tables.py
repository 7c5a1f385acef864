"""The blocks on preferences and on the unified view hold what the losses and the formulas give."""

import math
import re

import preference_tables as tables
import pytest
import torch
from algorithm_pages import CHINESE
from algorithm_tables import Words

from partita.algo.pairwise import Pairs, Sigmoid
from partita.algo.unified import METHODS, dpo, grpo

BLOCKS = (
    tables.pair_losses, tables.judged_losses, tables.reward_losses, tables.methods, tables.dpo_gradients,
)  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_both_languages_have_the_same_numbers(block):
    english, chinese = (block(words).splitlines() for words in (Words(), CHINESE))
    assert len(english) == len(chinese)
    for left, right in zip(english, chinese, strict=True):
        assert left.count("|") == right.count("|")
        assert re.findall(r"-?\d+\.\d{3,}", left) == re.findall(r"-?\d+\.\d{3,}", right)


def test_the_coefficients_of_the_example_are_the_formulas():
    given = tables.EXAMPLE
    assert tables.coefficients("SFT") == (pytest.approx([1, 1]), [])
    for name in ("RFT", "Online RFT"):
        assert tables.coefficients(name) == (pytest.approx([1, 1]), pytest.approx([0, 0, 0]))
    pull, push = (
        float(side) for side in dpo(Sigmoid(0.1), Pairs.of_tokens(given.policy_T, given.ref_T, given.seq_T, 1))
    )
    assert pull == pytest.approx(0.1 / (1 + math.exp(0.09)))  # h = 0.3 - -0.6
    assert tables.coefficients("DPO") == (pytest.approx([pull] * 2), pytest.approx([push] * 3))
    advantage_T = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0]).double() * 0.5 / (math.sqrt(0.5) + 1e-6)
    expected = given.sides(grpo(advantage_T, given.policy_T, given.ref_T, 0.04))
    assert tables.coefficients("GRPO") == tuple(map(pytest.approx, expected))
    right, wrong = tables.coefficients("PPO")
    assert min(right) > 0 > max(wrong)
    assert sum(right) + sum(wrong) == pytest.approx(0, abs=1e-9)  # whitened over the five tokens


def test_every_method_has_its_row():
    rows = tables.methods(Words()).splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [method.name for method in METHODS]


def test_the_papers_gradient_of_dpo_lacks_beta_and_has_lengths():
    ours_T, objective_T = (tables.EXAMPLE.slope(of) for of in (tables.dpo_objective, tables.paper_objective))
    written_T = tables.paper_gradient()
    torch.testing.assert_close(objective_T, 0.1 * written_T)
    assert (ours_T[:2] / ours_T[2:4]).tolist() == pytest.approx([-1, -1])
    assert (written_T[:2] / written_T[2:4]).tolist() == pytest.approx([-1.5, -1.5])  # three tokens against two
