"""Charts of characters: hand-drawn small ones, and odd inputs that must not break a run."""

import math

import pytest

from partita.report.curve import Scale, sparkline, text_chart


def test_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 7], 8, ascii_only=True) == "_@"


def test_sparkline_averages_stretches_when_there_are_more_values_than_room() -> None:
    assert sparkline([0, 0, 0, 0, 7, 7, 7, 7], 2) == "▁█"
    assert len(sparkline([float(i) for i in range(1001)], 30)) == 30


def test_sparkline_of_nothing_one_level_and_nan() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([math.nan], 5) == ""
    assert sparkline([2.0, 2.0, math.nan], 5) == "▄▄"


def test_ascii_chart() -> None:
    assert text_chart([(1, 0.0), (2, 1.0)], width=10, height=3, ascii_only=True) == [
        "1 +     **",
        "  |  ***",
        "0 +**",
        "  +-------",
        "   1     2",
    ]


@pytest.mark.parametrize(
    "points", [[(1, 0.5)], [(1, -2.0), (2, -2.0)], [(3, 1e-9), (4, 3e-9)], [(1, 1e12), (2, -1e12)]]
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_charts_stay_in_their_box(points: list[tuple[float, float]], ascii_only: bool) -> None:
    lines = text_chart(points, width=40, height=6, ascii_only=ascii_only)
    assert len(lines) == 8
    assert max(map(len, lines)) <= 40
    assert not ascii_only or "".join(lines).isascii()


def test_values_that_are_not_finite_are_left_out() -> None:
    points = [(1.0, 0.0), (2.0, math.nan), (3.0, 1.0)]
    assert text_chart(points, width=30, height=4) == text_chart([points[0], points[2]], width=30, height=4)
    assert text_chart([(1.0, math.nan)], width=30, height=4) == []


@pytest.mark.parametrize(
    ("values", "most", "ticks"),
    [
        ([0.09, 0.91], 5, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([0.0, 100.0], 5, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
        ([-0.3, 0.3], 3, [-0.4, -0.2, 0.0, 0.2, 0.4]),
    ],
)
def test_ticks_are_round_numbers(values: list[float], most: int, ticks: list[float]) -> None:
    assert Scale.of(values, most=most).ticks == pytest.approx(ticks)


def test_whole_numbers_for_steps() -> None:
    assert Scale.of([1.0, 3.0], most=8, whole=True).ticks == [1.0, 2.0, 3.0]
