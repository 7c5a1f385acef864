"""Evaluations of odd samples, sections and files of pass rates: for `fuzz.py`.

Every sample must be counted, every figure must lie where its values do, and what is written must be strict JSON; a section or a
file that cannot be used must be refused.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz_common import Try, Wrong
from fuzz_values import NUMBERS, WORDS, scrambled, strange

from partita.engine.api import Sampling
from partita.evals.answers import ANSWERS
from partita.evals.config import EvaluatorConfig, asked_for
from partita.evals.estimators import avg_at_k
from partita.evals.evaluate import Evaluation
from partita.evals.measures import Measures, Summary, summarise
from partita.evals.show import Asked, Evaluated, comparisons, document, headline, lines_of, rows_of
from partita.records import Group, Prompt, Row, Sample
from partita.report.sinks import strict_json
from partita.report.text import clean
from partita.tasks.rates import PassRates

PARTS = ("math_correct", "math_correct/length", "other", "x/\ud800")
PIECES = ("\n", "{", "}", '"', "null", "-1", "1.5", "NaN", "\x00", "9" * 5000, "[" * 3000)


@contextmanager
def opened(folder: Path) -> Iterator[Try]:
    """Feeds sections, groups and files of pass rates, one of them each time."""

    def one(rng: random.Random, folder: Path) -> str:
        return rng.choice((_section, _rates, _groups, _groups))(rng, folder)

    yield one


def _section(rng: random.Random, folder: Path) -> str:
    words = ("1,4", "4", "0", "", "1,,2", "-1", "a", "1,1", " 2 ", "²", "٣", "9" * 30, "1;2", "9" * 5000)
    given: dict[str, Any] = {
        "k": rng.choice((None, None, *words)), "n_samples": rng.choice((None, 1, 4, 16)),
        "temperature": rng.choice((None, 0.0, 1.0)), "by": rng.choice((None, *WORDS)),
        "correct_by": rng.choice((None, "math_correct", "x")), "answer_of": rng.choice((None, "math", *WORDS[:20])),
    }  # fmt: skip
    found = asked_for(EvaluatorConfig(), given)
    if found.k is not None and max(found.k) > found.n_samples:
        raise Wrong(f"k {found.k} of {found.n_samples} samples")
    measures = Measures.of(found, rng.choice((["math_correct"], ["own"], [])))
    found.sampling(Sampling(8, temperature=rng.choice((0.0, 1.0))))
    return "measured" if measures.sizes else "nothing measured"


def _rates(rng: random.Random, folder: Path) -> str:
    lines = [
        json.dumps({"prompt": f"{at}", "tries": rng.choice((8, 4)), "right": rng.choice((0, 3, 4))}) for at in range(3)
    ]
    if rng.random() < 0.5:
        lines[1] = rng.choice(
            (
                json.dumps(strange(rng), default=str)[:2000],
                json.dumps({"prompt": "a", "tries": rng.choice(NUMBERS), "right": 1}),
            )
        )
    text = "\n".join(lines)
    file = folder / "rates.jsonl"
    file.write_bytes((scrambled(text, rng, PIECES) if rng.random() < 0.4 else text).encode("utf-8", "surrogatepass"))
    found = PassRates.read([file])
    if not all(0 <= right <= tries for tries, right in found.known.values()):
        raise Wrong(f"counts that are none: {found.known}")
    return "counted"


def _sample(rng: random.Random) -> Sample:
    reward = rng.choice((0.0, 1.0, 1.0, 0.5, -1.0, 1e100, None))
    size = rng.choice((0, 1, 5))
    row = Row([1] * size, [True] * size, [0.0] * size, [0] * size)
    parts = {name: rng.choice((0.0, 1.0, 0.25)) for name in PARTS if rng.random() < 0.7}
    status = "ok" if reward is not None else rng.choice(("reward_error", "not_applicable"))
    text = "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 3)))
    return Sample(
        [row],
        rng.choice(("stop", "length", "abort")),
        text,
        reward,
        parts,
        [],
        status,
        "own: no",
        {"n": rng.choice(WORDS)},
    )


def _evaluated(rng: random.Random, name: str, measures: Measures, prompts: list[Prompt], n: int) -> Evaluated | None:
    groups = tuple(Group(at, prompt, [_sample(rng) for _ in range(n)]) for at, prompt in enumerate(prompts))
    rewards = [group.rewards for group in groups if group.rewards]
    if not rewards:
        return None
    failed = sum(sample.status == "reward_error" for group in groups for sample in group.samples)
    return Evaluated(name, Evaluation(groups, avg_at_k(rewards), failed), summarise(groups, measures, n))


def _groups(rng: random.Random, folder: Path) -> str:
    n, sizes = rng.choice(((1, (1,)), (2, (1, 2)), (4, (1, 4))))
    names = [rng.choice(("easy", "hard", *WORDS)) for _ in range(rng.randint(1, 6))]
    prompts = [
        Prompt(f"{at}-p", (1,), rng.choice(WORDS), {"level": name}, (), rng.choice((None, *WORDS)))
        for at, name in enumerate(names)
    ]
    answers = rng.choice((None, *(ANSWERS[name] for name in ANSWERS if name != "source")))
    measures = Measures(
        sizes, rng.choice((None, "math_correct")), rng.choice((1.0, 0.5, -2.0)), answers, rng.choice((None, "level"))
    )
    found = [one for name in ("a", "b\ud800") if (one := _evaluated(rng, name, measures, prompts, n)) is not None]
    if not found:
        return "nothing scored"
    asked = Asked("rows", "test", len(prompts), n, Sampling(8), 1, measures)
    compared = comparisons(found)
    for one in found:
        _check(one.summary, one, len(prompts) * n)
    text = "\n".join([headline(found[0], asked), *lines_of(found, compared, measures)])
    for line in (strict_json(document(found, compared, asked)), *map(strict_json, rows_of(found, measures))):
        json.loads(line.encode().decode(), parse_constant=_refuse)
    if len(rows_of(found, measures)) != len(found) * len(prompts) * n:
        raise Wrong("a sample is in no row")
    clean(text).encode()
    return "shown"


def _refuse(name: str) -> None:
    raise Wrong(f"{name} in what must be strict JSON")


def _check(summary: Summary, one: Evaluated, samples: int) -> None:
    """All samples are counted, and no mean lies outside of its values."""
    given = [reward for group in one.evaluation.groups for reward in group.rewards]
    if summary.samples != samples or summary.unscored != samples - len(given):
        raise Wrong(
            f"{samples} samples, {summary.samples} counted, {summary.unscored} without a reward of {samples - len(given)}"
        )
    for name, estimate in summary.estimates.items():
        low, high = (min(given), max(given)) if name == "reward" else (0.0, 1.0)
        if not math.isfinite(estimate.mean) or not low - 1e-9 <= estimate.mean <= high + 1e-9 * abs(high) + 1e-9:
            raise Wrong(f"{name} is {estimate.mean}, of values between {low} and {high}")
