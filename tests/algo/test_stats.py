"""Metrics of a loss: sums and counts of tokens, the same for any split."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys


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
        stats.append(algorithm.loss(algorithm.weights(batch), logprobs_T).stats)
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
    stats = algorithm.loss(algorithm.weights(batch), logprobs_T, torch.tensor([0.7])).stats
    assert mean(stats["ratio"]) == pytest.approx(1.221403, abs=1e-6)
    assert mean(stats["kl_step/k3"]) == pytest.approx(0.221403 - 0.2, abs=1e-6)  # old against new
    assert mean(stats["mismatch/k3"]) == pytest.approx(0.349859 - 0.3, abs=1e-6)  # sampler against trainer
    assert mean(stats["kl_ref/k3"]) == pytest.approx(0.367879, abs=1e-6)  # new against reference
    assert mean(stats["entropy"]) == pytest.approx(0.7, abs=1e-6)
    assert not any(part.requires_grad for stat in stats.values() for part in stat)


def test_on_policy_nothing_has_moved(padded):
    batch = padded({"mask": [[1.0, 1.0]], "rewards": [1.0]}).batch(advantages_T=torch.ones(2))
    algorithm = compose(AlgorithmKeys(), n_samples=1, max_new_tokens=4)
    stats = algorithm.loss(algorithm.weights(batch), torch.tensor([-1.0, -2.0])).stats
    assert (mean(stats["ratio"]), mean(stats["kl_step/k3"]), mean(stats["clip_fraction"])) == (1.0, 0.0, 0.0)
    assert "kl_ref/k3" not in stats  # absent, not 0


def test_credit_counts_groups_without_spread(make_batch):
    algorithm = compose(AlgorithmKeys(), n_samples=4, max_new_tokens=8)
    batch = make_batch().with_(reward_S=torch.tensor([0.7, 0.0, 0.7, 0.7, 1.0, 1.0, 0.7]))
    stats = algorithm.credit_stats(algorithm.credit(batch))
    assert [float(part) for part in stats["groups/zero_variance"]] == [1, 3]
    assert mean(stats["score/mean"]) == pytest.approx((4 * 0.7 + 2) / 7, abs=1e-6)
