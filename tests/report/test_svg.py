"""The picture is well-formed XML whatever the title, and its points lie where they belong."""

import math
from xml.etree import ElementTree

import pytest

from partita.report.svg import curve_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_text_is_escaped_and_cleaned() -> None:
    svg = curve_svg([(1, 0.0), (2, 1.0)], "<script>alert(1)</script> & \x1b[31m\x00", y_label='a "b"')
    assert "<script" not in svg
    assert "<script>alert(1)</script> & " in texts(svg)
    assert 'a "b"' in texts(svg)


def test_axes_carry_the_numbers() -> None:
    found = texts(curve_svg([(step, step / 25) for step in range(1, 26)], "reward"))
    assert {"0.0", "0.2", "1.0", "5", "25", "step", "reward"} <= set(found)


def test_ends_of_the_curve_lie_on_the_frame() -> None:
    root = ElementTree.fromstring(curve_svg([(1, 0.0), (3, 1.0)], "t"))
    (line,) = root.iter(f"{NAMESPACE}polyline")
    assert line.get("points") == "64.0,308.0 696.0,48.0"


def test_smoothing_is_the_mean_of_the_last_three() -> None:
    root = ElementTree.fromstring(curve_svg([(step, float(step == 10)) for step in range(1, 11)], "t"))
    pale, strong = (line.get("points", "").split() for line in root.iter(f"{NAMESPACE}polyline"))
    assert pale[-1] == "696.0,48.0"
    assert strong[-1] == f"696.0,{48 + 260 * 2 / 3:.1f}"


@pytest.mark.parametrize(
    "points", [[], [(1.0, 0.5)], [(1.0, math.nan)], [(5.0, 2.0), (5.0, 2.0)], [(0.0, 1e30), (1.0, 0.0)]]
)
def test_odd_inputs_give_a_picture(points: list[tuple[float, float]]) -> None:
    svg = curve_svg(points, "t")
    ElementTree.fromstring(svg)
    assert "nan" not in svg.lower().replace("system-ui", "")
