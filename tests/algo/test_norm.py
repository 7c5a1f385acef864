"""Advantage statistics against golden numbers and by hand, in permuted and unequal groups."""

import pytest
import torch

from partita.algo.norm import Center, EmaCenter, EmaScale, Norm, Scale, Units, constant_groups
from partita.ops.segments import dense_ids

EPS = 1e-6
GROUP, BATCH = Center(per_group=True), Center(per_group=False)
LOO = Center(per_group=True, leave_one_out=True)
Z = Norm(GROUP, Scale(per_group=True, eps=EPS))
POPULATION = Scale(per_group=True, unbiased=False, eps=EPS, eps_inside=True)
NORMS = {
    "adv_batch_level": Norm(BATCH, Scale(per_group=False, eps=1e-5)),
    "adv_drgrpo": Norm(GROUP, None),
    "adv_grpo_population_std_eps_inside": Norm(GROUP, POPULATION),
    "adv_grpo_sample_std": Z,
    "adv_liteppo_centered_std": Norm(GROUP, Scale(per_group=False, eps=1e-5)),
    "adv_liteppo_raw_batch_std": Norm(GROUP, Scale(per_group=False, eps=1e-4, of_raw=True)),
    "adv_rloo": Norm(LOO, None),
}


def units(group_ids, counted=None):
    group_N, groups = dense_ids(torch.as_tensor(group_ids))
    return Units(group_N, groups, torch.ones_like(group_N, dtype=torch.bool) if counted is None else counted)


def normal(norm, values, group_ids, counted=None):
    return norm(torch.as_tensor(values, dtype=torch.float64), units(group_ids, counted))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_advantages_in_any_order_of_rows(golden, close, name, seed):
    case = golden(name)
    rewards, ids = torch.tensor(case["inputs"]["rewards"]).double(), torch.tensor(case["inputs"]["group_ids"])
    order = torch.arange(len(ids))
    if seed is not None:
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    found = normal(NORMS[name], rewards[order], 100 - 7 * ids[order])
    close(found, torch.tensor(case["expected"]["advantages"])[order])


@pytest.mark.parametrize("eps", [1e-9, 1e-8, 1e-6, 1e-4, 0.0])
@pytest.mark.parametrize("scale", [None, "group", "batch"])
@pytest.mark.parametrize("loo", [False, True])
def test_eight_equal_single_precision_rewards_give_exactly_zero(golden, eps, scale, loo):
    rewards = torch.tensor(golden("adv_constant_group_fp32")["inputs"]["rewards"], dtype=torch.float32)
    norm = Norm(Center(True, loo), None if scale is None else Scale(per_group=scale == "group", eps=eps))
    assert norm(rewards, units([0] * 8)).tolist() == [0.0] * 8


def test_a_constant_group_is_zero_even_where_nothing_is_subtracted():
    assert normal(Norm(None, Scale(per_group=True)), [0.7, 0.7, 1.0, 0.0], [0, 0, 1, 1]).tolist()[:2] == [0.0, 0.0]


def test_batch_scaling_does_not_hide_groups_without_spread():
    norm = Norm(GROUP, Scale(per_group=False, of_raw=True))
    assert normal(norm, [1, 1, 0, 0], [0, 0, 1, 1]).tolist() == [0.0] * 4
    constant_P, present_P = constant_groups(torch.tensor([1.0, 1, 0, 0]), units([0, 0, 1, 1]))
    assert (constant_P.tolist(), present_P.tolist()) == ([True, True], [True, True])


@pytest.mark.parametrize(("unbiased", "expected"), [(True, "ddof1"), (False, "ddof0")])
def test_groups_of_two(golden, close, unbiased, expected):
    case = golden("adv_group_of_two")
    norm = Norm(GROUP, Scale(per_group=True, unbiased=unbiased, eps=0.0))
    close(normal(norm, case["inputs"]["rewards"], case["inputs"]["group_ids"]), case["expected"][expected])


