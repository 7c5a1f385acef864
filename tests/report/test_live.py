"""The live frame fits its terminal, shows what is there, and treats model text as text."""

import io

import pytest
from rich.console import Console

from partita.report.live import frame, header
from partita.report.records import SampleView, StepRecord
from partita.report.view import RunView

RESPONSE = "<script>alert(1)</script> [bold]x[/bold] \x1b[31mred\x1b[2J"


def run(steps: int, response: str = RESPONSE) -> RunView:
    view = RunView("numbers [red]", 25, clock=lambda: 90.0, facts={"model": "tiny [bold]", "advice": "a\nb"})
    for step in range(1, steps + 1):
        times = {"time/sample": 3.0, "time/learn": 1.0, "time/step": 5.0}
        view.add(StepRecord(step, {"reward/mean": step / 25, "entropy": 1.0, "reward/error_share": 0.1, **times}))
    view.sample = (steps, SampleView("Largest of 3, 9?", response, (1.0, 0.0, None), 1, "9"))
    return view


def draw(view: RunView, width: int, height: int) -> str:
    out = io.StringIO()
    size = {"width": width, "height": height}
    console = Console(file=out, force_terminal=True, color_system=None, markup=False, highlight=False, **size)
    console.print(frame(view, console))
    return out.getvalue()


def test_everything_is_there() -> None:
    text = draw(run(10), 100, 40)
    for part in (
        "step 10/25", "40%", "elapsed 1m30s", "eta 1m15s", "reward", "0.400", "entropy", "▁", "█", "■ sample 3.0",
        "Largest of 3, 9?", "answer 9", "1 [0] error (mean 0.5)", "samples whose reward failed: 10.0%", "⣀",
    ):  # fmt: skip
        assert part in text, part


def test_model_text_is_text() -> None:
    text = draw(run(10), 100, 30)
    assert "<script>alert(1)</script> [bold]x[/bold] red" in text
    assert "\x1b" not in text


def test_metrics_that_never_came_have_no_row() -> None:
    text = draw(run(3), 100, 30)
    assert "clip fraction" not in text
    assert "KL" not in text


def test_a_metric_that_stopped_is_absent_not_stale() -> None:
    view = run(3)
    view.add(StepRecord(4, {"reward/mean": 0.5}))
    line = next(line for line in draw(view, 100, 30).splitlines() if "entropy" in line)
    assert "absent" in line


@pytest.mark.parametrize("steps", [0, 1, 25])
@pytest.mark.parametrize(("width", "height"), [(60, 20), (60, 24), (100, 30), (100, 40), (200, 70)])
@pytest.mark.parametrize("response", [RESPONSE, "line\n" * 500, "x" * 1_000_000, "数学" * 200, ""])
def test_frame_fits_the_terminal(steps: int, width: int, height: int, response: str) -> None:
    view = run(steps, response)
    lines = draw(view, width, height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_tiny_terminal_does_not_end_the_run() -> None:
    assert max(map(len, draw(run(5), 20, 5).splitlines())) <= 20


def test_header_shows_facts_as_text() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, color_system=None)
    console.print(header(run(1)))
    text = out.getvalue()
    assert "Partita · numbers [red]" in text
    assert "tiny [bold]" in text
