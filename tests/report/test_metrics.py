"""Means are weighted by counts however the work was split; absent is absent; NaN is counted apart."""

import math
import pickle

import pytest
import torch

from partita.report.metrics import Metrics, Tally, Timer


def test_mean_is_sum_over_count_not_mean_of_means() -> None:
    first, second = Metrics(), Metrics()
    first.add({"clip_fraction": (2.0, 10.0)})
    second.add({"clip_fraction": (3.0, 5.0)})
    first.merge(second)
    assert first.as_dict() == {"clip_fraction": pytest.approx(5 / 15)}


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_any_split_into_micro_batches_gives_the_same_values(size: int) -> None:
    values = [0.5, -1.0, 2.0, 0.25, 3.0, 8.0, -4.0, 0.0, 1.0, 1.5, 7.0, -2.0]
    merged = Metrics()
    for start in range(0, len(values), size):
        part = Metrics()
        part.observe("kl", values[start : start + size])
        merged.merge(part)
    assert merged.as_dict() == {"kl": pytest.approx(16.25 / 12), "kl/min": -4.0, "kl/max": 8.0}


def test_nan_and_absent_values_leave_the_mean_alone() -> None:
    metrics = Metrics()
    metrics.observe("accuracy", [0.2, None, math.nan, 0.6])
    assert metrics["accuracy"].mean == pytest.approx(0.4)
    assert (metrics["accuracy"].count, metrics["accuracy"].nan_count) == (2, 1)
    assert metrics.as_dict()["accuracy/nan_count"] == 1.0


def test_only_nan_has_no_mean_and_nothing_has_no_entry() -> None:
    metrics = Metrics()
    metrics.add({"loss": (math.inf, 1.0), "unused": (0.0, 0.0)})
    metrics.observe("empty", [])
    assert metrics.as_dict() == {"loss/nan_count": 1.0}


def test_zero_count_with_a_nan_sum_adds_nothing() -> None:
    metrics = Metrics()
    metrics.add({"masked": (torch.tensor(math.nan), torch.tensor(0))})
    assert metrics.as_dict() == {}


def test_tensors_of_several_types_become_plain_floats() -> None:
    metrics = Metrics()
    sums = torch.full((4096,), -1.2345).double().sum()
    metrics.add({"logprob": (sums, torch.tensor(4096)), "half": (torch.tensor(0.5, dtype=torch.bfloat16), 2.0)})
    values = metrics.as_dict()
    assert values == {"logprob": pytest.approx(-1.2345, abs=1e-6), "half": 0.25}
    assert all(type(value) is float for value in values.values())


def test_large_counts_stay_exact() -> None:
    metrics = Metrics()
    metrics.add({"tokens": (torch.tensor(2**24 + 1), None)})
    metrics.add({"tokens": (2.0, None)})
    assert metrics.as_dict() == {"tokens": 2**24 + 3}


def test_gradients_do_not_stop_a_statistic() -> None:
    metrics = Metrics()
    metrics.add({"loss": (torch.tensor(3.0, requires_grad=True) * 2, 1.0)})
    metrics.observe("ratio", torch.ones(3, requires_grad=True))
    assert metrics.as_dict() == {"loss": 6.0, "ratio": 1.0, "ratio/min": 1.0, "ratio/max": 1.0}


def test_extremes_stand_beside_a_mean() -> None:
    metrics = Metrics()
    metrics.observe("reward/mean", [1.0, 0.0])
    assert set(metrics.as_dict()) == {"reward/mean", "reward/min", "reward/max"}


def test_parts_average_over_the_samples_that_have_them() -> None:
    rows_a = [{"score": 1.0, "format": 1.0}, {"score": 0.0}, {"score": 1.0}, {"score": 1.0, "format": 0.0}]
    rows_b = [{"score": 0.0}, {"score": 1.0}]
    metrics = Metrics()
    metrics.observe_rows("a", rows_a)
    metrics.observe_rows("b", rows_b)
    values = metrics.as_dict()
    assert values["a/score"] == 0.75
    assert values["a/format"] == 0.5
    assert metrics["a/format"].count == 2
    assert values["b/score"] == 0.5
    assert "b/format" not in values


def test_counters_add_up_and_a_bad_one_is_counted_apart() -> None:
    metrics, other = Metrics(), Metrics()
    metrics.count("dead_steps")
    other.count("dead_steps", 2)
    metrics.merge(other)
    metrics.count("dead_steps", math.nan)
    assert metrics.as_dict() == {"dead_steps": 3.0, "dead_steps/nan_count": 1.0}


def test_put_averages_without_extremes() -> None:
    metrics = Metrics()
    metrics.put("lr", 1e-6)
    metrics.put("lr", 3e-6)
    assert metrics.as_dict() == {"lr": pytest.approx(2e-6)}


def test_metrics_travel_between_ranks() -> None:
    metrics = Metrics()
    metrics.observe("reward/mean", [1.0, 0.5])
    assert pickle.loads(pickle.dumps(metrics)).as_dict() == metrics.as_dict()


def test_merging_keeps_extremes_of_either_side() -> None:
    left, right = Tally(), Tally()
    right.observe(-3.0)
    left.merge(right)
    left.merge(Tally())
    assert (left.low, left.high, left.mean) == (-3.0, -3.0, -3.0)


def test_timer_adds_up_phases_also_when_they_fail() -> None:
    ticks = iter([0.0, 2.0, 10.0, 13.0, 20.0, 20.5])
    timer = Timer(clock=lambda: next(ticks))
    with timer.timed("sample"):
        pass
    with timer.timed("learn"):
        pass
    with pytest.raises(RuntimeError), timer.timed("sample"):
        raise RuntimeError
    assert timer.take() == {"time/sample": 2.5, "time/learn": 3.0}
    assert timer.take() == {}
