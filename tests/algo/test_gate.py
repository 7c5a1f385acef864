"""Every gate in every quadrant: value, gradient with respect to the log-prob, what counts as clipped, and its limits."""

import math

import pytest
import torch

from partita.algo.gate import GATES, BandClip, Cispo, GeometricMean, MinClip, Open, Soft
from partita.algo.ratio import SequenceRatio, TokenRatio

GATE = {
    "min": MinClip(0.2, 0.28),
    "dual": MinClip(0.2, 0.28, 3.0),
    "band": BandClip(0.2, 0.28),
    "soft": Soft(1.0, 1.05),
    "cispo": Cispo(0.2, 0.28),
    "gmpo": GeometricMean(0.2, 0.28),
    "open": Open(),
}


@pytest.fixture
def gated(by_hand):
    """Objective, its gradient with respect to the log-prob, and the sides that are clipped, for one token."""

    def of(gate, ratio, advantage):
        tokens, logprobs_T = by_hand([math.log(ratio)], advantages=[advantage])
        found = gate(TokenRatio()(tokens), tokens)
        (gradient_T,) = torch.autograd.grad(found.objective_T.sum(), logprobs_T)
        return found.objective_T.item(), gradient_T.item(), [s for s, cut_T in found.clipped.items() if bool(cut_T)]

    return of


@pytest.mark.parametrize(
    ("gate", "ratio", "advantage", "objective", "gradient", "sides"),
    [
        ("min", 1.1, 1.0, 1.1, 1.1, []),
        ("min", 1.5, 1.0, 1.28, 0.0, ["high"]),
        ("min", 0.5, 1.0, 0.5, 0.5, []),  # below the band with A > 0: it may come back
        ("min", 0.5, -1.0, -0.8, 0.0, ["low"]),
        ("min", 1.5, -1.0, -1.5, -1.5, []),  # above the band with A < 0: it is pushed back
        ("min", 4.0, -1.0, -4.0, -4.0, []),
        ("min", 5.0, 0.0, 0.0, 0.0, []),
        ("dual", 4.0, -1.0, -3.0, 0.0, ["dual"]),
        ("dual", 4.0, 1.0, 1.28, 0.0, ["high"]),
        ("dual", 2.9, -1.0, -2.9, -2.9, []),
        ("band", 1.1, -2.0, -2.2, -2.2, []),
        ("band", 1.5, 1.0, 1.28, 0.0, ["high"]),
        ("band", 1.5, -1.0, -1.28, 0.0, ["high"]),  # no way back: the band does not ask for the direction
        ("band", 0.5, 1.0, 0.8, 0.0, ["low"]),
        ("band", 0.5, -1.0, -0.8, 0.0, ["low"]),
        ("band", 1.5, 0.0, 0.0, 0.0, []),
        ("cispo", 1.1, 2.0, 2.2 * (math.log(1.1) - 1), 2.2, []),
        ("cispo", 1.5, 1.0, 1.28 * (math.log(1.5) - 1), 1.28, []),  # held, and still moving
        ("cispo", 0.5, -1.0, -0.8 * (math.log(0.5) - 1), -0.8, []),
        ("open", 1.5, -2.0, -3.0, -3.0, []),
        ("gmpo", 1.5, 1.0, 1.28, 0.0, ["high"]),  # of a response of one token: as PPO's clip
        ("gmpo", 0.5, 1.0, 0.5, 0.5, []),
        ("gmpo", 0.5, -1.0, -0.8, 0.0, ["low"]),
        ("gmpo", 4.0, -1.0, -4.0, -4.0, []),
    ],
)
def test_quadrants(gated, gate, ratio, advantage, objective, gradient, sides):
    assert gated(GATE[gate], ratio, advantage) == (pytest.approx(objective), pytest.approx(gradient), sides)


@pytest.mark.parametrize(("ratio", "advantage", "slope"), [(1.28, 1.0, 1.0), (0.8, -1.0, -1.0), (3.0, -1.0, -1.0)])
def test_the_bounds_belong_to_the_band(by_hand, ratio, advantage, slope):
    tokens, _ = by_hand([0.0], advantages=[advantage])
    ratio_T = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)  # exactly on it, which no exp would hit
    found = GATE["dual"](ratio_T, tokens)
    (gradient_T,) = torch.autograd.grad(found.objective_T.sum(), ratio_T)
    assert (found.objective_T.item(), gradient_T.item()) == (pytest.approx(ratio * advantage), slope)
    assert not any(bool(cut_T) for cut_T in found.clipped.values())


