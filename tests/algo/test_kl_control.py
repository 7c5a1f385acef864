"""Rules for KL coefficients: golden series, which coefficient, missing metrics, bounds, resuming, what they refuse."""

import json
import math
from dataclasses import replace

import pytest

from partita.algo.algorithm import Algorithm
from partita.algo.control import Bounds, Controls
from partita.algo.credit import Outcome
from partita.algo.gate import Open
from partita.algo.keep import KeepAll
from partita.algo.kl_control import KlCoefficient, PpoPenalty, Trend, Ziegler
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.ratio import TokenRatio
from partita.algo.reduce import TokenMean
from partita.algo.shape import Bias, KlInReward
from partita.ops.divergence import k1, k3

METRICS = [
    {
        "kl_ref/sequence": kl,
        "samples": 64.0,
        "kl_ref/k3": kl / 100,
        "kl_step/k3": kl / 200,
        "kl_after/k3": kl / 200,
        "reward/mean": reward,
    }
    for kl, reward in ((1.0, 0.1), (2.0, 0.2), (4.0, 0.2), (9.0, 0.1), (2.0, 0.0), (1.0, 0.0), (7.0, 0.3))
]
COEFFICIENTS = {
    "ziegler": lambda: KlCoefficient("loss", 0.1, Ziegler()),
    "penalty": lambda: KlCoefficient("step", 0.1, PpoPenalty()),
    "trend": lambda: KlCoefficient("reward", 0.1, Trend(window=3)),
}


@pytest.fixture
def algorithm():
    """A coefficient at each place."""
    return Algorithm(
        keep=KeepAll(), shape=(Bias(1.0), KlInReward(0.1, k1)), assign=Outcome(), norm=None, rows=(),
        reduce=TokenMean(), ratio=TokenRatio(), gate=Open(),
        penalties=(KlLoss(0.2, k3), StepKl(0.3, k3), EntropyBonus(0.4)),
    )  # fmt: skip


def coefs(algorithm):
    return [part.coef for part in (algorithm.shape[1], *algorithm.penalties)]


def moved(controller, steps):
    """The coefficient after each step."""
    found = []
    for metrics in steps:
        controller.observe(metrics)
        found.append(controller.state_dict()["coef"])
    return found


def test_ziegler_counts_nats_per_sequence(golden, close):
    case = golden("ctl_ziegler_kl")
    config = case["config"]
    rule = KlCoefficient("loss", config["beta0"], Ziegler(config["target"], config["horizon"]))
    steps = [{"kl_ref/sequence": kl, "samples": config["n_steps"], "kl_ref/k3": 1e3} for kl in case["inputs"]["kl"]]
    close(moved(rule, steps), case["expected"]["beta_after"])


def test_ppo_penalty_halves_and_doubles(golden, close):
    case = golden("ctl_ppo_penalty_beta")
    rule = KlCoefficient("step", case["config"]["beta0"], PpoPenalty(case["config"]["d_targ"]))
    steps = [{"kl_after/k3": kl, "kl_ref/k3": 1e3} for kl in case["inputs"]["kl"]]
    close(moved(rule, steps), case["expected"]["beta_after"])


def test_both_edges_of_ppo_penalty_keep_the_coefficient():
    for kl in (0.5 / 1.5, 0.5 * 1.5):
        assert moved(KlCoefficient("step", 1.0, PpoPenalty(0.5)), [{"kl_after/k3": kl}]) == [1.0]


def test_ziegler_moves_in_proportion_to_the_samples(close):
    for samples, expected in ((0.0, 1.0), (100.0, 1.1), (500.0, 1.5)):
        rule = KlCoefficient("loss", 1.0, Ziegler(target=10.0, horizon=100.0))
        close(moved(rule, [{"kl_ref/sequence": 11.0, "samples": samples}]), [expected])


def test_trend_compares_two_slopes(golden, close):
    case = golden("ctl_kl_trend")
    config = case["config"]
    trend = Trend(config["window"], config["kl_slope_hi"], config["reward_slope_lo"], config["factor"])
    steps = [
        {"kl_ref/k3": kl, "reward/mean": reward, "kl_step/k3": 0.0}
        for kl, reward in zip(case["inputs"]["kl"], case["inputs"]["reward"], strict=True)
    ]
    close(moved(KlCoefficient("loss", config["beta0"], trend), steps), case["expected"]["beta_after"])


def test_a_flat_reward_does_not_improve_whatever_its_digits(close):
    trend = KlCoefficient("loss", 0.9, Trend(window=5))  # a plain sum of five times 0.7 leaves a slope above 0
    close(moved(trend, [{"kl_ref/k3": 0.1, "reward/mean": 0.7}] * 6)[3:], [0.9, 0.6, 0.4])
    growing = [{"kl_ref/k3": 0.1, "reward/mean": 0.1 * step} for step in range(4)]
    close(moved(KlCoefficient("loss", 0.9, Trend(window=3)), growing), [0.9] * 4)


