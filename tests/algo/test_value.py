"""The critic's loss: around the old prediction, never below the plain square, under the policy's weights."""

from dataclasses import replace

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.value import ClippedSquare


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (0.55, 0.5, 1.0, 0.5 * 0.45**2, -0.45),  # inside the band
        (1.0, 0.6, 1.0, 0.5 * 0.2**2, 0.0),  # beyond it the clipped branch is worse, so it wins, and has no gradient
        (0.4, 0.7, 1.0, 0.5 * 0.6**2, -0.6),  # moved away: the plain branch is worse, and pulls it back
        (1.2, 0.5, 0.0, 0.5 * 1.2**2, 1.2),
        (0.7, 0.5, 1.0, 0.5 * 0.3**2, -0.3),  # on the edge of the band
    ],
)
def test_clip_around_the_old_value(value, old, target, loss, slope):
    value_T = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    found = ClippedSquare(0.2)(value_T, torch.tensor([old]).double(), torch.tensor([target]).double())
    found.sum().backward()
    assert (found.item(), value_T.grad.item()) == (pytest.approx(loss), pytest.approx(slope, abs=1e-9))


def test_clipping_never_lowers_the_loss():
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(200, generator=generator) for _ in range(3)]
    assert bool((ClippedSquare(0.2)(*values) >= ClippedSquare(None)(*values)).all())


def test_without_the_half():
    values = [torch.tensor([2.0]), torch.tensor([2.0]), torch.tensor([0.0])]
    assert [ClippedSquare(None, half)(*values).item() for half in (True, False)] == [2.0, 4.0]


@pytest.mark.parametrize(("name", "clip"), [("value_loss_clipped", 0.2), ("value_loss_unclipped", None)])
def test_golden_value_losses_through_the_algorithm(golden, padded, close, name, clip):
    case = golden(name)
    rows = padded(case["inputs"])
    algorithm = compose(AlgorithmKeys(credit="gae", value_eps_clip=clip), n_samples=4, max_new_tokens=4)
    batch = algorithm.weights(rows.batch(values_T=rows.tokens("old_values"), returns_T=rows.tokens("returns")))
    values_T = rows.tokens("values").requires_grad_()
    loss = algorithm.value_loss(batch, values_T)
    (gradient_T,) = torch.autograd.grad(loss.value, values_T)
    close(loss.value, case["expected"]["loss"])
    close(rows.padded(gradient_T), case["expected"]["grad_values"])
    off_T = (rows.tokens("values") - rows.tokens("old_values")).abs()
    close(loss.stats["value/step"].sum, off_T.sum())


@pytest.fixture
def critic(make_batch):
    algorithm = compose(AlgorithmKeys(credit="gae", value_eps_clip=0.2), n_samples=4, max_new_tokens=8)
    return algorithm, algorithm.weights(algorithm.credit(make_batch()))


def test_micro_batches_of_a_value_loss_add_up(critic, close):
    algorithm, batch = critic
    values_T = batch.values_T + 0.3
    parts = [[5, 2], [0, 6, 3], [1, 4]]
    total = sum(
        algorithm.value_loss(batch.select(part), batch.select(part).values_T + 0.3).value for part in parts
    )  # fmt: skip
    close(total, algorithm.value_loss(batch, values_T).value)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["new", "old"])
def test_a_value_that_is_no_number_takes_its_sample_out(critic, broken, which):
    algorithm, batch = critic
    values_T = batch.values_T.clone()
    values_T[1] = broken
    if which == "old":
        batch, values_T = batch.with_(values_T=values_T), batch.values_T.clone()
    values_T.requires_grad_()
    loss = algorithm.value_loss(batch, values_T)
    (gradient_T,) = torch.autograd.grad(loss.value, values_T)
    assert gradient_T[:4].tolist() == [0.0] * 4
    assert bool(torch.isfinite(gradient_T).all())
    assert bool(torch.isfinite(loss.value))


def test_an_algorithm_without_a_critic_has_no_value_loss(critic):
    _, batch = critic
    outcome = compose(AlgorithmKeys(), n_samples=4, max_new_tokens=8)
    assert outcome.value is None
    with pytest.raises(AssertionError, match="without a critic"):
        outcome.value_loss(batch, batch.values_T)


def test_formulas_say_the_clip():
    assert ClippedSquare(0.2).formula().count("V_old ± 0.2") == 1
    assert "½" in ClippedSquare(None).formula()
    assert "½" not in replace(ClippedSquare(None), half=False).formula()
