"""Clipping in every quadrant, dual clip, and gradients on the edges of the band."""

import pytest
import torch

from partita.algo.gate import MinClip, Open


def objective_and_gradient(gate, ratio, advantage):
    ratio_T = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    gated = gate(ratio_T, torch.tensor([advantage], dtype=torch.float64))
    (gradient_T,) = torch.autograd.grad(gated.objective_T.sum(), ratio_T)
    sides = [side for side, clipped_T in gated.clipped.items() if bool(clipped_T)]
    return float(gated.objective_T.detach()), float(gradient_T), sides


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "gradient", "sides"),
    [
        (1.1, 1.0, 1.1, 1.0, []),
        (1.5, 1.0, 1.28, 0.0, ["high"]),
        (0.5, 1.0, 0.5, 1.0, []),  # below the band with A > 0: it may come back
        (0.5, -1.0, -0.8, 0.0, ["low"]),
        (1.5, -1.0, -1.5, -1.0, []),  # above the band with A < 0: it is pushed back
        (4.0, -1.0, -3.0, 0.0, ["dual"]),
        (4.0, 1.0, 1.28, 0.0, ["high"]),
        (1.28, 1.0, 1.28, 1.0, []),  # the bounds belong to the band
        (0.8, -1.0, -0.8, -1.0, []),
        (3.0, -1.0, -3.0, -1.0, []),
        (5.0, 0.0, 0.0, 0.0, []),
    ],
)
def test_dual_min_clip(ratio, advantage, objective, gradient, sides):
    found = objective_and_gradient(MinClip(0.2, 0.28, 3.0), ratio, advantage)
    assert found == (pytest.approx(objective), pytest.approx(gradient), sides)


def test_dual_clip_never_touches_advantages_from_zero_up():
    ratio_T = torch.linspace(0.0, 10.0, 201, dtype=torch.float64).repeat(3)
    advantages_T = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64).repeat_interleave(201)
    plain, dual = MinClip(0.2, 0.2)(ratio_T, advantages_T), MinClip(0.2, 0.2, 1.5)(ratio_T, advantages_T)
    assert torch.equal(plain.objective_T, dual.objective_T)
    assert not bool(dual.clipped["dual"].any())


def test_a_wide_band_is_an_open_gate():
    ratio_T, advantages_T = torch.rand(50) * 5, torch.randn(50)
    torch.testing.assert_close(
        MinClip(1e9, 1e9)(ratio_T, advantages_T).objective_T, Open()(ratio_T, advantages_T).objective_T
    )