@pytest.mark.parametrize("keep", [False, True])
def test_groups_of_one(golden, close, keep):
    case = golden("adv_singleton_groups")
    inputs, suffix = case["inputs"], "raw" if keep else "zero"
    z = Norm(Center(True, keep_single=keep), Scale(per_group=True, eps=EPS, keep_single=keep))
    loo = Norm(Center(True, leave_one_out=True, keep_single=keep), None)
    close(normal(z, inputs["rewards"], inputs["group_ids"]), case["expected"][f"grpo_{suffix}"])
    close(normal(loo, inputs["rewards"], inputs["group_ids"]), case["expected"][f"rloo_{suffix}"])


def test_unequal_interleaved_groups(golden, close):
    case = golden("adv_unequal_noncontiguous_groups")
    for name, norm in (("grpo", Z), ("drgrpo", Norm(GROUP, None)), ("rloo", Norm(LOO, None))):
        close(normal(norm, case["inputs"]["rewards"], case["inputs"]["group_ids"]), case["expected"][name])


def test_values_that_do_not_count_leave_no_trace(golden, close):
    case = golden("adv_nonfinite_rewards")
    rewards = torch.tensor(case["inputs"]["rewards"], dtype=torch.float64)
    for name, norm in (("grpo", Z), ("rloo", Norm(LOO, None))):
        close(normal(norm, rewards, case["inputs"]["group_ids"], torch.isfinite(rewards)), case["expected"][name])


def test_statistics_over_tokens_and_over_sequences(golden, close):
    case = golden("adv_token_weighted_norm")
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    rewards, ids = torch.tensor(case["inputs"]["rewards"]).double(), torch.tensor(case["inputs"]["group_ids"])
    seq_T = torch.repeat_interleave(torch.arange(4), mask.sum(1))
    norms = {"batch_norm": NORMS["adv_batch_level"], "group_mean": Norm(GROUP, None), "loo": Norm(LOO, None)}
    for name, norm in norms.items():
        over_tokens = normal(norm, rewards[seq_T], ids[seq_T])
        over_sequences = normal(norm, rewards, ids)[seq_T]
        sequence_name = "sequence_rloo" if name == "loo" else f"sequence_{name}"
        close(over_tokens, torch.tensor(case["expected"][f"token_{name}"])[mask])
        close(over_sequences, torch.tensor(case["expected"][sequence_name])[mask])


def test_whitening_conventions(golden, close):
    case = golden("adv_whiten_conventions")
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    values = torch.tensor(case["inputs"]["x"], dtype=torch.float64)[mask]
    scales = {
        "ddof1_rsqrt": Scale(per_group=False, eps=1e-8, eps_inside=True),
        "ddof0_clamped": Scale(per_group=False, eps=1e-8, eps_inside=True, unbiased=False),
        "ddof1_add_eps": Scale(per_group=False, eps=1e-5),
    }
    for name, scale in scales.items():
        found = normal(Norm(BATCH, scale), values, [0] * len(values))
        close(found, torch.tensor(case["expected"][name])[mask])


def test_whitening_a_single_value_gives_zero():
    assert normal(NORMS["adv_batch_level"], [3.0], [0]).tolist() == [0.0]


def test_no_value_counts():
    nothing = torch.zeros(3, dtype=torch.bool)
    assert normal(Z, [1.0, 0.0, 2.0], [0, 0, 1], nothing).tolist() == [0.0, 0.0, 0.0]


def test_prompts_sampled_in_turns_are_joined_by_id():
    # A, B, A, B: consecutive windows of two would give [-2, 2, -2, 2]
    assert normal(Norm(GROUP, None), [1, 5, 0, 4], [x == "A" for x in "ABAB"]).tolist() == [0.5, 0.5, -0.5, -0.5]


