"""TRPO's step on a few actions: the formula by hand, and what it promises."""

import pytest
import torch

from partita.algo.trpo import natural_gradient_step


def step_of(logits, advantages, delta):
    return natural_gradient_step(torch.tensor(logits), torch.tensor(advantages), delta)


def test_two_actions_by_hand(close):
    # p = 1/2, 1/2: g = (1/4, -1/4), F = [[1/4, -1/4], [-1/4, 1/4]], F⁻¹ = F · 4, gᵀF⁻¹g = 1/4, scale sqrt(2 · 0.02 · 4) = 0.4
    step = step_of([0.0, 0.0], [1.0, 0.0], 0.02)
    close(step.gradient_V, [0.25, -0.25])
    close(step.fisher_VV, [[0.25, -0.25], [-0.25, 0.25]])
    close(step.step_V, [0.2, -0.2])
    close(step.quadratic_kl, 0.02)
    close(step.surrogate_gain, torch.sigmoid(torch.tensor(0.4).double()) - 0.5)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_the_step_is_the_best_within_the_quadratic_trust_region(delta, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, advantages = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    step = natural_gradient_step(logits, advantages, delta)
    assert float(step.quadratic_kl) == pytest.approx(delta)
    assert float(step.step_V.sum()) == pytest.approx(0.0, abs=1e-12)
    best = float(step.gradient_V @ step.step_V)
    for _ in range(50):
        other_V = torch.randn(6, generator=generator, dtype=torch.float64)
        other_V = other_V * torch.sqrt(delta / (other_V @ step.fisher_VV @ other_V / 2))
        assert float(step.gradient_V @ other_V) <= best + 1e-12


def test_small_steps_have_the_exact_divergence_and_the_linear_gain_that_they_predict():
    for delta, close_to in ((1e-2, 0.1), (1e-4, 0.01), (1e-6, 0.001)):
        step = step_of([0.2, -0.1, 0.4], [1.0, -0.5, 0.0], delta)
        assert float(step.exact_kl) == pytest.approx(delta, rel=close_to)
        assert float(step.surrogate_gain) == pytest.approx(float(step.gradient_V @ step.step_V), rel=close_to)


def test_a_shift_of_all_logits_or_advantages_changes_nothing(close):
    plain = step_of([0.2, -0.1, 0.4], [1.0, -0.5, 0.0], 0.01)
    shifted = step_of([7.2, 6.9, 7.4], [3.0, 1.5, 2.0], 0.01)
    close(shifted.step_V, plain.step_V)
    scaled = step_of([0.2, -0.1, 0.4], [100.0, -50.0, 0.0], 0.01)
    close(scaled.step_V, plain.step_V)


def test_equal_advantages_move_nothing():
    for value in (0.0, 0.7):
        step = step_of([0.2, -0.1, 0.4], [value] * 3, 0.01)
        assert step.step_V.tolist() == [0.0] * 3
        assert float(step.exact_kl) == float(step.surrogate_gain) == float(step.quadratic_kl) == 0.0


def test_a_single_action_has_nowhere_to_go():
    assert step_of([0.3], [1.0], 0.01).step_V.tolist() == [0.0]


@pytest.mark.parametrize("delta", [0.0, -0.1, float("nan")])
def test_a_trust_region_without_room_is_refused(delta):
    with pytest.raises(ValueError, match="positive delta"):
        step_of([0.0, 0.0], [1.0, 0.0], delta)
