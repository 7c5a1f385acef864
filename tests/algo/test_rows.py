"""Truncated and stale samples: statistics, advantages, numerators and denominators."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.rows import Stale, Truncated
from partita.algo.tokens import Current

Z = NormConfig(mean_level="group", std_level="group", eps=1e-6)
MODES = {"none": "none", "before": "adv_mask_before", "after": "adv_mask_after"}


@pytest.mark.parametrize("name", ["adv_truncation_masks", "adv_truncation_masks_degenerate"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["adv_norm", "reward_norm"])
def test_advantages_of_truncated_samples(golden, padded, close, name, mode, place):
    case = golden(name)
    if mode in case["expected"]:
        keys = AlgorithmKeys(**{place: Z, "truncation": MODES[mode]})
        credited = compose(keys, n_samples=6, max_new_tokens=8).credit(padded(case["inputs"]).batch())
        close(credited.advantages_T, case["expected"][mode])


def test_a_sample_out_of_the_loss_stays_in_the_statistics(golden, padded, close):
    case = golden("adv_truncation_masks")
    algorithm = compose(AlgorithmKeys(adv_norm=Z, truncation="mask_loss"), n_samples=6, max_new_tokens=8)
    batch = algorithm.weights(algorithm.credit(padded(case["inputs"]).batch()))
    close(batch.advantages_T, case["expected"]["none"])
    assert (batch.weight_T > 0).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize(("mode", "total"), [("none", 1.0), ("mask_loss", 1.0), ("adv_mask_after", 1.0)])
def test_tokens_out_of_the_numerator_are_out_of_the_denominator(padded, mode, total):
    # two samples of four tokens, the second truncated, a loss of 1 on each token: the token mean is 1, not a half
    batch = padded({"mask": [[1.0] * 4] * 2, "rewards": [0.0, 0.0], "truncated": [False, True]}).batch()
    weighted = compose(AlgorithmKeys(truncation=mode), n_samples=2, max_new_tokens=4).weights(batch)
    assert float(weighted.weight_T.sum()) == pytest.approx(total)
    assert int((weighted.weight_T > 0).sum()) == (4 if mode == "mask_loss" else 8)
    assert batch.length_S.tolist() == [4, 4]  # throughput still counts all eight


def test_a_sample_without_advantage_still_pays_its_penalty(padded):
    batch = padded({"mask": [[1.0], [1.0]], "rewards": [1.0, 0.0], "truncated": [False, True]}).batch(
        ref_T=torch.tensor([-2.0, -2.0])
    )
    keys = AlgorithmKeys(truncation="adv_mask_after", kl_loss_coef=0.1)
    algorithm = compose(keys, n_samples=2, max_new_tokens=4)
    logprobs_T = torch.tensor([-1.0, -1.0], requires_grad=True)
    algorithm.loss(algorithm.weights(algorithm.credit(batch)), Current(logprobs_T)).value.backward()
    assert logprobs_T.grad.tolist() == pytest.approx([(-1 + 0.0632121) / 2, 0.0632121 / 2], abs=1e-6)


def test_a_sample_without_advantage_still_tells_a_critic_what_it_was_worth(padded):
    batch = padded({"mask": [[1.0], [1.0], [1.0]], "rewards": [1.0] * 3, "truncated": [False, True, False]}).batch(
        valid_S=torch.tensor([True, True, False])
    )
    keys = AlgorithmKeys(credit="reward_to_go", truncation="adv_mask_after")
    credited = compose(keys, n_samples=3, max_new_tokens=4).credit(batch)
    assert credited.advantages_T.tolist() == [1.0, 0.0, 0.0]
    assert credited.returns_T.tolist() == [1.0, 1.0, 0.0]


# ---- stale samples


def test_the_oldest_token_of_a_sample_decides(golden, padded):
    case = golden("offpolicy_staleness_filter")
    versions = torch.tensor(case["inputs"]["versions"])
    rows = padded({"mask": (versions >= 0).float().tolist(), "rewards": [0.0] * 4})
    batch = rows.batch(version_T=versions[versions >= 0], train_version=case["inputs"]["current_version"] + 1)
    found = Stale(case["config"]["eta"])(batch)
    for part in (found.in_statistics_S, found.has_advantage_S, found.in_loss_S):
        assert part.tolist() == case["expected"]["keep"]


def test_a_stale_sample_counts_nowhere(padded, close):
    batch = padded({"mask": [[1.0]] * 3, "rewards": [1.0, 0.0, 9.0]}).batch(
        version_T=torch.tensor([5, 4, 3]), train_version=6
    )
    norm = NormConfig(mean_level="group", std_level=None)
    algorithm = compose(AlgorithmKeys(adv_norm=norm, max_staleness=1), n_samples=3, max_new_tokens=4)
    batch = algorithm.weights(algorithm.credit(batch))
    close(batch.advantages_T, [0.5, -0.5, 0.0])
    close(batch.weight_T, [0.5, 0.5, 0.0])
    by_sequence = compose(
        AlgorithmKeys(max_staleness=1, loss_agg_mode="seq_mean_token_sum"), n_samples=3, max_new_tokens=4
    ).weights(batch)
    close(by_sequence.weight_T, [0.5, 0.5, 0.0])  # not an empty sample of the step: none of its samples
    synchronous = compose(AlgorithmKeys(max_staleness=0), n_samples=3, max_new_tokens=4).weights(batch)
    assert (synchronous.weight_T > 0).tolist() == [True, False, False]  # 0 is: only the newest


def test_a_sample_without_tokens_is_never_stale(padded):
    batch = padded({"mask": [[1.0], [0.0]], "rewards": [0.0] * 2}).batch(version_T=torch.tensor([0]), train_version=6)
    assert Stale(1)(batch).in_statistics_S.tolist() == [False, True]


def test_staleness_needs_versions(padded):
    batch = padded({"mask": [[1.0]], "rewards": [0.0]}).batch()
    with pytest.raises(ValueError, match="train_version"):
        Stale(1)(batch.with_(version_T=torch.tensor([0])))
    with pytest.raises(ValueError, match="version_T"):
        Stale(1)(batch.with_(train_version=3))


def test_two_rules_hold_together(padded):
    batch = padded({"mask": [[1.0]] * 4, "rewards": [1.0] * 4, "truncated": [False, True, False, True]}).batch(
        version_T=torch.tensor([5, 5, 2, 2]), train_version=6
    )
    keys = AlgorithmKeys(truncation="mask_loss", max_staleness=2)
    assert (compose(keys, n_samples=4, max_new_tokens=4).weights(batch).weight_T > 0).tolist() == [True] + [False] * 3


def test_rules_say_what_they_take():
    assert "the loss" in Truncated(in_loss=False).formula()
    assert "the statistics, advantages" in Truncated(in_statistics=False, has_advantage=False).formula()
    assert "more than 3 versions" in Stale(3).formula()
