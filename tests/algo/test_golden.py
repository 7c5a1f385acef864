"""Losses, gradients, aggregations and whole algorithms against golden numbers, through `compose`, in three orders."""

from dataclasses import replace

import pytest
import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.explain import keys_of
from partita.algo.keys import AlgorithmKeys, NormConfig

ORDERS = {"as given": lambda rows: list(range(rows)), "reversed": lambda rows: list(range(rows))[::-1],
          "rotated": lambda rows: [*range(1, rows), 0]}  # fmt: skip
K3 = {"kl_loss_coef": 0.04, "loss_agg_mode": "seq_mean_token_mean"}
LOSSES = {
    "loss_reinforce_seqmean_tokensum": {"importance_sampling_level": "none", "loss_agg_mode": "seq_mean_token_sum"},
    "loss_ppo_clip_token_mean": {},
    "loss_ppo_clip_seq_mean": {"loss_agg_mode": "seq_mean_token_mean"},
    "loss_dapo_clip_higher": {"eps_clip_higher": 0.28},
    "loss_drgrpo_constant_norm": {"loss_agg_mode": "seq_mean_token_sum_norm", "loss_agg_constant": 8.0},
    "loss_dual_clip": {"c_clip": 3.0},
    "loss_grpo_with_k3": K3,
    "gradient_coefficients_grpo": K3,
    "numeric_nonfinite_padding": {},
    "agg_everything_masked": {},
}


def algorithm_of(keys: AlgorithmKeys) -> Algorithm:
    return compose(keys, n_samples=4, max_new_tokens=8)


@pytest.fixture(params=ORDERS, ids=str)
def order(request):
    return ORDERS[request.param]


@pytest.fixture
def run(padded):
    """Loss, gradient and the packed fixture of one algorithm on given advantages."""

    def of(algorithm, inputs, order, **streams):
        rows = padded(inputs, order(len(inputs["mask"])))
        logprobs_T = rows.tokens("logp").requires_grad_()
        batch = algorithm.weights(rows.batch(**streams))
        loss = algorithm.loss(batch, logprobs_T).value
        (gradient_T,) = torch.autograd.grad(loss, logprobs_T)
        return loss, gradient_T, rows

    return of


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(golden, run, close, order, name):
    case = golden(name)
    loss, gradient_T, rows = run(algorithm_of(AlgorithmKeys(**LOSSES[name])), case["inputs"], order)
    close(rows.padded(gradient_T), case["expected"]["grad_logp"])
    if "loss" in case["expected"]:
        close(loss, case["expected"]["loss"])


@pytest.mark.parametrize("name", [n for n in LOSSES if n.startswith("loss_")])
def test_loss_of_each_token(golden, padded, close, name):
    case = golden(name)
    rows = padded(case["inputs"])
    algorithm, one_hot = algorithm_of(AlgorithmKeys(**LOSSES[name])), torch.eye(10, dtype=torch.float64)
    losses = [algorithm.loss(rows.batch(weight_T=weight_T), rows.tokens("logp")).value for weight_T in one_hot]
    close(rows.padded(torch.stack(losses)), case["expected"]["per_token_loss"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("variant", "c_clip"), [("plain", None), ("dual_clip_3", 3.0)])
def test_log_ratios_of_a_hundred_nats_stay_finite(golden, padded, close, dtype, variant, c_clip):
    case = golden("numeric_extreme_log_ratio")
    rows, algorithm = padded(case["inputs"]), algorithm_of(AlgorithmKeys(c_clip=c_clip))
    logprobs_T = rows.tokens("log_ratio").to(dtype).requires_grad_()
    batch = algorithm.weights(rows.batch(prox_T=torch.zeros(6, dtype=dtype)))
    loss = algorithm.loss(batch, logprobs_T)
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    close(loss.value, case["expected"][variant]["loss"])
    close(rows.padded(gradient_T), case["expected"][variant]["grad_logp"])
    assert [float(part) for part in loss.stats["ratio_clamped"]] == [5, 6]


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
@pytest.mark.parametrize("count_empty", [True, False])
@pytest.mark.parametrize("masked_by", ["no tokens", "truncation"])
def test_rows_without_a_token_in_the_loss(golden, run, close, order, mode, count_empty, masked_by):
    case = golden("agg_all_masked_rows")
    keys = AlgorithmKeys(
        loss_agg_mode=mode, loss_agg_constant=8.0, count_empty_rows=count_empty, truncation="mask_loss"
    )
    inputs = dict(case["inputs"])
    if masked_by == "truncation":  # the tokens are there, and must not matter
        inputs |= {"mask": golden("loss_dual_clip")["inputs"]["mask"], "truncated": [False, True, False, True]}
    loss, gradient_T, rows = run(algorithm_of(keys), inputs, order)
    expected = case["expected"][f"{mode}|count_empty={count_empty}"]
    close(loss, expected["loss"])
    close(rows.padded(gradient_T), expected["grad_logp"])


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm",
                                  "prompt_token_mean"])  # fmt: skip