@pytest.mark.parametrize(
    ("place", "index", "metric"), [("reward", 0, "kl_ref/k3"), ("loss", 1, "kl_ref/k3"), ("step", 2, "kl_step/k3")]
)
@pytest.mark.parametrize("rule", [PpoPenalty(0.01), Trend(window=2, factor=2.0)], ids=["penalty", "trend"])
def test_one_coefficient_is_moved_by_the_kl_that_it_multiplies(algorithm, place, index, metric, rule):
    controller = KlCoefficient(place, 5.0, rule)
    # the paper's rule looks at a step when it is over
    metric = "kl_after/k3" if place == "step" and isinstance(rule, PpoPenalty) else metric
    for kl in (0.02, 0.08) if isinstance(rule, Trend) else (0.08,):
        controller.observe({"kl_ref/k3": 0.0, "kl_step/k3": 0.0, "kl_after/k3": 0.0, "reward/mean": 0.0} | {metric: kl})
    expected = coefs(algorithm)
    expected[index] = 10.0
    found = controller.apply(algorithm)
    assert coefs(found) == expected
    assert found.shape[0] == Bias(1.0)
    assert controller.apply(found) == found


@pytest.mark.parametrize("make", COEFFICIENTS.values(), ids=COEFFICIENTS)
@pytest.mark.parametrize("saved", [0, 1, 2, 5])
def test_a_resumed_rule_goes_on_as_if_it_had_not_stopped(make, saved):
    whole = moved(make(), METRICS)
    assert len(set(whole)) > 2
    first, second = make(), make()
    moved(first, METRICS[:saved])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert second.state_dict() == first.state_dict()
    assert moved(second, METRICS[saved:]) == whole[saved:]


def test_a_rule_that_takes_over_from_another_keeps_the_coefficient(close):
    trend, penalty = COEFFICIENTS["trend"](), KlCoefficient("reward", 0.1, PpoPenalty())
    moved(trend, METRICS[:4])
    assert set(trend.state_dict()) == {"coef", "kl_ref/k3/0", "kl_ref/k3/1", "reward/mean/0", "reward/mean/1"}
    penalty.load_state_dict(trend.state_dict())
    assert penalty.state_dict()["coef"] == trend.state_dict()["coef"] != 0.1
    ziegler = KlCoefficient("reward", 0.1, Ziegler())
    ziegler.load_state_dict(trend.state_dict())
    assert ziegler.state_dict() == {"coef": trend.state_dict()["coef"]}
    shorter = KlCoefficient("reward", 0.1, Trend(window=2))
    shorter.load_state_dict(trend.state_dict())
    before = shorter.state_dict()["coef"]
    close(moved(shorter, METRICS[4:5]), [before / 1.5])


@pytest.mark.parametrize("make", COEFFICIENTS.values(), ids=COEFFICIENTS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_metric_that_is_absent_or_not_finite_changes_nothing(make, value):
    controller = make()
    moved(controller, METRICS[:4])
    before = controller.state_dict()
    for missing in controller.reads:  # one missing number is enough
        there = {name: number for name, number in METRICS[6].items() if name != missing}
        controller.observe(there if value is None else there | {missing: value})
        assert controller.state_dict() == before
    controller.observe(METRICS[6])
    assert controller.state_dict() != before


@pytest.mark.parametrize(
    ("rule", "up", "down"),
    [
        (Ziegler(horizon=100), {"kl_ref/sequence": 60.0, "samples": 90.0}, {"kl_ref/sequence": -1.0, "samples": 90.0}),
        (PpoPenalty(), {"kl_ref/k3": 1.0}, {"kl_ref/k3": 0.0}),
    ],
    ids=["ziegler", "penalty"],
)
def test_a_coefficient_stays_within_its_bounds(rule, up, down):
    controller = KlCoefficient("loss", 0.11, rule, Bounds(0.1, 0.12))
    assert moved(controller, [up] * 3 + [down] * 3)[2:] == [0.12, pytest.approx(0.1, rel=0.02), 0.1, 0.1]


def test_trend_stays_within_its_bounds():
    steep = [{"kl_ref/k3": 0.1 * step, "reward/mean": 0.0} for step in range(4)]
    flat = [{"kl_ref/k3": 0.3, "reward/mean": 0.0}] * 6
    controller = KlCoefficient("loss", 0.11, Trend(window=2), Bounds(0.1, 0.12))
    found = moved(controller, steep + flat)
    assert (found[3], found[-1]) == (0.12, 0.1)


def test_coefficients_that_cannot_be(algorithm):
    with pytest.raises(ValueError, match="PpoPenalty or Trend"):
        KlCoefficient("step", 0.1, Ziegler())
    with pytest.raises(ValueError, match=r"kl_loss: the start 0 is outside its bounds, 1e-05 to 1"):
        KlCoefficient("loss", 0.0, PpoPenalty(), Bounds(1e-5, 1.0))
    bare = replace(algorithm, shape=(), penalties=())
    for place, part in (("reward", "KlInReward"), ("loss", "KlLoss"), ("step", "StepKl")):
        with pytest.raises(ValueError, match=f"no {part} whose coefficient"):
            KlCoefficient(place, 0.1, PpoPenalty()).apply(bare)
    with pytest.raises(ValueError, match="distinct names"):
        Controls((KlCoefficient("loss", 0.1, PpoPenalty()), KlCoefficient("loss", 0.1, Trend())))
