"""A whole run as a reader of each mode meets it."""

import io

import pytest

from partita.report.config import ConsoleMode
from partita.report.console import Console
from partita.report.records import RunSummary, SampleView, StepRecord
from partita.report.view import OFFLINE_COLUMNS, Headline

SUMMARY = RunSummary(
    "runs/numbers", {"evaluate": "partita eval runs/numbers", "export": "partita export x"}, ("held out 0.5",)
)


def play(mode: ConsoleMode, out: io.StringIO, steps: int = 4) -> str:
    console = Console(mode, 4, "numbers", sample_every=2, out=out, clock=iter(range(1000)).__next__)
    console.start({"model": "tiny"})
    console.warn("mind the \x1b[31mgap")
    for step in range(1, steps + 1):
        console.step(StepRecord(step, {"reward/mean": step / 4, "time/step": 2.0}))
        if console.sample_due(step):
            console.sample(SampleView("p", "[bold]r[/bold] \x1b[31m", (1.0, 0.0), 0))
    console.finish(SUMMARY)
    console.close()
    return out.getvalue()


def test_plain_mode_is_what_a_log_shows() -> None:
    lines = play("plain", io.StringIO()).splitlines()
    assert lines[:6] == [
        "partita  numbers  4 steps",
        "  model  tiny",
        "warning: mind the gap",
        "step 1/4  reward  0.250    2.0 s  eta 6.0s",
        "sample  step 1  reward 1  group [1] 0 (mean 0.5)",
        "  prompt    p",
    ]
    assert [line for line in lines if line.startswith("step")][-1] == "step 4/4  reward  1.000    2.0 s"
    assert lines.count("  response  [bold]r[/bold] ") == 3
    end = lines[lines.index("  reward by step") :]
    assert end[1].startswith("  1.0 ┤")
    assert end[12:] == [
        "",
        "  mean reward 0.375 → 0.875 (first 2 and last 2 steps), step 4 of 4 after 1.0s",
        "  held out 0.5",
        "  ! mind the gap",
        "",
        "  run folder  runs/numbers",
        "",
        "  next",
        "    evaluate  partita eval runs/numbers",
        "    export    partita export x",
    ]


def test_auto_is_plain_without_a_terminal() -> None:
    assert Console("auto", 4, "t", out=io.StringIO()).mode == "plain"


def test_quiet_shows_warnings_and_one_line() -> None:
    assert play("quiet", io.StringIO()).splitlines() == [
        "warning: mind the gap",
        "mean reward 0.375 → 0.875 (first 2 and last 2 steps), step 4 of 4 after 1.0s  runs/numbers",
    ]


def test_live_mode_draws_and_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = play("live", io.StringIO())
    assert "Partita" in text
    assert "numbers finished" in text
    assert "    evaluate  partita eval runs/numbers\n" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert "[bold]r[/bold]" in text


def test_a_run_that_stops_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "numbers stopped" in play("live", io.StringIO(), steps=2)


class AsciiOut(io.StringIO):
    """A stream as a C locale gives it."""

    encoding = "ascii"

    def write(self, text: str) -> int:
        return super().write(text.encode("ascii").decode())


def test_a_stream_that_cannot_encode_does_not_end_the_run() -> None:
    text = play("auto", AsciiOut())
    assert "0.375 -> 0.875" in text
    assert "*" in text


def test_a_resumed_run_shows_the_whole_curve() -> None:
    console = Console("plain", 4, "t", out=io.StringIO())
    console.start({}, [StepRecord(1, {"reward/mean": 0.0}), StepRecord(2, {"reward/mean": 0.5})])
    console.step(StepRecord(3, {"reward/mean": 1.0, "time/step": 3.0}))
    assert console.view.points("reward/mean") == [(1.0, 0.0), (2.0, 0.5), (3.0, 1.0)]
    assert console.view.eta == 3.0


def test_no_steps_still_end_well() -> None:
    assert "run folder  runs/numbers" in play("plain", io.StringIO(), steps=0)


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [1, 2, 3, 4]), (3, [1, 3])])
def test_when_samples_are_shown(every: int, due: list[int]) -> None:
    console = Console("plain", 4, "t", sample_every=every, out=io.StringIO())
    assert [step for step in range(1, 5) if console.sample_due(step)] == due


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_chart_and_last_line_are_of_the_headline(mode) -> None:
    out, told = io.StringIO(), Headline("preference/accuracy", "pairs ranked rightly", "accuracy", OFFLINE_COLUMNS)
    console = Console(mode, 2, "pairs", headline=told, out=out, clock=iter(range(1000)).__next__)
    console.start({})
    for step, value in ((1, 0.25), (2, 0.75)):
        console.step(StepRecord(step, {"preference/accuracy": value, "entropy": 9.0, "time/step": 2.0}))
    console.finish(SUMMARY)
    console.close()
    shown = out.getvalue()
    assert "pairs ranked rightly 0.250" in shown and "0.750 (first and last step)" in shown
    assert "9.0" not in shown and "mean reward" not in shown
    assert ("accuracy by step" in shown) or mode == "live"
