"""Rules for statistics, entropy and clip range: golden series, bounds, missing metrics, resuming, what they refuse."""

import json
import math
from dataclasses import replace

import pytest
import torch

from partita.algo.algorithm import Algorithm
from partita.algo.control import Bounds, Controls
from partita.algo.controllers import AdaptiveEntropy, ClipFraction, EmaStatistics, IqrClip
from partita.algo.credit import Outcome
from partita.algo.gate import BandClip, MinClip, Open, Soft
from partita.algo.keep import KeepAll
from partita.algo.norm import Center, EmaCenter, EmaScale, Norm
from partita.algo.penalty import EntropyBonus, KlLoss
from partita.algo.ratio import TokenRatio
from partita.algo.reduce import TokenMean
from partita.algo.shape import Bias, RewardNorm
from partita.algo.stats import iqr
from partita.ops.divergence import k3

SMOOTHED = Norm(EmaCenter(), EmaScale(eps=1e-6, eps_inside=True))
RULES = {
    "seed_blog_never_decreases": lambda: AdaptiveEntropy(decrease=False, update_first=True, strict=True),
    "report_style_up_down_same_step": lambda: AdaptiveEntropy(),
    "skywork_released_code_prev_step_gate": lambda: AdaptiveEntropy(
        delta=1e-4, same_step=False, strict=True, bounds=Bounds(0.0, 5e-3)
    ),
    "trl_prev_step_gate": lambda: AdaptiveEntropy(same_step=False, bounds=Bounds(0.0, 1.0)),
}
METRICS = [
    {"adv_norm/mean": 0.1 * t, "adv_norm/variance": 0.05 * t, "adv_norm/count": 4.0, "old_entropy": 0.25 - 0.03 * t,
     "entropy": 0.23 - 0.02 * t, "advantage/iqr": [0.0, 1.0, 0.4, 0.7, 2.0, 0.1][t], "clip_fraction": [0.2, 0.3, 0.0][t % 3]}
    for t in range(6)
]  # fmt: skip
CONTROLLERS = {
    "ema": lambda: EmaStatistics("adv_norm", 0.9, update_first=False, bias_corrected=True),
    "entropy": AdaptiveEntropy,
    "entropy of the last step": lambda: AdaptiveEntropy(same_step=False),
    "iqr": lambda: IqrClip(Bounds(0.1, 0.3)),
    "clip fraction": lambda: ClipFraction(0.2, Bounds(0.1, 0.4), factor=1.3),
}


@pytest.fixture
def algorithm():
    """Every part that a rule can set."""
    return Algorithm(
        keep=KeepAll(), shape=(Bias(0.0), RewardNorm(SMOOTHED)), assign=Outcome(), norm=SMOOTHED, rows=(),
        reduce=TokenMean(), ratio=TokenRatio(), gate=MinClip(0.2, 0.28),
        penalties=(KlLoss(0.04, k3), EntropyBonus(0.01)),
    )  # fmt: skip


def observed(controller, steps):
    """The state after each step, given everything that is known at its moment."""
    states = []
    for metrics in steps:
        controller.observe(metrics)
        states.append(controller.state_dict())
    return states


# ---- all of them


@pytest.mark.parametrize("make", CONTROLLERS.values(), ids=CONTROLLERS)
@pytest.mark.parametrize("saved", [0, 1, 3, 5])
def test_a_resumed_rule_goes_on_as_if_it_had_not_stopped(make, saved):
    whole = observed(make(), METRICS)
    assert len({json.dumps(state) for state in whole}) > 2  # something moved
    first, second = make(), make()
    observed(first, METRICS[:saved])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert second.state_dict() == first.state_dict()
    assert observed(second, METRICS[saved:]) == whole[saved:]


