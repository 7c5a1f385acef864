"""What a loss sees: selected before any arithmetic, so that a number that is not finite takes out its own sample only."""

import math
from dataclasses import replace

import pytest
import torch
from properties.batches import moved, ready, step, unmoved, weighed

from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current, finite_samples, live_tokens, present

NAN = math.nan
DIFFERENT = ("grpo", "rloo", "gspo", "sapo", "ppo", "areal_grpo", "gspo_smoothed")
"""Between them every kind of ratio, gate and credit that presets have."""


@pytest.fixture
def weighted(make_batch):
    return make_batch().with_(weight_T=torch.ones(21), advantages_T=torch.ones(21))


# ---- which tokens are live


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("stream", ["logprobs_T", "prox_T", "behaviour_T", "ref_T"])
def test_one_token_takes_out_its_whole_sample(weighted, value, stream):
    spoiled_T = weighted.prox_T.clone()
    spoiled_T[1] = value
    current = unmoved(weighted)
    if stream == "logprobs_T":
        current = Current(spoiled_T)
    else:
        weighted = weighted.with_(**{stream: spoiled_T})
    tokens = live_tokens(weighted, current, weighted.prox_T)
    assert tokens.live_T.tolist() == [False] * 4 + [True] * 17
    assert tokens.weighted_T.tolist() == [True] * 21
    for found_T in (tokens.logprobs_T, tokens.prox_T, tokens.behaviour_T, tokens.ref_T, tokens.weight_T):
        assert bool(torch.isfinite(found_T).all())
        assert found_T[:4].tolist() == [0.0] * 4


def test_tokens_without_weight_are_not_live_and_not_looked_at(weighted):
    weight_T = torch.ones(21)
    weight_T[4] = 0.0
    prox_T = weighted.prox_T.clone()
    prox_T[4] = 1e30
    tokens = live_tokens(weighted.with_(weight_T=weight_T), unmoved(weighted), prox_T)
    assert tokens.live_T.tolist() == [True] * 4 + [False] + [True] * 16
    assert tokens.prox_T[4] == 0.0


def test_streams_that_are_not_there_are_none_and_others_are_carried(weighted):
    bare = weighted.with_(behaviour_T=None, ref_T=None, correction_T=None)
    tokens = live_tokens(bare, Current(bare.prox_T), bare.prox_T)
    assert (tokens.behaviour_T, tokens.ref_T, tokens.entropy_T, tokens.kl_full_ref_T, tokens.kl_full_old_T) == (
        None,
    ) * 5
    assert tokens.correction_T.tolist() == [1.0] * 21
    current = moved(weighted)
    tokens = live_tokens(weighted.with_(correction_T=torch.full((21,), 0.5)), current, weighted.prox_T)
    assert tokens.correction_T.tolist() == [0.5] * 21
    for name in ("entropy_T", "kl_full_ref_T", "kl_full_old_T"):
        assert torch.equal(getattr(tokens, name), getattr(current, name))


