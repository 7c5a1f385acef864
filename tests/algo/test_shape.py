"""Reward shaping: the soft edge, the order of the steps, the divergence inside the reward, and several rewards."""

from dataclasses import replace

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.norm import Center, Norm, Scale
from partita.algo.shape import Bias, Clip, Factor, KlInReward, Overlong, PartsNorm, RewardNorm, Right
from partita.config import ConfigError, load_config
from partita.ops.divergence import k1


def test_right_is_one_from_the_threshold_on_whatever_else_shapes_it(padded, close):
    batch = of_lengths(padded, [2, 2, 2, 2], [1.0, 0.99, -3.0, 7.5])
    close(Right(1.0)(batch.with_(score_S=batch.reward_S), batch.valid_S).score_S, [1.0, 0.0, 0.0, 1.0])
    keys = AlgorithmKeys(reward_threshold=-3.0, reward_bias=-0.5, reward_scaling=10.0)
    algorithm = compose(keys, n_samples=4, max_new_tokens=64)
    assert [type(part) for part in algorithm.shape] == [Right, Bias, Factor]
    close(algorithm.credit(batch).score_S, [5.0] * 4)


def test_a_reward_that_is_no_number_is_not_wrong_but_absent(padded, close):
    batch = of_lengths(padded, [2, 2, 2], [1.0, float("nan"), float("-inf")])
    credited = compose(AlgorithmKeys(reward_threshold=0.0), n_samples=3, max_new_tokens=64).credit(batch)
    close(credited.score_S, [1.0, 0.0, 0.0])
    assert credited.valid_S.tolist() == [True, False, False]


def test_soft_overlong_penalty(golden, close):
    case = golden("reward_soft_overlong")
    lengths = torch.tensor(case["inputs"]["lengths"])
    close(Overlong(100, 20).penalty(lengths), case["expected"]["penalty"])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_window_lies_before_the_limit(close, factor):
    found = Overlong(100, 20, factor).penalty(torch.tensor([80, 81, 90, 100, 101]))
    close(found, [0.0, -0.05 * factor, -0.5 * factor, -factor, -factor])


