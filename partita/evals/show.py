"""Evaluations as lines and tables of text, as one JSON document, and as one row for each sample.

Left out: what is computed (`measures`, `paired`), and writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from partita.engine.api import Sampling
from partita.evals.evaluate import Evaluation
from partita.evals.intervals import Estimate
from partita.evals.measures import Judged, Measures, Summary
from partita.evals.paired import Comparison, compare, verdict
from partita.report.records import sample_rows
from partita.report.table import Table
from partita.report.text import clean, one_line

ABSENT = "-"
MOST_CATEGORIES = 30  # lines of a table; the JSON document has all


@dataclass(frozen=True)
class Evaluated:
    """One model's evaluation. `model`: its path or name."""

    model: str
    evaluation: Evaluation
    summary: Summary


@dataclass(frozen=True)
class Asked:
    """What all models of one command were asked. `data`: the path or name of the rows; `seed` of the samples."""

    data: str
    split: str
    prompts: int
    n_samples: int
    sampling: Sampling
    seed: int
    measures: Measures


def headline(one: Evaluated, asked: Asked) -> str:
    """One line: the mean reward, and how it was come by."""
    heat = asked.sampling.temperature
    how = "greedy" if heat == 0 else f"temperature {heat:g}"
    many = f"{asked.n_samples} samples each, " if asked.n_samples > 1 else ""
    errors = one.evaluation.errors
    failed = f", {errors} samples could not be scored" if errors else ""
    prompts = len(one.evaluation.groups)
    return f"{one.model}: {one.evaluation.mean} on {prompts} held-out prompts, {many}{how}{failed}"


def comparisons(models: Sequence[Evaluated]) -> dict[str, Comparison]:
    """The first model minus the second, for each measure that both have of some prompts; none for one model."""
    if len(models) < 2:
        return {}
    first, second = (one.summary.scores for one in models)
    both = [name for name in first if name in second and first[name].keys() & second[name].keys()]
    return {name: compare(second[name], first[name], shares="@" in name) for name in both}


def lines_of(models: Sequence[Evaluated], compared: Mapping[str, Comparison], measures: Measures) -> list[str]:
    """What follows the headlines: how two models differ, all measures, and each category."""
    said = [verdict(compared["reward"], *(one.model for one in models))] if "reward" in compared else []
    tables = [_measures(models, compared, measures)]
    if any(one.summary.categories for one in models):
        tables.append(_categories(models, measures.by or ""))
    return [*said, *(line for table in tables for line in ("", *table.text()[:-1]))]


def _measures(models: Sequence[Evaluated], compared: Mapping[str, Comparison], measures: Measures) -> Table:
    names = list(dict.fromkeys(name for one in models for name in one.summary.estimates))
    rows = [
        (name, *(cell for one in models for cell in _value(one.summary.estimates.get(name))), *_gain(compared, name))
        for name in names
    ]
    rows += [_row(name, cells, bool(compared)) for name, cells in _shares(models).items()]
    beside = ("difference", "95 % interval", "p") if compared else ()
    return Table(f"a sample is right when {measures.rule}", ("measure", *_heads(models), *beside), tuple(rows))


def _heads(models: Sequence[Evaluated]) -> list[str]:
    names = ["value"] if len(models) == 1 else _short([one.model for one in models])
    return [cell for name in names for cell in (name, "95 % interval")]


def _row(name: str, cells: Sequence[str], compared: bool) -> tuple[str, ...]:
    return (name, *(part for cell in cells for part in (cell, "")), *(("", "", "") if compared else ()))