def test_sums_and_means_over_the_live_tokens_of_a_sample(by_hand):
    tokens, _ = by_hand([1.0, 2.0, 4.0, 8.0], lengths=[3, 1], weight_T=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    assert tokens.sequence_sum(torch.tensor([1.0, 2.0, 4.0, 8.0])).tolist() == [5.0, 5.0, 5.0, 8.0]
    assert tokens.sequence_mean(torch.tensor([1.0, 2.0, 4.0, 8.0])).tolist() == [2.5, 2.5, 2.5, 8.0]
    dead, _ = by_hand([1.0], weight_T=torch.zeros(1))
    assert dead.sequence_mean(torch.tensor([1.0])).tolist() == [0.0]


def test_finite_samples_look_at_every_stream_that_is_there():
    seq_T = torch.tensor([0, 0, 2])
    fine, broken = torch.zeros(3), torch.tensor([0.0, 0.0, NAN])
    assert finite_samples(seq_T, 3, fine, None).tolist() == [True, True, True]  # a sample without tokens is finite
    assert finite_samples(seq_T, 3, fine, broken).tolist() == [True, True, False]
    assert finite_samples(seq_T, 3, torch.tensor([0.0, math.inf, 0.0]), broken).tolist() == [False, True, False]


def test_a_missing_stream_is_named():
    with pytest.raises(ValueError, match="needs the stream ref_T"):
        present(None, "ref_T")


# ---- in a loss


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("value", [NAN, -math.inf])
def test_a_current_log_prob_is_counted_and_the_other_samples_learn_as_before(make_batch, name, value):
    batch = make_batch()
    algorithm, current = ready(keys_of(name), batch), moved(batch)
    batch = weighed(algorithm, batch)
    clean_T = step(algorithm, batch, current).gradient_T
    current.logprobs_T[1] = value
    loss, gradient_T = step(algorithm, batch, current)
    assert bool(torch.isfinite(loss.value))
    assert gradient_T[:4].tolist() == [0.0] * 4
    assert torch.equal(gradient_T[4:], clean_T[4:])
    assert [float(part) for part in loss.stats["nonfinite_logprobs"]] == [4, 21]


@pytest.mark.parametrize("stream", ["entropy_T", "kl_full_ref_T", "kl_full_old_T"])
def test_what_else_the_policy_says_matters_where_it_is_read(make_batch, stream):
    spoiled_T = torch.ones(21)
    spoiled_T[1] = NAN
    reads = {"entropy_T": {"entropy_coef": 0.1}, "kl_full_ref_T": {"kl_loss_coef": 0.1, "kl_loss_estimator": "full"},
             "kl_full_old_T": {"kl_penalty_coef": 0.1, "kl_penalty_estimator": "full"}}[stream]  # fmt: skip
    algorithm = ready(AlgorithmKeys(**reads), make_batch())
    batch = weighed(algorithm, make_batch())
    loss, gradient_T = step(algorithm, batch, replace(moved(batch), **{stream: spoiled_T}))
    assert bool(torch.isfinite(loss.value))
    assert gradient_T[:4].tolist() == [0.0] * 4
    assert float(loss.stats["nonfinite_logprobs"].sum) == 4.0
    plain = ready(AlgorithmKeys(), make_batch())
    measured = step(plain, weighed(plain, make_batch()), Current(moved(batch).logprobs_T, spoiled_T))
    assert float(measured.loss.stats["nonfinite_logprobs"].sum) == 0.0  # an entropy that is only measured
    assert bool(measured.gradient_T[:4].any())


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_reward_that_is_not_a_number_is_not_a_zero(make_batch, value):
    batch = make_batch()
    algorithm = ready(keys_of("grpo"), batch)
    reward_S = batch.reward_S.clone()
    reward_S[2] = value
    credited = weighed(algorithm, batch.with_(reward_S=reward_S))
    without = weighed(algorithm, batch.with_(valid_S=torch.arange(7) != 2))
    assert torch.equal(credited.advantages_T, without.advantages_T)
    assert torch.equal(credited.weight_T, without.weight_T)
    assert credited.weight_T[batch.seq_T == 2].tolist() == [0.0] * 3
    assert [float(part) for part in algorithm.credit_stats(credited)["samples/invalid"]] == [1, 7]


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_stands_in_tokens_outside_the_loss_has_no_say(make_batch, name):
    batch = make_batch().with_(valid_S=torch.tensor([True, False, True, True, True, True, False]))
    algorithm, current = ready(keys_of(name), batch), moved(batch)
    batch = weighed(algorithm, batch)
    clean, clean_T = step(algorithm, batch, current)
    outside_T = batch.weight_T == 0
    for poison in (NAN, math.inf):
        dirty = batch.with_(
            prox_T=torch.where(outside_T, poison, batch.prox_T),
            advantages_T=torch.where(outside_T, poison, batch.advantages_T),
        )
        loss, gradient_T = step(
            algorithm, dirty, Current(torch.where(outside_T, poison, current.logprobs_T), current.entropy_T)
        )
        assert torch.equal(loss.value, clean.value)
        assert torch.equal(gradient_T, clean_T)
        assert not bool(gradient_T[outside_T].any())


@pytest.mark.parametrize("name", DIFFERENT)
def test_nothing_valid_is_a_loss_of_zero_with_a_graph(make_batch, name):
    batch = make_batch().with_(valid_S=torch.zeros(7, dtype=torch.bool))
    algorithm = ready(keys_of(name), batch)
    loss, gradient_T = step(algorithm, weighed(algorithm, batch), moved(batch))
    assert loss.value.item() == 0.0
    assert gradient_T.tolist() == [0.0] * 21


@pytest.mark.parametrize("name", PRESETS)
def test_half_precision_is_raised_before_the_exp(make_batch, name):
    batch = make_batch()
    algorithm = ready(keys_of(name), batch)
    batch = weighed(algorithm, batch)
    loss = algorithm.loss(batch, Current(batch.prox_T.to(torch.bfloat16), torch.ones(21, dtype=torch.bfloat16)))
    assert loss.value.dtype == torch.float32
    assert bool(torch.isfinite(loss.value))
