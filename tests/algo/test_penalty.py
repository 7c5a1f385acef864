"""Penalties: the sign of the leash, and the entropy bonus down to the logits."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys

TOKEN = {"mask": [[1.0]], "rewards": [0.0]}


def step(padded, keys, **streams):
    algorithm = compose(keys, n_samples=1, max_new_tokens=4)
    batch = algorithm.weights(padded(TOKEN).batch(advantages_T=torch.zeros(1), **streams))
    return algorithm, batch


@pytest.mark.parametrize(
    ("logprob", "ref", "values", "slopes"),
    [
        (-1.0, -2.0, {"k1": 1.0, "k2": 0.5, "k3": 0.367879}, {"k1": 1.0, "k2": 1.0, "k3": 0.632121}),
        (-2.0, -1.0, {"k1": -1.0, "k2": 0.5, "k3": 0.718282}, {"k1": 1.0, "k2": -1.0, "k3": -1.718282}),
    ],
)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_descent_moves_towards_the_reference(padded, logprob, ref, values, slopes, estimator):
    keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator=estimator)
    algorithm, batch = step(padded, keys, ref_T=torch.tensor([ref]))
    logprobs_T = torch.tensor([logprob], requires_grad=True)
    loss = algorithm.loss(batch, logprobs_T).value
    loss.backward()
    assert loss.item() == pytest.approx(0.1 * values[estimator], abs=1e-6)
    assert float(logprobs_T.grad) == pytest.approx(0.1 * slopes[estimator], abs=1e-6)


def test_every_estimator_changes_the_number(padded):
    found = set()
    for estimator in ("k1", "k2", "k3", "abs", "k3_value_k2_grad"):
        keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator=estimator)
        algorithm, batch = step(padded, keys, ref_T=torch.tensor([-1.4]))
        logprobs_T = torch.tensor([-2.0], requires_grad=True)
        loss = algorithm.loss(batch, logprobs_T).value
        loss.backward()
        found.add((round(loss.item(), 6), round(float(logprobs_T.grad), 6)))
    assert len(found) == 5


def test_entropy_bonus_down_to_the_logits(golden, padded, close):
    case = golden("entropy_bonus_full_vocab")
    logits = torch.tensor(case["inputs"]["logits"], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, 1)
    entropy_T = -(logprobs.exp() * logprobs).sum(1)
    algorithm = compose(AlgorithmKeys(entropy_coef=0.01), n_samples=1, max_new_tokens=4)
    batch = padded({"mask": [[1.0, 1.0, 1.0]], "rewards": [0.0]}).batch(advantages_T=torch.zeros(3))
    loss = algorithm.loss(algorithm.weights(batch), logprobs[:, 0], entropy_T)
    (gradient,) = torch.autograd.grad(loss.value, logits)
    assert algorithm.needs == {"entropy"}
    close(loss.value, case["expected"]["loss"])
    close(gradient, case["expected"]["grad_logits"])
    close(loss.stats["entropy"].sum, sum(case["expected"]["entropy"]))


def test_a_missing_entropy_is_named(padded):
    algorithm, batch = step(padded, AlgorithmKeys(entropy_coef=0.01))
    with pytest.raises(ValueError, match="entropy_T"):
        algorithm.loss(batch, torch.zeros(1))
