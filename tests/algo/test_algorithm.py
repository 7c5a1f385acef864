"""What must hold for every algorithm: invariances, splits, gradients, and when a step has nothing to teach."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.explain import keys_of
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.presets import PRESETS

# more compositions than are named: every part is in at least one of them
UNNAMED = {
    "everything on": AlgorithmKeys(
        reward_norm=NormConfig(mean_level="batch", std_level="group"), adv_norm=NormConfig(eps_mode="inside_sqrt"),
        overlong_reward_penalty=True, reward_bias=0.1, reward_scaling=2.0, reward_clip=1.5, kl_ctl=0.1, discount=0.9,
        credit="reward_to_go", truncation="adv_mask_before", c_clip=3.0, loss_agg_mode="prompt_token_mean",
        kl_loss_coef=0.1, kl_loss_estimator="k3_value_k2_grad", entropy_coef=0.01,
    ),
    "reinforce": AlgorithmKeys(importance_sampling_level="none", truncation="mask_loss", kl_ctl=0.1),
}  # fmt: skip
ALL = {name: keys_of(name) for name in PRESETS} | UNNAMED


@pytest.fixture(params=ALL)
def keys(request):
    return ALL[request.param]


@pytest.fixture
def algorithm(keys):
    return compose(keys, n_samples=4, max_new_tokens=8)


def moved(batch, seed=1):
    """Log-probs and entropies of a policy that has moved away from where the batch was scored."""
    generator = torch.Generator().manual_seed(seed)
    noise_T = torch.randn(batch.prox_T.shape, generator=generator, dtype=torch.float64)
    return batch.prox_T.double() + 0.25 * noise_T, noise_T.square()


def loss_and_gradient(algorithm, batch, logprobs_T, entropy_T):
    logprobs_T = logprobs_T.clone().requires_grad_()
    loss = algorithm.loss(batch, logprobs_T, entropy_T)
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    return loss, gradient_T


@pytest.mark.parametrize("order", [[6, 5, 4, 3, 2, 1, 0], [2, 6, 0, 3, 5, 1, 4]])
def test_row_order_and_prompt_names_do_not_matter(algorithm, make_batch, close, order):
    batch = make_batch()
    batch = batch.with_(version_T=torch.arange(21))
    logprobs_T, entropy_T = moved(batch)
    credited = algorithm.weights(algorithm.credit(batch))
    other = batch.select(order)
    other = algorithm.weights(algorithm.credit(other.with_(prompt_S=1000 - 3 * other.prompt_S)))
    token_T = other.version_T  # where each token was before
    close(other.score_S, credited.score_S[order])
    close(other.advantages_T, credited.advantages_T[token_T])
    close(other.weight_T, credited.weight_T[token_T])
    _, gradient_T = loss_and_gradient(algorithm, credited, logprobs_T, entropy_T)
    _, other_T = loss_and_gradient(algorithm, other, logprobs_T[token_T], entropy_T[token_T])
    close(other_T, gradient_T[token_T])


@pytest.mark.parametrize("split", [[[0], [1, 2, 3, 4, 5, 6]], [[5, 2], [0, 6, 3], [1, 4]], [[s] for s in range(7)]])
def test_any_split_gives_the_same_gradient_and_metrics(algorithm, make_batch, split):
    batch = make_batch()
    logprobs_T, entropy_T = moved(batch)
    batch = algorithm.weights(algorithm.credit(batch)).with_(version_T=torch.arange(21))
    whole, gradient_T = loss_and_gradient(algorithm, batch, logprobs_T, entropy_T)
    total, found_T, sums = torch.zeros((), dtype=torch.float64), torch.zeros(21, dtype=torch.float64), {}
    for chosen in split:
        micro = batch.select(chosen)
        at_T = micro.version_T
        part, part_T = loss_and_gradient(algorithm, micro, logprobs_T[at_T], entropy_T[at_T])
        total, found_T[at_T] = total + part.value.detach(), part_T
        for name, stat in part.stats.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + float(stat.sum), before[1] + float(stat.count))
    torch.testing.assert_close(found_T, gradient_T, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(total, whole.value.detach(), atol=1e-12, rtol=1e-12)
    for name, stat in whole.stats.items():
        assert sums[name] == pytest.approx((float(stat.sum), float(stat.count)), abs=1e-12)


def test_an_optimizer_step_on_one_prompt_has_its_own_denominator(algorithm, make_batch):
    batch = algorithm.credit(make_batch())
    alone = algorithm.weights(batch.select([1, 4]))
    again = algorithm.weights(batch).select([1, 4])
    assert torch.equal(alone.advantages_T, again.advantages_T)  # statistics belong to the rollout batch
    assert not torch.equal(alone.weight_T, again.weight_T)


def test_on_policy_every_gradient_is_minus_weight_times_advantage(keys, make_batch):
    algorithm = replace(compose(keys, n_samples=4, max_new_tokens=8), penalties=())
    batch = algorithm.weights(algorithm.credit(make_batch()))
    logprobs_T, entropy_T = batch.prox_T, torch.zeros(21)
    expected_T = -(batch.weight_T.double() * batch.advantages_T.double())
    for moving in (batch, batch.with_(prox_T=None)):
        _, gradient_T = loss_and_gradient(algorithm, moving, logprobs_T, entropy_T)
        torch.testing.assert_close(gradient_T, expected_T, atol=1e-12, rtol=1e-12)
    assert float(expected_T.abs().max()) > 0


def test_gradients_agree_with_finite_differences(algorithm, make_batch):
    batch = algorithm.weights(algorithm.credit(make_batch()))
    logprobs_T, entropy_T = moved(batch)
    ratio_T = (logprobs_T - batch.prox_T).exp()
    for kink in (0.8, 1.2, 1.28, 3.0):
        assert float((ratio_T - kink).abs().min()) > 1e-3
    _, gradient_T = loss_and_gradient(algorithm, batch, logprobs_T, entropy_T)
    straight = compose_without_detached_value(algorithm)
    step = 1e-6
    for t in range(21):
        nudge_T = torch.zeros(21, dtype=torch.float64)
        nudge_T[t] = step
        values = [straight.loss(batch, logprobs_T + sign * nudge_T, entropy_T).value for sign in (1, -1)]
        assert float(values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient_T[t]), abs=1e-7)


def compose_without_detached_value(algorithm):
    """k3 with the gradient of k2 is not the gradient of its value: the value to differentiate is k2."""
    parts = []
    for part in algorithm.penalties:
        if getattr(getattr(part, "estimator", None), "__name__", "") == "k3_value_k2_grad":
            part = replace(part, estimator=lambda d: d.square() / 2)
        parts.append(part)
    return replace(algorithm, penalties=tuple(parts))


def test_single_precision_streams(algorithm, make_batch, close):
    found = []
    for dtype in (torch.float64, torch.float32):
        batch = algorithm.weights(algorithm.credit(make_batch(dtype=dtype)))
        logprobs_T, entropy_T = moved(make_batch())
        loss, gradient_T = loss_and_gradient(algorithm, batch, logprobs_T.to(dtype), entropy_T.to(dtype))
        found.append((batch.advantages_T, loss.value, gradient_T))
    for double, single in zip(*found, strict=True):
        close(single, double.detach(), atol=1e-5, rtol=1e-5)


def test_tokens_without_weight_have_gradient_exactly_zero(algorithm, make_batch):
    batch = make_batch().with_(valid_S=torch.tensor([True, False, True, True, True, True, False]))
    logprobs_T, entropy_T = moved(batch)
    batch = algorithm.weights(algorithm.credit(batch))
    for poison in (0.0, float("nan"), float("inf")):
        outside_T = batch.weight_T == 0
        dirty = batch.with_(
            prox_T=torch.where(outside_T, poison, batch.prox_T),
            advantages_T=torch.where(outside_T, poison, batch.advantages_T),
        )
        poisoned_T = torch.where(outside_T, poison, logprobs_T)
        loss, gradient_T = loss_and_gradient(algorithm, dirty, poisoned_T, entropy_T)
        clean, clean_T = loss_and_gradient(algorithm, batch, logprobs_T, entropy_T)
        assert torch.equal(loss.value, clean.value)
        assert torch.equal(gradient_T, clean_T)
        assert not bool(gradient_T[outside_T].any())


def test_crediting_twice_changes_nothing(algorithm, make_batch):
    once = algorithm.credit(make_batch())
    again = algorithm.credit(once)
    assert torch.equal(once.advantages_T, again.advantages_T)
    assert torch.equal(once.score_S, again.score_S)
    assert once.advantages_T.dtype == once.score_S.dtype == torch.float32
    assert not once.advantages_T.requires_grad


GROUP_RELATIVE = [name for name in PRESETS if ALL[name].kl_ctl == 0] + ["rloo"]


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_advantages_of_a_group_sum_to_zero(make_batch, name):
    algorithm = compose(replace(ALL[name], kl_ctl=0.0), n_samples=4, max_new_tokens=8)
    batch = make_batch()
    one_token_each = batch.with_(**{s: getattr(batch, s)[:7] for s in ("prox_T", "behaviour_T", "ref_T")})
    advantages_T = algorithm.credit(one_token_each.with_(seq_T=torch.arange(7))).advantages_T
    for prompt in (9, 4, 2):
        assert float(advantages_T[batch.prompt_S == prompt].sum()) == pytest.approx(0.0, abs=1e-6)


def advantages(name, batch, **changes):
    keys = replace(ALL[name], kl_ctl=0.0, overlong_reward_penalty=False, **changes)
    return compose(keys, n_samples=4, max_new_tokens=8).credit(batch).advantages_T


def test_leave_one_out_is_the_group_mean_times_g_over_g_minus_one(make_batch, close):
    batch = make_batch()
    size_T = torch.tensor([4.0, 2.0, 4.0, 4.0, 2.0, 2.0, 4.0])[batch.seq_T]
    close(advantages("rloo", batch), advantages("drgrpo", batch) * size_T / (size_T - 1))


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_z_scores_ignore_offset_and_scale_of_rewards(make_batch, close, name):
    batch = make_batch()
    other = batch.with_(reward_S=0.25 + 4 * batch.reward_S)
    close(advantages(name, other), advantages(name, batch), atol=1e-5)


def test_half_the_penalty_on_right_or_wrong_is_the_papers_on_plus_minus_one(make_batch, close):
    batch = make_batch()
    papers = replace(ALL["dapo"], overlong_penalty_factor=1.0)
    expected = compose(papers, n_samples=4, max_new_tokens=8).credit(batch.with_(reward_S=2 * batch.reward_S - 1))
    found = compose(ALL["dapo"], n_samples=4, max_new_tokens=8).credit(batch)
    close(found.advantages_T, expected.advantages_T, atol=1e-5)


@pytest.mark.parametrize("level", ["token", "none"])
def test_no_ratio_option_loses_the_gradient(keys, make_batch, level):
    plain = replace(keys, importance_sampling_level=level, kl_loss_coef=0.0, entropy_coef=0.0, kl_ctl=0.0)
    algorithm = compose(plain, n_samples=4, max_new_tokens=8)
    batch = algorithm.weights(algorithm.credit(make_batch()))
    _, gradient_T = loss_and_gradient(algorithm, batch, batch.prox_T, None)
    torch.testing.assert_close(gradient_T, -(batch.weight_T * batch.advantages_T).double(), atol=1e-6, rtol=1e-6)
    assert float(gradient_T.abs().max()) > 0


def test_equal_rewards_leave_nothing_to_learn_unless_a_penalty_acts(algorithm, make_batch):
    batch = make_batch().with_(reward_S=torch.full((7,), 0.7), ref_T=make_batch().prox_T)
    same_length = batch.with_(seq_T=torch.arange(7).repeat_interleave(3))
    credited = algorithm.weights(algorithm.credit(same_length))
    silent = not bool(credited.advantages_T.any()) and not algorithm.penalties
    assert bool(algorithm.has_signal(credited)) is not silent
    nothing = algorithm.weights(algorithm.credit(batch.with_(valid_S=torch.zeros(7, dtype=torch.bool))))
    assert not bool(algorithm.has_signal(nothing))


def test_a_step_with_one_informative_group_has_a_signal(algorithm, make_batch):
    assert bool(algorithm.has_signal(algorithm.weights(algorithm.credit(make_batch()))))


def test_needs_follow_from_the_parts():
    needs = {name: compose(keys, n_samples=4, max_new_tokens=8).needs for name, keys in ALL.items()}
    assert needs["grpo"] == {"ref"}
    assert needs["drgrpo"] == needs["dapo"] == frozenset()
    assert needs["rloo"] == {"prox", "ref"}
    assert needs["everything on"] == {"prox", "ref", "entropy"}


def test_weights_come_before_the_loss(algorithm, make_batch):
    batch = algorithm.credit(make_batch())
    with pytest.raises(ValueError, match="weight_T"):
        algorithm.loss(batch, batch.prox_T)
    with pytest.raises(ValueError, match="weight_T"):
        algorithm.has_signal(batch)


def test_the_ratio_pushes_further_only_inside_the_band(make_batch):
    """As a policy follows a positive advantage, clipped tokens are counted one after another."""
    algorithm = compose(AlgorithmKeys(), n_samples=4, max_new_tokens=8)
    batch = algorithm.weights(make_batch().with_(advantages_T=torch.ones(21)))
    high = [algorithm.loss(batch, batch.prox_T + push).stats["clip_fraction/high"].sum for push in (0.1, 0.18, 0.19)]
    assert [float(count) for count in high] == [0, 0, 21]
    assert all(a <= b for a, b in pairwise(high))
