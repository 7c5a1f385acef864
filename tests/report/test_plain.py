"""One aligned line per step, and samples that cannot break out of their line."""

from partita.report.plain import group_text, header_lines, sample_lines, step_line
from partita.report.records import SampleView, StepRecord
from partita.report.view import OFFLINE_COLUMNS, Headline, RunView

FULL = {
    "reward/mean": 0.2344, "response_length/mean": 12.34, "kl_ref/k3": 0.00123, "entropy": 1.234,
    "clip_fraction": 0.0101,
    "tokens_per_second": 412.4, "time/sample": 4.2, "time/score": 0.01, "time/learn": 4.0, "time/step": 8.4,
}  # fmt: skip


def view_at(step: int, metrics: dict[str, float]) -> RunView:
    view = RunView("numbers", 25, clock=lambda: 0.0)
    view.add(StepRecord(step, metrics))
    return view


def test_a_full_line() -> None:
    assert step_line(view_at(7, FULL)) == (
        "step  7/25  reward  0.234  len  12.3  kl_ref 0.0012  ent  1.23  clip 0.010    412 tok/s"
        "    8.4 s (sample 4.2 learn 4.0)  eta 2m31s"
    )


def test_absent_metrics_are_absent_and_the_last_step_has_no_time_left() -> None:
    assert step_line(view_at(25, {"reward/mean": -1.0, "time/step": 120.0})) == "step 25/25  reward -1.000  120.0 s"


def test_trouble_stands_at_the_end_of_the_line() -> None:
    line = step_line(view_at(25, {"dead_steps": 2.0, "nonfinite_steps": 0.0, "reward/error_share": 0.125}))
    assert line == "step 25/25    0.0 s  dead_steps 2  reward_errors 12.5%"


def test_a_value_that_is_not_finite_is_shown_as_such() -> None:
    assert "reward    nan" in step_line(view_at(1, {"reward/mean": float("nan")}))


def test_header_aligns_facts_and_continuations() -> None:
    view = RunView("numbers\x1b[31m", 25, clock=lambda: 0.0, facts={"model": "tiny", "inactive": "a\nb"})
    assert header_lines(view) == [
        "partita  numbers  25 steps",
        "  model     tiny",
        "  inactive  a",
        "            b",
    ]


def test_injection_is_cleaned_and_markup_is_text() -> None:
    sample = SampleView("p\nq", "<script>alert(1)</script> [bold]x[/bold] \x1b[31m\nstep 9/9", (1.0, None, 0.5), 0, "4")
    assert sample_lines(3, sample) == [
        "sample  step 3  reward 1  group [1] error 0.5 (mean 0.75)",
        "  prompt    p\\nq",
        "  response  <script>alert(1)</script> [bold]x[/bold] \\nstep 9/9",
        "  answer    4",
    ]


def test_a_megabyte_is_shortened() -> None:
    lines = sample_lines(1, SampleView("", "a" * 1_000_000, (0.0,), 0))
    assert len(lines) == 3
    assert len(lines[2]) < 460
    assert "[999,600 characters]" in lines[2]


def test_a_large_group_is_counted() -> None:
    assert group_text(SampleView("", "", (1.0,) * 64, 0)) == "[1] " + "1 " * 15 + "… 48 more (mean 1)"
    assert group_text(SampleView("", "", (None,), 0)) == "[error]"


def test_a_line_of_training_on_data_has_what_that_is_about() -> None:
    view = RunView("pairs", 25, clock=lambda: 0.0, headline=Headline("loss", "loss", "loss", OFFLINE_COLUMNS))
    known = {"loss": 0.6875, "preference/accuracy": 0.75, "preference/margin": 0.1, "grad_norm": 2.5, "entropy": 1.0}
    view.add(StepRecord(7, known | {"tokens_per_second": 412.4, "time/step": 8.0}))
    assert step_line(view) == (
        "step  7/25  loss  0.6875  accuracy 0.750  margin  0.100  grad   2.50    412 tok/s    8.0 s  eta 2m24s"
    )