@pytest.mark.parametrize("make", CONTROLLERS.values(), ids=CONTROLLERS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_metric_that_is_absent_or_not_finite_changes_nothing(make, value):
    controller = make()
    before = observed(controller, METRICS[:3])[-1]
    controller.observe({} if value is None else dict.fromkeys(METRICS[0], value))
    assert controller.state_dict() == before


def test_each_rule_observes_at_its_own_moment(algorithm):
    controls = Controls(tuple(CONTROLLERS[name]() for name in ("ema", "entropy", "iqr")))
    before = controls.state_dict()
    controls.observe("after_epochs", METRICS[1])
    assert controls.state_dict() == before
    controls.observe("before_credit", METRICS[1])
    assert {name for name, state in controls.state_dict().items() if state != before[name]} == {"ema_adv_norm"}
    controls.observe("after_credit", METRICS[1] | {"old_entropy": 0.1})
    assert {name for name, state in controls.state_dict().items() if state != before[name]} == set(before)
    once = controls.apply(algorithm)
    assert controls.apply(once) == once != algorithm


def test_two_rules_for_one_clip_range_are_refused():
    with pytest.raises(ValueError, match="distinct names, got eps_clip, eps_clip"):
        Controls((IqrClip(Bounds(0.1, 0.3)), ClipFraction(0.2, Bounds(0.1, 0.3))))


# ---- running statistics


@pytest.mark.parametrize("order", ["update_then_use", "use_then_update"])
@pytest.mark.parametrize("init", ["first_batch", "bias_corrected"])
def test_smoothed_statistics(golden, padded, algorithm, close, order, init):
    case = golden("adv_ema_smoothed_stats")
    expected = case["expected"][f"{order}|{init}"]
    ema = EmaStatistics("adv_norm", case["config"]["beta"], order == "update_then_use", init == "bias_corrected")
    algorithm = replace(algorithm, shape=())
    for rewards, advantages, state in zip(
        case["inputs"]["reward_batches"], expected["advantages"], expected["state_after"], strict=True
    ):
        batch = padded({"rewards": rewards}).batch()
        ema.observe(algorithm.statistics(batch))
        close(ema.apply(algorithm).credit(batch).advantages_T, advantages)
        close([ema.state_dict()["mean"], ema.state_dict()["variance"]], state)


def test_a_smoothed_scale_alone_keeps_an_all_wrong_group_at_zero(golden, padded, algorithm, close):
    case = golden("adv_ema_std_only")
    norm = Norm(Center(per_group=True), EmaScale(eps=case["config"]["eps"], eps_inside=True))
    ema = EmaStatistics("adv_norm")
    ema.observe({"adv_norm/mean": 0.3, "adv_norm/variance": case["inputs"]["ema_var"], "adv_norm/count": 8.0})
    algorithm = ema.apply(replace(algorithm, shape=(), norm=norm))
    assert algorithm.norm.center == norm.center
    advantages_T = algorithm.credit(padded(case["inputs"]).batch()).advantages_T
    close(advantages_T, case["expected"]["advantages"])
    assert advantages_T[4:].tolist() == [0.0] * 4


def test_each_place_has_statistics_of_its_own(algorithm):
    advantages, rewards = EmaStatistics("adv_norm"), EmaStatistics("reward_norm")
    metrics = {f"{place}/{name}": value for place, values in (("adv_norm", (0.1, 0.2, 4.0)), ("reward_norm", (5.0, 9.0, 4.0)))
               for name, value in zip(("mean", "variance", "count"), values, strict=True)}  # fmt: skip
    advantages.observe(metrics)
    rewards.observe(metrics)
    found = rewards.apply(advantages.apply(algorithm))
    assert found.norm == Norm(EmaCenter(0.1), EmaScale(0.2, 1e-6, True))
    assert found.shape == (Bias(0.0), RewardNorm(Norm(EmaCenter(5.0), EmaScale(9.0, 1e-6, True))))
    assert Controls((advantages, rewards)).logged()["control/ema_reward_norm/mean"] == 5.0


@pytest.mark.parametrize("update_first", [True, False])
def test_an_empty_batch_is_no_batch(padded, algorithm, update_first):
    ema = EmaStatistics("adv_norm", update_first=update_first)
    algorithm = replace(algorithm, shape=())
    dead = padded({"rewards": [math.nan, math.inf]}).batch()
    ema.observe(algorithm.statistics(dead))
    assert ema.state_dict()["batches"] == 0
    assert ema.apply(algorithm).credit(dead).advantages_T.tolist() == [0.0, 0.0]  # the very first batch may be dead
    ema.observe(algorithm.statistics(padded({"rewards": [1.0, 0.0]}).batch()))
    before = ema.state_dict()
    ema.observe(algorithm.statistics(dead))
    assert ema.state_dict() == before
    ema.observe({"adv_norm/mean": 0.0, "adv_norm/variance": 0.0, "adv_norm/count": 0.0})
    assert ema.state_dict() == before


@pytest.mark.parametrize("update_first", [True, False])
@pytest.mark.parametrize("center", [EmaCenter(), None])
def test_without_any_spread_so_far_there_is_no_tiny_scale(padded, algorithm, update_first, center):
    ema = EmaStatistics("adv_norm", update_first=update_first)
    algorithm = replace(algorithm, shape=(), norm=replace(SMOOTHED, center=center))
    found = []
    for rewards in ([0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]):
        batch = padded({"rewards": rewards}).batch()
        ema.observe(algorithm.statistics(batch))
        found.append(ema.apply(algorithm).credit(batch).advantages_T.abs().max().item())
    assert max(found) < 10  # 1 / sqrt(eps) = 1000 where 0 counted as a scale
    assert found[:2] == ([0.0, 0.0] if center else [0.0, pytest.approx(1.0, abs=1e-5)])


def test_statistics_without_a_norm_that_takes_them_are_refused(algorithm):
    ema = EmaStatistics("adv_norm")
    for norm in (None, Norm(Center(per_group=True), None)):
        with pytest.raises(ValueError, match="ema_adv_norm: the algorithm's adv_norm has no EmaCenter or EmaScale"):
            ema.apply(replace(algorithm, norm=norm))
    with pytest.raises(ValueError, match="reward_norm has no"):
        EmaStatistics("reward_norm").apply(replace(algorithm, shape=(Bias(1.0),)))


# ---- entropy


def applied(algorithm, rule, entropies):
    """The bonus of each step of a run."""
    controls, found = Controls((rule,)), []
    for entropy in entropies:
        controls.observe("after_credit", {"old_entropy": entropy})
        kl, bonus = controls.apply(controls.apply(algorithm)).penalties
        assert kl == algorithm.penalties[0]
        found.append(bonus.coef)
        controls.observe("after_epochs", {"entropy": entropy})
    return found


@pytest.mark.parametrize("name", RULES)
def test_the_four_documented_entropy_rules(golden, algorithm, close, name):
    case = golden("ctl_adaptive_entropy")
    close(applied(algorithm, RULES[name](), case["inputs"]["entropy"]), case["expected"][name])


def test_a_coefficient_that_may_be_negative_runs_down(golden, algorithm, close):
    case = golden("ctl_adaptive_entropy")
    rule = AdaptiveEntropy(update_first=True, bounds=Bounds(-math.inf, math.inf))  # another reading of the report
    close(applied(algorithm, rule, case["inputs"]["entropy"]), case["expected"]["report_style_up_down_same_step"])
    rule = AdaptiveEntropy(update_first=True, bounds=Bounds(-math.inf, math.inf))
    close(applied(algorithm, rule, [0.3, 0.3, 0.3, 0.1]), [0.0, 0.0, 0.0, -0.01])
    close(applied(algorithm, AdaptiveEntropy(), [0.3, 0.3, 0.3, 0.1, 0.1]), [0.0, 0.0, 0.0, 0.0, 0.005])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (AdaptiveEntropy(start=0.01, delta=0.002), [0.01, 0.012]),
        (AdaptiveEntropy(start=0.01, delta=0.002, strict=True), [0.01, 0.008]),
        (AdaptiveEntropy(start=0.01, delta=0.002, strict=True, decrease=False), [0.01, 0.01]),
        (AdaptiveEntropy(start=0.01, delta=0.002, update_first=True), [0.012, 0.014]),
        (AdaptiveEntropy(start=0.01, delta=0.002, same_step=False), [0.0, 0.012]),
        (AdaptiveEntropy(start=0.01, delta=0.002, same_step=False, strict=True), [0.0, 0.0]),
    ],
)
def test_an_entropy_just_at_the_target(algorithm, close, rule, expected):
    close(applied(algorithm, rule, [0.2, 0.2]), expected)


