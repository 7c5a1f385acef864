"""Evaluations as text, as a document and as rows."""

import json

from evals.made import GROUPS, NUMBERS, group, numbers

from partita.engine.api import Sampling
from partita.evals.estimators import avg_at_k
from partita.evals.evaluate import Evaluation
from partita.evals.measures import Measures, summarise
from partita.evals.show import Asked, Evaluated, comparisons, document, headline, lines_of, rows_of
from partita.records import Group
from partita.report.sinks import strict_json

SAMPLING = Sampling(4, temperature=0.6, stop_ids=(7,))
ASKED = Asked("rows.jsonl", "test", 3, 4, SAMPLING, 1, NUMBERS)
BETTER = [group(i, *numbers("7", "7", "7", "9"), level=one.prompt.row["level"]) for i, one in enumerate(GROUPS)]


def evaluated(name: str, groups: list[Group], measures: Measures = NUMBERS) -> Evaluated:
    evaluation = Evaluation(tuple(groups), avg_at_k([one.rewards for one in groups]), 0)
    return Evaluated(name, evaluation, summarise(groups, measures, 4))


def test_the_headline() -> None:
    line = headline(evaluated("runs/x", GROUPS), ASKED)
    assert line.startswith("runs/x: 0.250 (95 % interval 0.0")
    assert line.endswith(") on 3 held-out prompts, 4 samples each, temperature 0.6")


def test_one_model_as_a_table() -> None:
    lines = lines_of([evaluated("runs/x", GROUPS)], {}, NUMBERS)
    assert lines[1] == "a sample is right when reward ≥ 1"
    assert lines[2].split() == ["measure", "value", "95", "%", "interval"]
    table = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert table["pass@4"][0] == "0.667"
    assert table["maj@4"][0] == "0.333"
    assert table["pass@4"][2] == "to"
    assert lines[-4:] == [
        "  cut at the limit    0.0%",
        "  with an answer     91.7%",
        "  tokens a response    4.0",
        "  not scored             0",
    ]


def test_two_models_side_by_side() -> None:
    models = [evaluated("runs/new", BETTER), evaluated("runs/old", GROUPS)]
    compared = comparisons(models)
    lines = lines_of(models, compared, NUMBERS)
    assert lines[0].startswith("difference on the same prompts: 0.500 (95 % interval ")
    assert "runs/new" in lines[3] and "runs/old" in lines[3] and lines[3].endswith(" p")
    [passed] = [line for line in lines if line.startswith("  pass@4")]
    assert "+0.333" in passed
    assert len({len(line) for line in lines[3:5]}) == 1  # aligned to the last column


def test_categories_and_names_that_are_long_or_hostile() -> None:
    by = Measures((1, 4), by="level")
    hostile = [group(0, *numbers("7", "7", "7", "7"), level="a\n\x1b[31mb"), *GROUPS]
    models = [evaluated("/a/very/long/path/to/some/run/001/export", hostile, by)]
    text = "\n".join(lines_of(models, {}, by))
    assert "avg@4 by level" in text
    assert "\x1b" not in text and "a\\nb" in text
    two = [evaluated("/a/very/long/path/to/some/run/001/export", hostile, by), evaluated("x", GROUPS, by)]
    assert "…g/path/to/some/run/001/export"[-20:] in "\n".join(lines_of(two, {}, by))


def test_the_document_has_everything_and_is_strict_json() -> None:
    models = [evaluated("runs/new", BETTER), evaluated("runs/old", GROUPS)]
    found = json.loads(strict_json(document(models, comparisons(models), ASKED)))
    assert (found["n_samples"], found["k"], found["right"]) == (4, [1, 2, 4], "reward ≥ 1")
    assert found["sampling"]["temperature"] == 0.6
    new, old = found["models"]
    assert new["measures"]["avg@4"]["mean"] == 0.75
    assert old["per_prompt"][1] == {
        "prompt_uid": "p1", "category": None, "answer": "7", "rewards": [0.0, 0.0, 1.0, 0.0],
        "right": [False, False, True, False], "votes": ["9", "9", "right", "3"],
        "pass@1": 0.25, "pass@2": 0.5, "pass@4": 1.0, "maj@1": 0.25, "maj@2": 0.25, "maj@4": 0.0,
    }  # fmt: skip
    assert found["differences"]["avg@4"]["mean"] == 0.5
    assert set(found["differences"]["avg@4"]) >= {"low", "high", "p_value", "p_exact", "prompts_left_out"}


def test_rows_of_samples() -> None:
    rows = rows_of([evaluated("m", GROUPS)], Measures((1,), by="level"))
    assert len(rows) == 12
    assert {key: rows[4][key] for key in ("model", "category", "right", "response", "reward", "prompt_uid")} == {
        "model": "m", "category": "hard", "right": False, "response": "9", "reward": 0.0, "prompt_uid": "p1",
    }  # fmt: skip
