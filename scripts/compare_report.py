"""Tables and pictures of the comparison of algorithms, from the lines that `compare.py` measured.

The tables are put into docs/comparison.md and docs/zh/comparison.md, between the marks of each.
Left out: what the pages say about them.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare_pictures import COLOURS, GREY, Layout, Panel, Series, panels_svg
from pages import ROOT

PARTS = ("tiny", "reasons", "lengths", "smollm2")
PAGES = {"en": ROOT / "docs" / "comparison.md", "zh": ROOT / "docs" / "zh" / "comparison.md"}
FIRST, LAST = slice(0, 3), slice(-3, None)
LATE = slice(-10, None)  # lengths of the few wrong answers at the end are noisy
WINDOWS = ((1, 3), (11, 30), (51, 70), (91, 110), (131, 150))
SMOOTH = 5  # steps of the trailing mean in pictures
NEEDED = 0.3  # the gain in reward that a run is meant to reach
BLUE, RED = COLOURS[0], COLOURS[1]
WORDS = {
    "en": {
        "preset": "preset", "reward": "reward, first 3 steps → last 3", "worst": "gain (worst seed)", "held": "held-out",
        "clip": "tokens cut", "correct": "length, correct", "incorrect": "length, incorrect", "entropy": "entropy",
        "kl": "KL of a step", "seconds": "s", "arm": "run", "what": "of", "steps": "steps {}–{}",
        "score": "reward",
    },
    "zh": {
        "preset": "预设", "reward": "奖励，前 3 步 → 后 3 步", "worst": "提升（最差种子）", "held": "留出集",
        "clip": "被裁剪的词元", "correct": "长度，正确", "incorrect": "长度，错误", "entropy": "熵",
        "kl": "每步 KL", "seconds": "秒", "arm": "训练", "what": "量", "steps": "第 {}–{} 步",
        "score": "奖励",
    },
}  # fmt: skip
Line = Mapping[str, Any]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a results file by name; the last of a name wins, a line that was cut off is not there."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {line["name"]: line for line in lines}


def write(lines: Mapping[str, Line], out: Path) -> None:
    """All pictures into `out`, all tables into the pages; parts without a line are left as they are."""
    for name, text in pictures(lines).items():
        (out / name).write_text(text, encoding="utf-8")
    for language, page in PAGES.items():
        if page.exists():
            page.write_text(filled(page.read_text(encoding="utf-8"), tables(lines, language)), encoding="utf-8")


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with what lies between `<!-- name -->` and `<!-- end -->` replaced by each named block."""
    for name, block in blocks.items():
        head, mark, rest = page.partition(f"<!-- {name} -->\n")
        if mark:
            page = head + mark + block + rest[rest.index("<!-- end -->") :]
    return page


def arms(lines: Mapping[str, Line], part: str) -> dict[str, list[Line]]:
    """The lines of each arm of a part, in the order of the lines."""
    found: dict[str, list[Line]] = {}
    for line in lines.values():
        if line["part"] == part:
            found.setdefault(line["arm"], []).append(line)
    return found


def tables(lines: Mapping[str, Line], language: str) -> dict[str, str]:
    """Markdown tables by the name of their mark."""
    words, found = WORDS[language], dict[str, str]()
    for part in ("tiny", "reasons", "smollm2"):
        if measured := arms(lines, part):
            head = ("preset", "reward", "worst", "held", "clip", "correct", "incorrect", "entropy", "kl", "seconds")
            rows = [_row(arm, runs, words) for arm, runs in measured.items()]
            found[part] = _table([words[name] for name in head], rows)
    if measured := arms(lines, "lengths"):
        head = [words["arm"], words["what"], *(words["steps"].format(*window) for window in WINDOWS)]
        found["lengths"] = _table(head, [row for arm, runs in measured.items() for row in _windows(arm, runs, words)])
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(arm: str, runs: Sequence[Line], words: Mapping[str, str]) -> list[str]:
    if errors := [run["error"] for run in runs if "error" in run]:
        return [f"`{arm}`", errors[0].replace("|", "\\|"), *[""] * 8]
    clips = [run["clip_fraction"] for run in runs if run["clip_fraction"] is not None]
    gain = min(run["reward_last3"] - run["reward_first3"] for run in runs)
    held = [run["held_out"] for run in runs if run["held_out"] is not None]
    return [
        f"`{arm}`",
        f"{_mean(runs, 'reward_first3'):.2f} → {_mean(runs, 'reward_last3'):.2f}",
        f"{gain:+.2f}" if gain >= NEEDED else f"**{gain:+.2f}**",
        f"{statistics.mean(held):.2f}" if held else "",
        f"{100 * statistics.mean(clips):.2g} %" if clips else "–",
        *(f"{_length(runs, kind, FIRST)} → {_length(runs, kind, LATE)}" for kind in ("correct", "incorrect")),
        f"{_window(runs, 'entropy', FIRST):.2f} → {_window(runs, 'entropy', LAST):.2f}",
        f"{_mean(runs, 'kl_step'):.1e}",
        f"{_mean(runs, 'seconds'):.0f}",
    ]


