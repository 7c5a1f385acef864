"""Non-finite numbers: they take their own sample out of the loss, and nothing else."""

import math

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.explain import keys_of
from partita.algo.presets import PRESETS


@pytest.fixture(params=PRESETS)
def algorithm(request):
    return compose(keys_of(request.param), n_samples=4, max_new_tokens=8)


def gradient_of(algorithm, batch, logprobs_T):
    logprobs_T = logprobs_T.clone().requires_grad_()
    loss = algorithm.loss(algorithm.weights(batch), logprobs_T)
    loss.value.backward()
    return loss, logprobs_T.grad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_current_log_prob_takes_out_its_whole_sample(algorithm, make_batch, value):
    batch = algorithm.credit(make_batch())
    logprobs_T = batch.prox_T + 0.05
    _, clean_T = gradient_of(algorithm, batch, logprobs_T)
    logprobs_T[1] = value
    loss, gradient_T = gradient_of(algorithm, batch, logprobs_T)
    assert bool(torch.isfinite(loss.value))
    assert gradient_T[:4].tolist() == [0.0] * 4
    assert torch.equal(gradient_T[4:], clean_T[4:])
    assert [float(part) for part in loss.stats["nonfinite_logprobs"]] == [4, 21]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("stream", ["prox_T", "behaviour_T", "ref_T"])
def test_a_scored_log_prob_takes_its_sample_out_of_the_statistics(algorithm, make_batch, value, stream):
    batch = make_batch()
    broken_T = getattr(batch, stream).clone()
    broken_T[1] = value
    credited = algorithm.credit(batch.with_(**{stream: broken_T}))
    without = algorithm.credit(batch.with_(valid_S=torch.arange(7) != 0))
    assert credited.valid_S.tolist() == [False] + [True] * 6
    assert torch.equal(credited.advantages_T, without.advantages_T)
    _, gradient_T = gradient_of(algorithm, credited, batch.prox_T + 0.05)
    assert gradient_T[:4].tolist() == [0.0] * 4
    assert bool(torch.isfinite(gradient_T).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_a_number_is_not_a_zero(algorithm, make_batch, value):
    batch = make_batch()
    reward_S = batch.reward_S.clone()
    reward_S[2] = value
    credited = algorithm.weights(algorithm.credit(batch.with_(reward_S=reward_S)))
    without = algorithm.weights(algorithm.credit(batch.with_(valid_S=torch.arange(7) != 2)))
    assert torch.equal(credited.advantages_T, without.advantages_T)
    assert torch.equal(credited.weight_T, without.weight_T)
    assert credited.weight_T[batch.seq_T == 2].tolist() == [0.0] * 3
    assert [float(part) for part in algorithm.credit_stats(credited)["samples/invalid"]] == [1, 7]


def test_nothing_valid_is_a_loss_of_zero_with_a_graph(algorithm, make_batch):
    batch = make_batch().with_(valid_S=torch.zeros(7, dtype=torch.bool))
    loss, gradient_T = gradient_of(algorithm, algorithm.credit(batch), batch.prox_T)
    assert loss.value.item() == 0.0
    assert gradient_T.tolist() == [0.0] * 21


def test_half_precision_is_raised_before_the_exp(algorithm, make_batch):
    batch = algorithm.weights(algorithm.credit(make_batch()))
    loss = algorithm.loss(batch, batch.prox_T.to(torch.bfloat16))
    assert loss.value.dtype == torch.float32
