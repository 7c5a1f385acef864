"""What golden numbers do not say by themselves: single precision, and rows that leave the loss by a rule instead of a mask.

The cases themselves run through all parts in `tests/test_conformance.py`.
"""

from dataclasses import replace

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import keys_of
from partita.algo.tokens import Current


def algorithm_of(keys):
    return compose(keys, n_samples=4, max_new_tokens=8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("variant", "c_clip"), [("plain", None), ("dual_clip_3", 3.0)])
def test_log_ratios_of_a_hundred_nats_stay_finite(golden, padded, close, dtype, variant, c_clip):
    case = golden("numeric_extreme_log_ratio")
    rows, algorithm = padded(case["inputs"]), algorithm_of(AlgorithmKeys(c_clip=c_clip))
    logprobs_T = rows.tokens("log_ratio").to(dtype).requires_grad_()
    batch = algorithm.weights(rows.batch(prox_T=torch.zeros(6, dtype=dtype)))
    loss = algorithm.loss(batch, Current(logprobs_T))
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    close(loss.value, case["expected"][variant]["loss"])
    close(rows.padded(gradient_T), case["expected"][variant]["grad_logp"])
    assert [float(part) for part in loss.stats["ratio_clamped"]] == [5, 6]


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
@pytest.mark.parametrize("count_empty", [True, False])
def test_truncated_rows_out_of_the_loss_are_as_good_as_empty(golden, padded, close, mode, count_empty):
    case = golden("agg_all_masked_rows")
    keys = AlgorithmKeys(
        loss_agg_mode=mode, loss_agg_constant=8.0, count_empty_rows=count_empty, truncation="mask_loss"
    )
    # the tokens are there, and must not matter
    seen = {"mask": golden("loss_dual_clip")["inputs"]["mask"], "truncated": [False, True, False, True]}
    rows, algorithm = padded(case["inputs"] | seen), algorithm_of(keys)
    logprobs_T = rows.tokens("logp").requires_grad_()
    loss = algorithm.loss(algorithm.weights(rows.batch()), Current(logprobs_T)).value
    (gradient_T,) = torch.autograd.grad(loss, logprobs_T)
    expected = case["expected"][f"{mode}|count_empty={count_empty}"]
    close(loss, expected["loss"])
    close(rows.padded(gradient_T), expected["grad_logp"])


WHOLE = {
    "e2e_grpo": keys_of("grpo"),
    "e2e_drgrpo": replace(keys_of("drgrpo"), loss_agg_constant=8.0),
    "e2e_rloo": replace(keys_of("rloo"), kl_ctl=0.0),
    "e2e_dapo": replace(keys_of("dapo"), reward_scaling=2.0, reward_bias=-0.5, overlong_tokens=2),
    "e2e_liteppo": keys_of("liteppo"),
    "e2e_gspo": replace(keys_of("gspo"), eps_clip=0.05, eps_clip_higher=0.06),
    "e2e_sapo": keys_of("sapo"),
    "e2e_skywork_policy_term": replace(keys_of("skywork_or1"), adaptive_entropy=None, dynamic_sampling=None),
    "e2e_reinforce_batch_baseline": keys_of("reinforce"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WHOLE)
def test_presets_are_the_whole_algorithms_in_either_precision(golden, padded, close, name, dtype):
    case = golden(name)
    rows, algorithm = padded(case["inputs"]), compose(WHOLE[name], n_samples=3, max_new_tokens=4)
    streams = {"prox_T": rows.tokens("old_logp").to(dtype), "ref_T": rows.tokens("ref_logp").to(dtype)}
    logprobs_T = rows.tokens("logp").to(dtype).requires_grad_()
    batch = algorithm.weights(algorithm.credit(rows.batch(**streams)))
    loss = algorithm.loss(batch, Current(logprobs_T)).value
    (gradient_T,) = torch.autograd.grad(loss, logprobs_T)
    assert loss.dtype == gradient_T.dtype == dtype
    exact = 1e-6 if dtype == torch.float64 else 1e-5
    close(loss, case["expected"]["loss"], atol=exact, rtol=exact)
    close(rows.padded(gradient_T), case["expected"]["grad_logp"], atol=exact, rtol=exact)


def test_ppo_is_its_whole_algorithm_too(golden, padded, close):
    case = golden("e2e_ppo_actor_critic")
    rows, algorithm = padded(case["inputs"]), compose(keys_of("ppo"), n_samples=3, max_new_tokens=4)
    logprobs_T, values_T = rows.tokens("logp").requires_grad_(), rows.tokens("values").requires_grad_()
    batch = algorithm.weights(algorithm.credit(rows.batch(values_T=rows.tokens("old_values"))))
    close(algorithm.loss(batch, Current(logprobs_T)).value, case["expected"]["policy_loss"])
    value_loss = algorithm.value_loss(batch, values_T).value
    close(value_loss, case["expected"]["value_loss"])
    close(rows.padded(torch.autograd.grad(value_loss, values_T)[0]), case["expected"]["grad_values"])
