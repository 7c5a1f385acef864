"""The run as plain lines: one aligned line per step, easy to grep, for logs and pipes.

Left out: colours and anything that redraws; see `report.live`.
"""

from __future__ import annotations

import math

from partita.report.records import SampleView
from partita.report.text import clean, duration, one_line, prompt_tail, shorten
from partita.report.view import ALERTS, SPEED, RunView, phases, step_seconds

PROMPT_LIMIT, RESPONSE_LIMIT, ANSWER_LIMIT = 160, 400, 80


def header_lines(view: RunView) -> list[str]:
    """The title and one line per fact; a fact of several lines stays aligned."""
    margin = max((len(clean(name)) for name in view.facts), default=0)
    lines = [f"partita  {one_line(clean(view.title))}  {view.total_steps} steps"]
    for name, value in view.facts.items():
        first, *rest = clean(value).split("\n")
        lines += [f"  {clean(name):<{margin}}  {first}", *(f"  {'':<{margin}}  {line}" for line in rest)]
    return lines


def step_line(view: RunView) -> str:
    """The last step as one line; a metric that is absent in this step is absent from the line."""
    record = view.records[-1]
    digits = len(str(view.total_steps))
    cells = [f"step {record.step:>{digits}}/{view.total_steps}"]
    for column in view.headline.columns:
        value = record.metrics.get(column.metric)
        if value is not None and column.short is not None:
            cells.append(f"{column.short} {value:{column.format}}")
    speed = record.metrics.get(SPEED.metric)
    if speed is not None:
        cells.append(f"{speed:{SPEED.format}} {SPEED.short}")
    shares = " ".join(f"{name} {seconds:.1f}" for name, seconds in phases(record).items() if seconds >= 0.05)
    cells.append(f"{step_seconds(record):5.1f} s" + (f" ({shares})" if shares else ""))
    if view.eta is not None and record.step < view.total_steps:
        cells.append(f"eta {duration(view.eta)}")
    for alert in ALERTS:
        value = record.metrics.get(alert.metric, 0.0)
        if value > 0:
            cells.append(f"{alert.short} {value:.1%}" if alert.share else f"{alert.short} {value:g}")
    return "  ".join(cells)


def sample_lines(step: int, sample: SampleView) -> list[str]:
    """One sample of a group, each of prompt, response and answer on its own line."""
    lines = [
        f"sample  step {step}  reward {reward_text(sample.rewards[sample.shown])}  group {group_text(sample)}",
        f"  prompt    {one_line(prompt_tail(sample.prompt, PROMPT_LIMIT))}",
        f"  response  {one_line(shorten(sample.response, RESPONSE_LIMIT))}",
    ]
    return lines if sample.answer is None else [*lines, f"  answer    {one_line(shorten(sample.answer, ANSWER_LIMIT))}"]


def group_text(sample: SampleView, most: int = 16) -> str:
    """The rewards of the group, the shown one in brackets: `1 [0] 1 error (mean 0.667)`."""
    texts = [reward_text(reward) for reward in sample.rewards]
    texts[sample.shown] = f"[{texts[sample.shown]}]"
    known = [reward for reward in sample.rewards if reward is not None and math.isfinite(reward)]
    mean = f" (mean {sum(known) / len(known):.3g})" if known else ""
    more = f" … {len(texts) - most} more" if len(texts) > most else ""
    return " ".join(texts[:most]) + more + mean


def reward_text(reward: float | None) -> str:
    """Three digits, or `error` where there is no reward."""
    return "error" if reward is None else f"{reward:.3g}"