@pytest.mark.parametrize("same_step", [True, False])
def test_the_entropy_coefficient_stays_within_its_bounds(same_step):
    rule = AdaptiveEntropy(same_step=same_step, start=0.01, bounds=Bounds(0.002, 0.011))
    low = [{"old_entropy": 0.1, "entropy": 0.1}] * 2
    high = [{"old_entropy": 0.3, "entropy": 0.3}] * 3
    assert [state["coef"] for state in observed(rule, low + high)] == pytest.approx([0.011, 0.011, 0.006, 0.002, 0.002])


def test_entropy_rules_that_cannot_be(algorithm):
    with pytest.raises(ValueError, match="update_first needs same_step"):
        AdaptiveEntropy(same_step=False, update_first=True)
    with pytest.raises(ValueError, match=r"entropy: the start 0\.5 is outside its bounds, 0 to 0\.1"):
        AdaptiveEntropy(start=0.5, bounds=Bounds(0.0, 0.1))
    with pytest.raises(ValueError, match="no EntropyBonus whose coefficient"):
        AdaptiveEntropy().apply(replace(algorithm, penalties=algorithm.penalties[:1]))


# ---- clip range


def bands(algorithm, rule, name, values):
    """(low, high) of the gate after each value of the metric."""
    found = []
    for value in values:
        rule.observe({name: value})
        gate = rule.apply(algorithm).gate
        found.append((gate.low, gate.high))
    return found


