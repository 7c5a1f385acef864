"""Truncated samples: statistics, advantages, numerators and denominators."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, NormConfig

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
    algorithm.loss(algorithm.weights(algorithm.credit(batch)), logprobs_T).value.backward()
    assert logprobs_T.grad.tolist() == pytest.approx([(-1 + 0.0632121) / 2, 0.0632121 / 2], abs=1e-6)