def test_a_rejected_sample_is_not_in_the_mean_of_its_group():
    counted = torch.tensor([False, True, True, True])
    assert normal(Z, [1.0, 0.0, 0.0, 0.0], [0] * 4, counted).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("rewards", "expected"), [([1, 0, 0, 1], [2 / 3, -2 / 3, -2 / 3, 2 / 3]), ([2, 0, 1], [1.5, -1.5, 0.0])]
)
def test_leave_one_out_excludes_the_sample_itself(close, rewards, expected):
    found = normal(Norm(LOO, None), rewards, [0] * len(rewards))
    close(found, expected)
    assert abs(float(found.sum())) < 1e-12


# ---- eps, its place, and whose deviation


def test_where_eps_stands_and_what_the_deviation_is_of(close):
    values, ids = [3.0, 1.0, 10.0, 10.0], [0, 0, 1, 1]  # centred by group: 1, -1, 0, 0
    raw = torch.tensor(values).double().std()
    for scale, divisor in (
        (Scale(per_group=False, eps=0.5), (2 / 3) ** 0.5 + 0.5),
        (Scale(per_group=False, eps=0.5, eps_inside=True), (2 / 3 + 0.5) ** 0.5),
        (Scale(per_group=False, eps=0.5, unbiased=False), 0.5**0.5 + 0.5),
        (Scale(per_group=False, eps=0.5, of_raw=True), float(raw) + 0.5),
        (Scale(per_group=True, eps=0.5), 2**0.5 + 0.5),
    ):
        close(normal(Norm(GROUP, scale), values, ids), [1 / divisor, -1 / divisor, 0.0, 0.0])


def test_a_scale_without_a_centre(close):
    close(normal(Norm(None, Scale(per_group=True, eps=0.0)), [3.0, 1.0], [0, 0]), [3 / 2**0.5, 1 / 2**0.5])


def test_leave_one_out_over_the_batch(close):
    close(normal(Norm(Center(per_group=False, leave_one_out=True), None), [3, 0, 0, 1], [0, 0, 1, 1]),
          [3 - 1 / 3, -4 / 3, -4 / 3, 1 - 1.0])  # fmt: skip


# ---- running statistics


def test_running_numbers_in_place_of_the_batch_s(close):
    norm = Norm(EmaCenter(0.25), EmaScale(0.75, eps=0.25, eps_inside=True))
    assert norm.running
    close(normal(norm, [1.25, 0.25, -0.75], [0, 0, 1]), [1.0, 0.0, -1.0])
    close(normal(Norm(EmaCenter(0.25), EmaScale(0.25, eps=0.5, eps_inside=False)), [1.25], [0]), [1.0])


def test_a_running_deviation_alone_keeps_the_group_s_zero(close):
    norm = Norm(GROUP, EmaScale(4.0, eps=0.0))
    assert norm.running
    close(normal(norm, [1.0, 0.0, 0.7, 0.7], [0, 0, 1, 1]), [0.25, -0.25, 0.0, 0.0])


def test_values_that_do_not_count_get_no_running_baseline():
    norm = Norm(EmaCenter(0.25), EmaScale(0.75))
    assert normal(norm, [float("nan"), 1.0], [0, 0], torch.tensor([False, True]))[0] == 0.0


def test_running_numbers_must_be_set_before_they_are_used():
    with pytest.raises(ValueError, match="running mean is not set"):
        normal(Norm(EmaCenter(), None), [1.0], [0])
    with pytest.raises(ValueError, match="running variance is not set"):
        normal(Norm(None, EmaScale()), [1.0], [0])
    assert not Z.running


def test_formulas_say_level_and_eps():
    assert Z.formula("r_i") == "(r_i - mean(group)) / (std(group) + 1e-06)"
    assert "others" in Norm(LOO, None).formula("r_i")
    raw = Norm(None, Scale(per_group=False, eps=0.1, eps_inside=True, of_raw=True)).formula("r")
    assert all(word in raw for word in ("sqrt", "batch", "raw", "0.1"))
    assert all(word in Norm(EmaCenter(), EmaScale(eps=0.1)).formula("r") for word in ("r - μ", "sqrt(σ² + 0.1)"))