def _value(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return ABSENT, ""
    return f"{estimate.mean:.3f}", _interval(estimate)


def _interval(estimate: Estimate, sign: str = "") -> str:
    if estimate.low is None or estimate.high is None:
        return "none"
    return f"{estimate.low:{sign}.3f} to {estimate.high:{sign}.3f}"


def _gain(compared: Mapping[str, Comparison], name: str) -> tuple[str, ...]:
    if not compared:
        return ()
    one = compared.get(name)
    if one is None:
        return ABSENT, "", ABSENT
    return f"{one.difference.mean:+.3f}", _interval(one.difference, "+"), one.p_text.removeprefix("= ")


def _shares(models: Sequence[Evaluated]) -> dict[str, list[str]]:
    """What is no measure of skill: how many responses were cut or have an answer, their length, errors, parts of the reward."""
    found = [one.summary for one in models]
    lines = {"cut at the limit": [f"{one.truncated:.1%}" for one in found]}
    if any(one.answered is not None for one in found):
        lines["with an answer"] = [ABSENT if one.answered is None else f"{one.answered:.1%}" for one in found]
    lines["tokens a response"] = [f"{one.length:.1f}" for one in found]
    lines["not scored"] = [str(one.unscored) for one in found]
    parts = list(dict.fromkeys(name for one in found for name in one.parts))
    for name in parts if len(parts) > 1 else ():
        lines[f"reward {name}"] = [f"{one.parts[name][0]:.3f}" if name in one.parts else ABSENT for one in found]
    return lines


def _categories(models: Sequence[Evaluated], by: str) -> Table:
    accuracy = next(name for name in models[0].summary.estimates if name.startswith("avg@"))
    known = dict[str, int]()
    for one in models:
        for name, part in one.summary.categories.items():
            known[name] = max(known.get(name, 0), part.prompts)
    most = sorted(sorted(known, key=lambda name: -known[name])[:MOST_CATEGORIES])
    rows = tuple((one_line(clean(name)), str(known[name]), *_category_cells(models, name, accuracy)) for name in most)
    left = f", the {MOST_CATEGORIES} largest of {len(known)}" if len(known) > MOST_CATEGORIES else ""
    return Table(f"{accuracy} by {by}{left}", (by, "prompts", *_heads(models)), rows)


def _category_cells(models: Sequence[Evaluated], name: str, measure: str) -> list[str]:
    found = [one.summary.categories.get(name) for one in models]
    return [cell for one in found for cell in _value(None if one is None else one.estimates.get(measure))]


def _short(paths: Sequence[str], most: int = 28) -> list[str]:
    """The ends of long paths, as far as they differ."""
    ends = [path if len(path) <= most else "…" + path[1 - most :] for path in paths]
    return ends if len(set(ends)) == len(ends) else [f"{i}: {end}" for i, end in enumerate(ends, 1)]


def document(models: Sequence[Evaluated], compared: Mapping[str, Comparison], asked: Asked) -> dict[str, Any]:
    """Everything, each prompt included."""
    measures = asked.measures
    return {
        "data": asked.data, "split": asked.split, "prompts": asked.prompts, "n_samples": asked.n_samples, "seed": asked.seed,
        "sampling": asdict(asked.sampling), "k": list(measures.sizes), "right": measures.rule, "by": measures.by,
        "models": [{"model": one.model, **_figures(one.summary), "per_prompt": _prompts(one.summary)} for one in models],
        "differences": {
            name: {**asdict(one.difference), "p_value": one.p_value, "p_exact": one.exact, "prompts_left_out": one.left_out}
            for name, one in compared.items()
        },
    }  # fmt: skip


def _figures(one: Summary) -> dict[str, Any]:
    return {
        "prompts": one.prompts, "samples": one.samples, "errors": one.errors, "unscored": one.unscored, "truncated": one.truncated,
        "answered": one.answered, "response_length": one.length,
        "parts": {name: {"mean": mean, "samples": count} for name, (mean, count) in one.parts.items()},
        "measures": {name: asdict(estimate) for name, estimate in one.estimates.items()}, "notes": list(one.notes),
        "categories": {name: _figures(part) for name, part in one.categories.items()},
    }  # fmt: skip


def _prompts(one: Summary) -> list[dict[str, Any]]:
    return [{**_judged(judged), **_of_prompt(one, judged.prompt.uid)} for judged in one.judged]


def _judged(one: Judged) -> dict[str, Any]:
    votes = None if one.votes is None else [None if vote is None else vote.removeprefix("not ") for vote in one.votes]
    return {
        "prompt_uid": one.prompt.uid, "category": one.category, "answer": one.prompt.answer, "rewards": list(one.rewards),
        "right": list(one.right), "votes": votes,
    }  # fmt: skip


def _of_prompt(one: Summary, uid: str) -> dict[str, float]:
    """The prompt's own pass@k and maj@k."""
    return {
        name: rows[uid][0] for name, rows in one.scores.items() if "@" in name and "avg" not in name and uid in rows
    }


def rows_of(models: Sequence[Evaluated], measures: Measures) -> list[dict[str, Any]]:
    """One row for each sample, as in a run's `samples/`, with the model, the category, and whether it is right."""
    return [
        {"model": one.model, "category": measures.category(group.prompt), "right": measures.right(sample), **row}
        for one in models
        for group in one.evaluation.groups
        for sample, row in zip(group.samples, sample_rows([group]), strict=True)
    ]