@pytest.mark.parametrize(
    ("ratio", "advantage", "gate", "gradient"),
    [
        (1.0, 1.0, 2.0, 1.0),
        (1.5, 1.0, 2.489837, 1.410022),
        (0.5, 1.0, 1.510163, 0.470007),
        (1.5, -1.0, 2.393585, -1.401210),
        (0.5, -1.0, 1.415938, -0.467070),
        (1.0, -1.0, 4 / 1.05 / 2, -1.0),  # whatever the temperature, on policy it is the plain policy gradient
    ],
)
def test_the_soft_gate_has_a_scale_and_a_temperature_for_each_sign(gated, ratio, advantage, gate, gradient):
    objective, slope, sides = gated(GATE["soft"], ratio, advantage)
    assert (objective, slope, sides) == (
        pytest.approx(gate * advantage, abs=1e-6), pytest.approx(gradient, abs=1e-6), []
    )  # fmt: skip


SIGMOID_MINUS_ONE = 1 / (1 + math.e)
LIMITS = {  # objective and gradient for A = 1 and A = -1, far above and far below the old policy
    ("min", 1): [(1.28, 0.0), (0.0, 0.0)], ("min", -1): [(-math.exp(20), 0.0), (-0.8, 0.0)],
    ("dual", 1): [(1.28, 0.0), (0.0, 0.0)], ("dual", -1): [(-3.0, 0.0), (-0.8, 0.0)],
    ("band", 1): [(1.28, 0.0), (0.8, 0.0)], ("band", -1): [(-1.28, 0.0), (-0.8, 0.0)],
    ("soft", 1): [(4.0, 0.0), (4 * SIGMOID_MINUS_ONE, 0.0)],
    ("soft", -1): [(-4 / 1.05, 0.0), (-4 / 1.05 / (1 + math.exp(1.05)), 0.0)],
    ("gmpo", 1): [(1.28, 0.0), (0.0, 0.0)], ("gmpo", -1): [(-math.exp(20), 0.0), (-0.8, 0.0)],
    ("open", 1): [(math.exp(20), 0.0), (0.0, 0.0)], ("open", -1): [(-math.exp(20), 0.0), (0.0, 0.0)],
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS, ids=str)
@pytest.mark.parametrize("nats", [50.0, 3e38])
@pytest.mark.parametrize("ratio", [TokenRatio(), SequenceRatio()])
def test_limits_far_from_the_old_policy(by_hand, case, nats, ratio):
    name, sign = case
    for direction, (objective, gradient) in zip((1, -1), LIMITS[case], strict=True):
        tokens, logprobs_T = by_hand([direction * nats], advantages=[float(sign)])
        found = GATE[name](ratio(tokens), tokens)
        (gradient_T,) = torch.autograd.grad(found.objective_T.sum(), logprobs_T)
        assert found.objective_T.item() == pytest.approx(objective, rel=1e-6, abs=1e-6)
        assert gradient_T.item() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize(("nats", "weight"), [(50.0, 1.28), (-50.0, 0.8)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_held_weight_stays_a_weight_however_far(by_hand, nats, weight, advantage):
    tokens, logprobs_T = by_hand([nats], advantages=[advantage])
    found = GATE["cispo"](TokenRatio()(tokens), tokens)
    (gradient_T,) = torch.autograd.grad(found.objective_T.sum(), logprobs_T)
    assert gradient_T.item() == pytest.approx(weight * advantage)


def test_a_geometric_mean_takes_the_held_ratios_of_a_response(by_hand):
    """sqrt(1.28 · 0.5) for A = 1, -sqrt(1.5 · 0.8) for A = -1; the held token moves nothing, the other carries its half."""
    for advantage, mean, slopes in ((1.0, 0.8, (0.0, 0.5)), (-1.0, math.sqrt(1.2), (0.5, 0.0))):
        tokens, logprobs_T = by_hand([math.log(1.5), math.log(0.5)], advantages=[advantage] * 2)
        found = GATE["gmpo"](TokenRatio()(tokens), tokens)
        assert found.objective_T.tolist() == pytest.approx([advantage * mean] * 2)
        (gradient_T,) = torch.autograd.grad(found.objective_T.mean(), logprobs_T)
        assert gradient_T.tolist() == pytest.approx([advantage * mean * slope for slope in slopes])


def test_a_low_of_one_leaves_the_lower_side_of_the_weight_open(gated):
    assert gated(Cispo(1.0, 0.28), 1e-3, 1.0)[1] == pytest.approx(1e-3)


@pytest.mark.parametrize("name", GATE)
def test_on_policy_every_gate_is_the_plain_policy_gradient(gated, name):
    for advantage in (2.0, -0.5, 0.0):
        assert gated(GATE[name], 1.0, advantage)[1] == pytest.approx(advantage, abs=1e-12)


def test_every_gate_is_here_and_says_its_values():
    assert {type(gate) for gate in GATE.values()} == set(GATES.values())
    for name, said in (("min", ("0.2", "0.28")), ("dual", ("3 A_i",)), ("band", ("0.28",)), ("soft", ("1.05",)),
                       ("cispo", ("sg[", "0.28")), ("gmpo", ("0.28",)), ("open", ("ρ_it A_i",))):  # fmt: skip
        assert all(word in GATE[name].formula() for word in said)
