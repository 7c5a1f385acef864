"""Estimators of the KL divergence: values, signs, gradients, and expected gradients by enumeration."""

import json
from pathlib import Path

import pytest
import torch

from partita.ops.divergence import ESTIMATORS, clamp_log_ratio, k3

GOLDEN = Path(__file__).parent.parent / "golden"


def read(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def value_and_gradient(estimator, log_ratio):
    log_ratio = torch.tensor(log_ratio, dtype=torch.float64).requires_grad_()
    value = estimator(log_ratio)
    (gradient,) = torch.autograd.grad(value.sum(), log_ratio)
    return value.detach(), gradient


def close(value, expected):
    torch.testing.assert_close(value, torch.as_tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k3_value_k2_grad"])
def test_values_and_gradients(name):
    case = read("kl_estimators_reverse")
    inputs, expected = case["inputs"], case["expected"]
    mask = torch.tensor(inputs["mask"]).bool()
    log_ratio = (torch.tensor(inputs["logp"], dtype=torch.float64) - torch.tensor(inputs["ref_logp"]).double())[mask]
    value, gradient = value_and_gradient(ESTIMATORS[name], log_ratio.tolist())
    want = expected[name] if name == "k3_value_k2_grad" else {"value": expected[name], "grad": expected[f"{name}_grad"]}
    close(value, torch.tensor(want["value"], dtype=torch.float64)[mask])
    close(gradient, torch.tensor(want["grad"], dtype=torch.float64)[mask])
    if name in expected["mean_token"]:
        close(value.mean(), expected["mean_token"][name])


def expected_gradient(logits, ref_logits, estimator, place):
    """Exact expectation over all tokens of the gradient that sampled tokens would give, with respect to the logits."""
    logits = torch.tensor(logits, dtype=torch.float64).requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    log_ratio = logprobs - torch.log_softmax(torch.tensor(ref_logits, dtype=torch.float64), 0)
    chance = logprobs.detach().exp()
    term = estimator(log_ratio) if place == "loss" else estimator(log_ratio.detach()) * logprobs
    (gradient,) = torch.autograd.grad((chance * term).sum(), logits)
    return gradient, float((chance * estimator(log_ratio.detach())).sum())


@pytest.mark.parametrize("label", ["k1_in_loss", "k2_in_loss", "k3_in_loss", "k1_in_reward", "k3_in_reward"])
def test_expected_gradients(label):
    case = read("kl_expected_gradients")
    name, _, place = label.split("_")
    gradient, _ = expected_gradient(case["inputs"]["logits"], case["inputs"]["ref_logits"], ESTIMATORS[name], place)
    close(gradient, case["expected"]["expected_grad"][label])


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_expected_values(name):
    case = read("kl_expected_gradients")
    _, value = expected_gradient(case["inputs"]["logits"], case["inputs"]["ref_logits"], ESTIMATORS[name], "loss")
    assert value == pytest.approx(case["expected"]["expected_value"][name], abs=1e-6)


def test_which_estimator_holds_the_policy_near_the_reference():
    logits, ref = [1.0, 0.2, -0.5], [0.0, 0.5, 0.3]
    true = [0.352420, -0.190910, -0.161510]  # of KL(policy || reference) = 0.282236
    found = {name: expected_gradient(logits, ref, estimator, "loss")[0] for name, estimator in ESTIMATORS.items()}
    close(found["k1"], [0.0, 0.0, 0.0])
    close(found["k2"], true)
    close(found["k3_value_k2_grad"], true)
    close(found["k3"], [0.347833, -0.143663, -0.204170])


@pytest.mark.parametrize(
    ("log_ratio", "values", "k3_slope"),
    [(1.0, [1.0, 0.5, 0.367879, 1.0], 0.632121), (-1.0, [-1.0, 0.5, 0.718282, 1.0], -1.718282)],
)
def test_a_policy_that_is_too_sure_pays_and_one_too_shy_is_pulled_up(log_ratio, values, k3_slope):
    found = [float(ESTIMATORS[name](torch.tensor(log_ratio))) for name in ("k1", "k2", "k3", "abs")]
    assert found == pytest.approx(values, abs=1e-6)
    assert float(value_and_gradient(k3, log_ratio)[1]) == pytest.approx(k3_slope, abs=1e-6)


def test_small_differences_keep_their_digits():
    assert float(k3(torch.tensor(1e-4, dtype=torch.float32))) == pytest.approx(
        5e-9, rel=0.05
    )  # exp(-d) - 1 + d gives 0


def test_extreme_ratios_stay_finite_and_stop_pulling():
    value, gradient = value_and_gradient(k3, [-1000.0, 1000.0])
    assert torch.isfinite(value).all()
    assert gradient.tolist() == [0.0, 0.0]
    assert clamp_log_ratio(torch.tensor([-90.0, 3.0, 90.0])).tolist() == [-20.0, 3.0, 20.0]