@pytest.mark.parametrize(("limit", "window"), [(20480, 4096), (100, 20), (9, 1), (4, 1), (2, 1)])
def test_a_window_that_is_not_given_is_a_fifth_of_the_limit_and_never_empty(limit, window):
    algorithm = compose(AlgorithmKeys(overlong_reward_penalty=True), n_samples=4, max_new_tokens=limit)
    assert algorithm.shape == (Overlong(limit, window),)
    lengths = torch.tensor([limit - window, limit, limit + 1, 5 * limit])
    assert Overlong(limit, window).penalty(lengths).tolist() == [0.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize(("limit", "given", "window"), [(1, None, 1), (64, 64, 64), (64, 65, 65)])
def test_a_window_that_is_not_below_the_limit_is_refused(limit, given, window):
    keys = AlgorithmKeys(overlong_reward_penalty=True, overlong_tokens=given)
    with pytest.raises(ValueError, match=f"overlong_tokens {window} must be below gconfig.max_new_tokens {limit}"):
        compose(keys, n_samples=4, max_new_tokens=limit)


def test_a_window_of_zero_tokens_is_refused_by_the_schema():
    with pytest.raises(ConfigError, match="overlong_tokens"):
        load_config(AlgorithmKeys, overrides=["overlong_tokens=0"])


def of_lengths(padded, lengths, rewards):
    mask = [[1.0] * n + [0.0] * (max(lengths) - n) for n in lengths]
    return padded({"mask": mask, "rewards": rewards}).batch()


def test_order_overlong_bias_scale_norm(padded, close):
    batch = of_lengths(padded, [40, 40, 52, 64], [1.0, 0.0, 0.0, 1.0])
    keys = {"overlong_reward_penalty": True, "overlong_tokens": 16, "reward_bias": -0.5, "reward_scaling": 10.0}
    shaped = compose(AlgorithmKeys(**keys), n_samples=4, max_new_tokens=64).credit(batch)
    close(shaped.score_S, [5.0, -5.0, -7.5, -5.0])
    keys["reward_norm"] = NormConfig(mean_level="group", std_level="group", group_size=4)
    credited = compose(AlgorithmKeys(**keys), n_samples=4, max_new_tokens=64).credit(batch)
    close(credited.score_S, [1.4657, -0.3382, -0.7892, -0.3382], atol=1e-4)
    first_S = torch.tensor([0, 40, 80, 132])
    assert credited.advantages_T is not None
    close(credited.advantages_T[first_S], credited.score_S)


def test_the_clip_comes_after_the_scale(padded):
    batch = of_lengths(padded, [1, 1, 1], [1.0, 0.0, -3.0])
    keys = AlgorithmKeys(reward_bias=0.5, reward_scaling=2.0, reward_clip=1.5)
    assert compose(keys, n_samples=3, max_new_tokens=4).credit(batch).score_S.tolist() == [1.5, 1.0, -1.5]


@pytest.fixture
def with_kl(golden, padded):
    rows = padded(golden("reward_kl_in_reward")["inputs"])
    return rows, rows.batch(prox_T=rows.tokens("logp"))


def test_kl_of_a_whole_sequence_is_subtracted_before_statistics(golden, close, with_kl):
    _, batch = with_kl
    expected = torch.tensor(golden("reward_kl_in_reward")["expected"]["sequence_level_reward"])
    credited = compose(AlgorithmKeys(kl_ctl=0.1), n_samples=4, max_new_tokens=8).credit(batch)
    close(credited.advantages_T, expected[batch.seq_T])
    assert credited.token_rewards_T is None  # crediting twice must not subtract twice
    keys = AlgorithmKeys(kl_ctl=0.1, adv_norm=NormConfig(mean_level="group", std_level=None))
    centred = compose(keys, n_samples=4, max_new_tokens=8).credit(batch)
    close(centred.advantages_T, (expected - expected.mean())[batch.seq_T])


@pytest.mark.parametrize(("discount", "expected"), [(1.0, "returns"), (0.9, "returns_gamma09")])
def test_kl_of_a_token_is_paid_by_what_follows_from_it(golden, close, with_kl, discount, expected):
    rows, batch = with_kl
    keys = AlgorithmKeys(kl_ctl=0.1, credit="reward_to_go", discount=discount)
    credited = compose(keys, n_samples=4, max_new_tokens=8).credit(batch)
    close(rows.padded(credited.advantages_T), golden("reward_kl_in_reward")["expected"][expected])
    close(credited.returns_T, credited.advantages_T)


@pytest.mark.parametrize(("estimator", "paid"), [("k1", -0.1), ("k2", -0.05), ("k3", -0.0367879), ("abs", -0.1)])
def test_each_estimator_and_its_sign(padded, close, estimator, paid):
    batch = padded({"mask": [[1.0]], "rewards": [0.0]}).batch(
        prox_T=torch.tensor([-1.0]),
        ref_T=torch.tensor([-2.0]),  # the policy is too sure
    )
    algorithm = compose(AlgorithmKeys(kl_ctl=0.1, kl_estimator=estimator), n_samples=1, max_new_tokens=8)
    assert algorithm.needs == {"prox", "ref"}
    close(algorithm.credit(batch).advantages_T, [paid])


def test_the_whole_vocabulary_in_place_of_an_estimate(padded, close):
    batch = padded({"mask": [[1.0, 1.0]], "rewards": [1.0]}).batch(
        prox_T=torch.zeros(2), ref_T=torch.zeros(2), kl_full_T=torch.tensor([0.5, 0.25])
    )
    keys = AlgorithmKeys(kl_ctl=0.1, kl_estimator="full", credit="reward_to_go")
    algorithm = compose(keys, n_samples=1, max_new_tokens=8)
    assert "kl_full_score" in algorithm.needs
    close(algorithm.credit(batch).advantages_T, [1 - 0.075, 1 - 0.025])
    with pytest.raises(ValueError, match="kl_full_T"):
        algorithm.credit(batch.with_(kl_full_T=None))
    broken = algorithm.credit(batch.with_(kl_full_T=torch.tensor([0.5, float("nan")])))
    assert broken.valid_S.tolist() == [False]


def test_a_missing_stream_is_named(padded):
    batch = padded({"mask": [[1.0]], "rewards": [0.0]}).batch(prox_T=torch.tensor([-1.0]))
    algorithm = compose(AlgorithmKeys(kl_ctl=0.1), n_samples=1, max_new_tokens=8)
    with pytest.raises(ValueError, match="ref_T"):
        algorithm.credit(batch)


# ---- several rewards, each by its own statistics


def with_parts(padded, parts, **streams):
    rows = len(parts)
    batch = padded({"mask": [[1.0]] * rows, "rewards": [0.0] * rows}).batch(**streams)
    return batch.with_(
        parts_SR=torch.tensor(parts, dtype=torch.float64), score_S=torch.zeros(rows, dtype=torch.float64)
    )


def test_rewards_of_unlike_spread_count_alike_when_each_is_normalised(padded, close):
    """The first differs by 100, the second by 1: of their plain sum the second is a hundredth."""
    batch = with_parts(padded, [[0.0, 1.0], [100.0, 0.0], [0.0, 0.0], [100.0, 1.0]])
    each = PartsNorm(Norm(Center(True), Scale(True, eps=0.0)), (1.0, 1.0))
    z = 0.75**0.5  # of two right among four, with n - 1
    close(each(batch, batch.valid_S).score_S, [0.0, 0.0, -2 * z, 2 * z])
    weighted = PartsNorm(each.norm, (2.0, -0.5))
    close(weighted(batch, batch.valid_S).score_S, [-2.5 * z, 2.5 * z, -1.5 * z, 1.5 * z])
    as_sum = keys_per_part(False), keys_per_part(True)
    found = [
        compose(keys, n_samples=4, max_new_tokens=8, part_weights=(1.0, 1.0)).credit(
            batch.with_(reward_S=batch.parts_SR.sum(1))
        ).score_S
        for keys in as_sum
    ]  # fmt: skip
    assert float(found[0][0] - found[0][2]) < 0.02  # normalised as a whole the second reward has next to no say
    close(found[1], [0.0, 0.0, -2 * z, 2 * z], atol=1e-4)


def keys_per_part(each):
    return AlgorithmKeys(reward_norm=NormConfig(mean_level="group", std_level="group"), reward_norm_per_part=each)


def test_parts_come_first_and_need_no_task_reward_of_their_own(padded):
    algorithm = compose(
        replace(keys_per_part(True), reward_bias=1.0, overlong_reward_penalty=True),
        n_samples=4, max_new_tokens=8, part_weights=(1.0, 0.5),
    )  # fmt: skip
    assert [type(part).__name__ for part in algorithm.shape] == ["PartsNorm", "Overlong", "Bias"]
    assert algorithm.shape[0].weights == (1.0, 0.5)
    assert algorithm.needs == {"parts"}


@pytest.mark.parametrize("missing", [float("nan"), float("inf")])
def test_a_sample_without_a_value_of_one_function_gets_zero_from_it(padded, close, missing):
    batch = with_parts(padded, [[1.0, missing], [0.0, 3.0], [0.5, 1.0]])
    each = PartsNorm(Norm(Center(True), None), (1.0, 1.0))
    close(each(batch, batch.valid_S).score_S, [0.5, 0.5, -1.0])
    counted_S = torch.tensor([True, False, True])
    close(each(batch, counted_S).score_S, [0.25, 0.0, -0.25])


def test_as_many_weights_as_parts(padded):
    batch = with_parts(padded, [[1.0, 2.0]])
    with pytest.raises(ValueError, match="1 reward weights for 2 reward parts"):
        PartsNorm(Norm(Center(True), None), (1.0,))(batch, batch.valid_S)
    with pytest.raises(ValueError, match="parts_SR"):
        PartsNorm(Norm(Center(True), None), (1.0,))(batch.with_(parts_SR=None), batch.valid_S)


# ---- what is switched off


@pytest.mark.parametrize(
    "keys",
    [
        AlgorithmKeys(overlong_reward_penalty=False, overlong_tokens=None),
        AlgorithmKeys(overlong_reward_penalty=False, overlong_tokens=10**6, overlong_penalty_factor=9.0),
        AlgorithmKeys(overlong_tokens=1),
        load_config(AlgorithmKeys, overrides=["overlong_reward_penalty=false", "overlong_tokens=null"]).value,
        load_config(AlgorithmKeys, overrides=["reward_norm=null", "dynamic_sampling=null", "correction=null"]).value,
    ],
    ids=["without lengths", "with absurd ones", "with one alone", "null", "other sections null"],
)
def test_the_settings_of_a_feature_that_is_off_are_neither_judged_nor_used(make_batch, keys):
    found, plain = (compose(k, n_samples=4, max_new_tokens=6) for k in (keys, AlgorithmKeys()))
    assert found == plain
    assert torch.equal(found.credit(make_batch()).score_S, make_batch().reward_S.double())


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Overlong(100, 20, 0.5), "r + 0.5 · clip((80 - |o|)/20, -1, 0)"),
        (Right(0.5), "1[r ≥ 0.5]"),
        (Bias(0.5), "r + 0.5"),
        (Factor(2.0), "2 · r"),
        (Clip(1.5), "clip(r, -1.5, 1.5)"),
        (RewardNorm(Norm(Center(True), None)), "r - mean(group)"),
        (PartsNorm(Norm(Center(True), None), (1.0, 0.5)), "Σ_k c_k (r_k - mean(group)), c = 1, 0.5"),
        (KlInReward(0.1, k1), "r_t - 0.1 · k1(π_old ‖ π_ref)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_formulas(part, said):
    assert part.formula() == said
