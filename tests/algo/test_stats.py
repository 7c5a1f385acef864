"""Metrics of a loss and of credit: sums and counts of tokens or samples, the same for any split."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, CorrectionConfig, NormConfig
from partita.algo.presets import PRESETS, keys_of
from partita.algo.stats import LOSS_METRICS, iqr, mean_over
from partita.algo.tokens import Current


def mean(stat):
    return float(stat.sum / stat.count)


def clipped(padded, tokens, beyond):
    """A sample of which `beyond` tokens are pushed above the band."""
    batch = padded({"mask": [[1.0] * tokens], "rewards": [1.0]}).batch(
        advantages_T=torch.ones(tokens), prox_T=torch.zeros(tokens)
    )
    return batch, torch.tensor([0.5] * beyond + [0.1] * (tokens - beyond))


def test_clip_fraction_over_two_ranks_counts_tokens(padded):
    algorithm = compose(AlgorithmKeys(), n_samples=1, max_new_tokens=10)
    stats = []
    for tokens, beyond in ((10, 2), (5, 3)):
        batch, logprobs_T = clipped(padded, tokens, beyond)
        stats.append(algorithm.loss(algorithm.weights(batch), Current(logprobs_T)).stats)
    for name, expected in (("clip_fraction", 5 / 15), ("clip_fraction/high", 5 / 15), ("clip_fraction/low", 0.0)):
        total = sum(s[name].sum for s in stats) / sum(s[name].count for s in stats)
        assert float(total) == pytest.approx(expected)  # a mean of means would be 0.4


def test_which_divergence_is_which(padded):
    logprobs_T = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    batch = padded({"mask": [[1.0]], "rewards": [1.0]}).batch(
        advantages_T=torch.ones(1), prox_T=torch.tensor([-1.2]), behaviour_T=torch.tensor([-1.5]),
        ref_T=torch.tensor([-2.0]),
    )  # fmt: skip
    algorithm = compose(AlgorithmKeys(), n_samples=1, max_new_tokens=4)
    stats = algorithm.loss(algorithm.weights(batch), Current(logprobs_T, torch.tensor([0.7]))).stats
    assert mean(stats["ratio"]) == pytest.approx(1.221403, abs=1e-6)
    assert mean(stats["kl_step/k3"]) == pytest.approx(0.221403 - 0.2, abs=1e-6)  # old against new
    assert mean(stats["mismatch/k3"]) == pytest.approx(0.349859 - 0.3, abs=1e-6)  # sampler against trainer
    assert mean(stats["kl_ref/k3"]) == pytest.approx(0.367879, abs=1e-6)  # new against reference
    assert mean(stats["entropy"]) == pytest.approx(0.7, abs=1e-6)
    assert not any(part.requires_grad for stat in stats.values() for part in stat)


def test_on_policy_nothing_has_moved(padded):
    batch = padded({"mask": [[1.0, 1.0]], "rewards": [1.0]}).batch(advantages_T=torch.ones(2))
    algorithm = compose(AlgorithmKeys(), n_samples=1, max_new_tokens=4)
    stats = algorithm.loss(algorithm.weights(batch), Current(torch.tensor([-1.0, -2.0]))).stats
    assert (mean(stats["ratio"]), mean(stats["kl_step/k3"]), mean(stats["clip_fraction"])) == (1.0, 0.0, 0.0)
    assert not {"kl_ref/k3", "kl_ref/sequence", "correction/weight", "mismatch/k3"} & set(stats)  # absent, not 0


def test_centred_on_the_sampler_the_difference_to_it_is_not_to_be_seen(make_batch):
    for recompute in (True, False):
        algorithm = compose(AlgorithmKeys(recompute_logprob=recompute), n_samples=4, max_new_tokens=8)
        batch = algorithm.weights(algorithm.credit(make_batch()))
        stats = algorithm.loss(batch, Current(batch.prox_T + 0.1)).stats
        assert ("mismatch/k3" in stats) is recompute  # it would be a 0 that nobody measured


def test_a_divergence_per_sequence_is_a_sum_over_its_tokens(padded):
    """Its target is nats per response: a mean per token would miss it by the length of the responses."""
    batch = padded({"mask": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], "rewards": [1.0] * 3}).batch(
        advantages_T=torch.ones(4), ref_T=torch.full((4,), -1.5)
    )
    algorithm = compose(AlgorithmKeys(), n_samples=3, max_new_tokens=4)
    logprobs_T = torch.tensor([-1.0, -2.0, -1.0, -1.1])
    stat = algorithm.loss(algorithm.weights(batch), Current(logprobs_T)).stats["kl_ref/sequence"]
    assert (float(stat.sum), float(stat.count)) == (pytest.approx(0.5 - 0.5 + 0.5 + 0.4), 2.0)


def test_the_effective_sample_size_of_behaviour_weights(padded):
    batch = padded({"mask": [[1.0] * 4], "rewards": [1.0]}).batch(
        advantages_T=torch.ones(4), prox_T=torch.zeros(4),
        behaviour_T=-torch.tensor([1.0, 1.0, 2.0, 6.0]).log(),
    )  # fmt: skip
    algorithm = compose(AlgorithmKeys(correction=CorrectionConfig("icepop")), n_samples=1, max_new_tokens=4)
    stats = algorithm.loss(algorithm.weights(batch), Current(torch.zeros(4))).stats
    assert mean(stats["correction/masked"]) == 0.25
    weight, squared = mean(stats["correction/weight"]), mean(stats["correction/weight_squared"])
    assert 4 * weight**2 / squared == pytest.approx((1 + 1 + 2) ** 2 / (1 + 1 + 4))  # of four tokens, 2.67 speak


def test_credit_counts_groups_without_spread(make_batch):
    algorithm = compose(AlgorithmKeys(), n_samples=4, max_new_tokens=8)
    batch = make_batch().with_(reward_S=torch.tensor([0.7, 0.0, 0.7, 0.7, 1.0, 1.0, 0.7]))
    stats = algorithm.credit_stats(algorithm.credit(batch))
    assert [float(part) for part in stats["groups/zero_variance"]] == [1, 3]
    assert mean(stats["score/mean"]) == pytest.approx((4 * 0.7 + 2) / 7, abs=1e-6)


def test_all_right_and_all_wrong_groups_are_counted_whatever_the_scale(padded):
    batch = padded({"rewards": [1.0, 1.0, 0.0, 0.0], "group_ids": [0, 0, 1, 1]}).batch()
    for level in ("group", "batch"):
        keys = AlgorithmKeys(adv_norm=NormConfig(mean_level="group", std_level=level, std_of="raw"))
        algorithm = compose(keys, n_samples=2, max_new_tokens=4)
        credited = algorithm.credit(batch)
        assert mean(algorithm.credit_stats(credited)["groups/zero_variance"]) == 1.0
        assert credited.advantages_T.tolist() == [0.0] * 4


def test_the_spread_of_advantages_is_over_samples_and_the_entropy_over_tokens(padded):
    batch = padded({"mask": [[1.0] * 3, [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], "rewards": [4.0, 1.0, 0.0]}).batch(
        entropy_T=torch.tensor([0.1, 0.2, 0.3, 1.0, 9.0]), valid_S=torch.tensor([True, True, False])
    )
    algorithm = compose(AlgorithmKeys(), n_samples=3, max_new_tokens=4)
    stats = algorithm.credit_stats(algorithm.credit(batch))
    assert mean(stats["advantage/iqr"]) == pytest.approx(1.5)  # quarters of 1 and 4: over tokens it would be 0.75
    assert mean(stats["old_entropy"]) == pytest.approx(0.4)
    assert mean(stats["advantage/mean"]) == pytest.approx(13 / 4)
    assert [float(part) for part in stats["samples/invalid"]] == [1, 3]


def test_interquartile_range_between_order_statistics():
    assert float(iqr(torch.tensor([3.0, 1.0, 2.0, 4.0]))) == pytest.approx(1.5)
    assert float(iqr(torch.tensor([5.0]))) == 0.0
    assert float(iqr(torch.tensor([]))) == 0.0


def test_means_leave_out_what_does_not_count_even_where_it_is_no_number():
    stat = mean_over(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([True, False, True]))
    assert (float(stat.sum), float(stat.count)) == (4.0, 2.0)


@pytest.mark.parametrize("name", PRESETS)
def test_whatever_a_loss_reports_is_known_as_its_own(make_batch, name):
    batch = make_batch()
    algorithm = compose(keys_of(name), n_samples=4, max_new_tokens=8)
    full_T = torch.zeros(len(batch.seq_T))
    current = Current(batch.prox_T, torch.ones_like(batch.prox_T), full_T, full_T)
    batch = algorithm.weights(batch.with_(advantages_T=full_T.double(), returns_T=full_T))
    stats = algorithm.loss(batch, current).stats
    if algorithm.value is not None:
        stats |= algorithm.value_loss(batch, batch.values_T).stats
    assert stats and all(metric.startswith(LOSS_METRICS) for metric in stats)