def _windows(arm: str, runs: Sequence[Line], words: Mapping[str, str]) -> list[list[str]]:
    """The rows of one arm: reward and both lengths in each window of steps."""
    spans = [slice(low - 1, high) for low, high in WINDOWS]
    shown: dict[str, Callable[[slice], str]] = {
        "incorrect": lambda span: _length(runs, "incorrect", span),
        "correct": lambda span: _length(runs, "correct", span),
        "score": lambda span: f"{_window(runs, 'reward', span):.2f}",
    }
    return [[f"`{arm}`", words[name], *(cell(span) for span in spans)] for name, cell in shown.items()]


def _mean(runs: Sequence[Line], name: str) -> float:
    return statistics.mean(run[name] for run in runs)


def _window(runs: Sequence[Line], curve: str, span: slice) -> float:
    values = [value for run in runs for value in run["curves"][curve][span] if value is not None]
    return statistics.mean(values) if values else float("nan")


def _length(runs: Sequence[Line], kind: str, span: slice) -> str:
    """The mean over answers, not over steps: each step counts by its share of correct or incorrect answers."""
    total = weight = 0.0
    for run in runs:
        curves = run["curves"]
        for length, reward in zip(curves[f"length_{kind}"][span], curves["reward"][span], strict=True):
            if length is not None:
                share = reward if kind == "correct" else 1 - reward
                total, weight = total + share * length, weight + share
    return f"{total / weight:.1f}" if weight else "–"


def pictures(lines: Mapping[str, Line]) -> dict[str, str]:
    """SVG texts by file name."""
    found: dict[str, str] = {}
    if measured := _trained(lines, "tiny"):
        title = "Mean of three seeds (strong), each seed (pale)"
        for curve, label in (("reward", "Reward"), ("entropy", "Entropy, nats per token"), ("kl_step", "KL of a step")):
            panels = [Panel(arm, _with_seeds(runs, curve, BLUE)) for arm, runs in measured.items()]
            found[f"comparison_{curve}.svg"] = panels_svg(f"{label}. {title}", panels, _small(curve != "kl_step"))
        panels = [Panel(arm, _both_lengths(runs)) for arm, runs in measured.items()]
        found["comparison_length.svg"] = panels_svg(
            "Length of answers in tokens, mean of three seeds", panels, _small()
        )
    wide = Layout(columns=3, width=360, height=230)
    if measured := _trained(lines, "lengths"):
        found["comparison_lengths.svg"] = panels_svg("GRPO and Dr.GRPO, three seeds each", _by_curve(measured), wide)
    if measured := _trained(lines, "smollm2"):
        found["comparison_smollm2.svg"] = panels_svg("SmolLM2-135M, the largest of a list", _by_curve(measured), wide)
    return found


def _trained(lines: Mapping[str, Line], part: str) -> dict[str, list[Line]]:
    whole = {arm: [run for run in runs if "error" not in run] for arm, runs in arms(lines, part).items()}
    return {arm: runs for arm, runs in whole.items() if runs}


def _small(shared: bool = True) -> Layout:
    return Layout(columns=5, width=232, height=150, shared=shared)


def _by_curve(measured: Mapping[str, Sequence[Line]]) -> list[Panel]:
    """A panel for each quantity, a colour for each arm."""
    titles = {
        "reward": "reward", "length_incorrect": "length of incorrect answers", "length_correct": "length of correct answers",
        "entropy": "entropy, nats per token", "kl_step": "KL of a step", "clip_fraction": "share of clipped tokens",
    }  # fmt: skip
    return [
        Panel(
            title,
            tuple(
                Series(average(runs, curve), COLOURS[i % len(COLOURS)], arm)
                for i, (arm, runs) in enumerate(measured.items())
            ),
        )
        for curve, title in titles.items()
    ]


def _with_seeds(runs: Sequence[Line], curve: str, colour: str) -> tuple[Series, ...]:
    pale = [Series(average([run], curve), GREY, width=1.0) for run in runs]
    return (*pale, Series(average(runs, curve), colour))


def _both_lengths(runs: Sequence[Line]) -> tuple[Series, ...]:
    return (
        Series(average(runs, "length_correct"), BLUE, "correct"),
        Series(average(runs, "length_incorrect"), RED, "incorrect"),
    )


def average(runs: Sequence[Line], curve: str) -> tuple[tuple[float, float], ...]:
    """(step, mean over runs and the last few steps); steps without any value are left out."""
    curves = [run["curves"][curve] for run in runs]
    found: list[tuple[float, float]] = []
    for step in range(1, max(map(len, curves)) + 1):
        recent = [value for values in curves for value in values[max(0, step - SMOOTH) : step] if value is not None]
        if recent:
            found.append((float(step), statistics.mean(recent)))
    return tuple(found)