def test_a_clip_range_that_follows_the_spread_of_advantages(golden, algorithm, close):
    case = golden("ctl_adaptive_clip_iqr")
    spreads = [iqr(torch.tensor(batch, dtype=torch.float64)).item() for batch in case["inputs"]["advantage_batches"]]
    close(spreads, case["expected"]["iqr"])
    rule = IqrClip(Bounds(case["config"]["eps_min"], case["config"]["eps_max"]))
    even = replace(algorithm, gate=MinClip(0.2, 0.2, dual=3.0))
    found = bands(even, rule, "advantage/iqr", spreads)
    close(found, [(eps, eps) for eps in case["expected"]["eps"]])
    assert all(low == high for low, high in found)
    assert rule.apply(even).gate.dual == 3.0


def test_the_first_spread_above_zero_is_the_reference(algorithm, close):
    rule = IqrClip(Bounds(0.1, 0.3))
    assert rule.apply(algorithm).gate == MinClip(0.3, pytest.approx(0.42))  # 0.28 / 0.2 is kept
    found = bands(algorithm, rule, "advantage/iqr", [0.0, 0.0, 2.0, 1.0, 4.0, 0.0])
    close(found, [(0.3, 0.42), (0.3, 0.42), (0.3, 0.42), (0.2, 0.28), (0.3, 0.42), (0.1, 0.14)])
    assert rule.state_dict()["reference"] == 2.0


def test_a_clip_range_that_follows_the_clipped_share(golden, algorithm, close):
    case = golden("ctl_clip_fraction")
    config = case["config"]
    rule = ClipFraction(
        config["eps0"], Bounds(config["eps_min"], config["eps_max"]), config["up"], config["down"], config["factor"]
    )
    found = bands(algorithm, rule, "clip_fraction", case["inputs"]["clip_fraction"])
    close(found, [(eps, 1.4 * eps) for eps in case["expected"]["eps_after"]])


def test_a_clip_range_stays_within_its_bounds(algorithm, close):
    rule = ClipFraction(0.35, Bounds(0.3, 0.4))
    found = bands(replace(algorithm, gate=BandClip(0.2, 0.2)), rule, "clip_fraction", [0.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    close([low for low, _ in found], [0.385, 0.4, 0.4 / 1.1, 0.4 / 1.21, 0.4 / 1.331, 0.3])


def test_applied_twice_in_a_step_a_range_is_the_same(algorithm):
    rule = ClipFraction(0.2, Bounds(0.1, 0.4))
    rule.observe({"clip_fraction": 0.5})
    once = rule.apply(algorithm).gate
    twice = rule.apply(rule.apply(algorithm)).gate
    assert (twice.low, twice.high) == (once.low, pytest.approx(once.high, rel=1e-15))


@pytest.mark.parametrize("make", [lambda bounds: IqrClip(bounds), lambda bounds: ClipFraction(0.2, bounds)])
def test_clip_ranges_that_cannot_be(algorithm, make):
    for gate in (Soft(1.0, 1.05), Open()):
        with pytest.raises(ValueError, match=f"the gate {type(gate).__name__} has no clip range"):
            make(Bounds(0.1, 0.3)).apply(replace(algorithm, gate=gate))
    for low, high in ((0.0, 0.3), (0.3, 0.1), (0.1, math.inf)):
        with pytest.raises(ValueError, match="need 0 < min <= max, finite"):
            make(Bounds(low, high))


def test_a_range_that_starts_outside_its_bounds_is_refused():
    with pytest.raises(ValueError, match=r"eps_clip: the start 0\.0003 is outside its bounds, 0\.1 to 0\.3"):
        ClipFraction(3e-4, Bounds(0.1, 0.3))  # a sequence ratio's range under a token ratio's bounds