def test_aggregation_of_a_loss_matrix(golden, padded, close, order, mode):
    case = golden("agg_modes")
    rows = padded(case["inputs"], order(4))
    keys = AlgorithmKeys(loss_agg_mode=mode, loss_agg_constant=8.0)
    weight_T = algorithm_of(keys).weights(rows.batch()).weight_T
    assert weight_T is not None
    close((weight_T * rows.tokens("per_token_loss")).sum(), case["expected"][mode])


def test_micro_batches_add_up(golden, padded, close):
    case = golden("agg_microbatch_invariance")
    rows, algorithm = padded(case["inputs"]), algorithm_of(AlgorithmKeys())
    logprobs_T = rows.tokens("logp").requires_grad_()
    batch = algorithm.weights(rows.batch())
    total = torch.zeros((), dtype=torch.float64)
    for chosen in case["inputs"]["micro_batches"]:
        member_T = torch.isin(batch.seq_T, torch.tensor(chosen))
        total = total + algorithm.loss(batch.select(chosen), logprobs_T[member_T]).value
    (gradient_T,) = torch.autograd.grad(total, logprobs_T)
    close(total, case["expected"]["correct"]["loss"])
    close(rows.padded(gradient_T), case["expected"]["correct"]["grad_logp"])


REINFORCE = AlgorithmKeys(
    adv_norm=NormConfig(mean_level="batch", std_level=None),
    importance_sampling_level="none",
    loss_agg_mode="seq_mean_token_sum",
)
LITE = NormConfig(mean_level="group", std_level="batch", std_of="raw", eps=1e-4)
WHOLE = {
    "e2e_grpo": keys_of("grpo"),
    "e2e_drgrpo": replace(keys_of("drgrpo"), loss_agg_constant=8.0),
    "e2e_rloo": replace(keys_of("rloo"), kl_ctl=0.0),
    "e2e_dapo": replace(keys_of("dapo"), overlong_tokens=2, overlong_penalty_factor=1.0),
    "e2e_liteppo": AlgorithmKeys(adv_norm=LITE),
    "e2e_skywork_policy_term": replace(keys_of("grpo"), loss_agg_mode="token_mean", kl_loss_coef=0.0),
    "e2e_reinforce_batch_baseline": REINFORCE,
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_algorithms(golden, padded, run, close, order, name):
    case = golden(name)
    inputs = dict(case["inputs"])
    if name == "e2e_dapo":  # the paper's rewards are -1 and 1
        inputs["rewards"] = [2 * reward - 1 for reward in inputs["rewards"]]
    algorithm = compose(WHOLE[name], n_samples=3, max_new_tokens=4)
    rows = padded(inputs, order(6))
    credited = algorithm.credit(rows.batch())
    first_S = torch.cumsum(credited.length_S, 0) - credited.length_S
    assert credited.advantages_T is not None
    close(rows.unordered(credited.advantages_T[first_S]), case["expected"]["advantages"])
    loss, gradient_T, rows = run(algorithm, inputs, order, advantages_T=credited.advantages_T)
    close(loss, case["expected"]["loss"])
    close(rows.padded(gradient_T), case["expected"]["grad_logp"])


@pytest.mark.parametrize("name", WHOLE)
def test_single_precision_agrees_with_double(golden, padded, close, name):
    case = golden(name)
    algorithm = compose(WHOLE[name], n_samples=3, max_new_tokens=4)
    rows = padded(case["inputs"])
    found = []
    for dtype in (torch.float32, torch.float64):
        streams = {"prox_T": rows.tokens("old_logp").to(dtype), "ref_T": rows.tokens("ref_logp").to(dtype)}
        logprobs_T = rows.tokens("logp").to(dtype).requires_grad_()
        batch = algorithm.weights(algorithm.credit(rows.batch(**streams)))
        loss = algorithm.loss(batch, logprobs_T).value
        found.append((loss, *torch.autograd.grad(loss, logprobs_T)))
    for single, double in zip(*found, strict=True):
        close(single, double.detach(), atol=1e-5, rtol=1e-5)
