"""What is measured on sampled groups: reward, avg@n, pass@k, maj@k, of all prompts and of each category, and how many were cut.

Shapes: P prompts, n samples of a prompt.
Left out: sampling (`evaluate`), the estimates themselves (`estimators`), and how they are shown (`show`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from partita.config import ConfigError
from partita.config.errors import Problem, near_value
from partita.evals.answers import AnswerOf, answers_of_rewards, find_answers
from partita.evals.config import EvaluatorConfig
from partita.evals.estimators import avg_at_k, maj_at_k, pass_at_k
from partita.evals.intervals import Estimate, of_shares
from partita.evals.paired import Scores
from partita.records import Group, Prompt, Sample
from partita.tasks.cells import MISSING, cell, near_column
from partita.tasks.files import DataError

RIGHT = "right"
"""How the right answer is spelt among votes. No other is: those are casefolded and carry a mark."""
CORRECT = {
    name: name for name in ("math_correct", "last_number_correct", "multiple_choice", "exact_match", "code_tests")
}
CORRECT["dapo_answer"] = "dapo_answer/accuracy"  # its score may be any two numbers
"""The part of the reward that says what is right, by reward function; the first that a run has."""


@dataclass(frozen=True)
class Measures:
    """What to measure. `sizes`: the k. `part`: which part of the reward says what is right, None for the reward itself, from
    `threshold` on. `answer_of`: what votes in maj@k, None where nothing can. `by`: the column of categories.
    """

    sizes: tuple[int, ...] = (1,)
    part: str | None = None
    threshold: float = 1.0
    answer_of: AnswerOf | None = None
    by: str | None = None

    @classmethod
    def of(cls, config: EvaluatorConfig, rewards: Sequence[str]) -> Measures:
        """What the section asks for, where these reward functions judge. Raises ConfigError for a part or an answer function
        that does not exist.
        """
        part = config.correct_by or next((CORRECT[name] for name in CORRECT if name in rewards), None)
        if part is not None and part.split("/")[0] not in rewards:
            names = ", ".join(rewards)
            raise _wrong_key(
                "correct_by", f"{part}: the reward has no such part; it has {names}{near_value(part, rewards)}"
            )
        answers = config.answer_of or answers_of_rewards(rewards)
        try:
            answer_of = None if answers is None else find_answers(answers)
        except ValueError as error:
            raise _wrong_key("answer_of", str(error)) from error
        return cls(config.sizes, part, config.correct_threshold, answer_of, config.by)

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raise DataError where a row has no such column as `by`."""
        for prompt in prompts:
            if self.by is not None and cell(prompt.row, self.by) is MISSING:
                near, names = near_column(self.by, prompt.row), ", ".join(map(str, prompt.row))
                raise DataError(
                    f"row {prompt.uid}: no column {self.by!r}{near}, which `by` names; its columns: {names}"
                )

    def category(self, prompt: Prompt) -> str | None:
        """Which category a prompt belongs to."""
        return None if self.by is None else str(cell(prompt.row, self.by))

    def right(self, sample: Sample) -> bool | None:
        """Whether a sample is right; None where that part of the reward says nothing about it."""
        value = sample.reward if self.part is None else sample.parts.get(self.part)
        return None if value is None or sample.reward is None else value >= self.threshold

    @property
    def rule(self) -> str:
        """When a sample is right, in words."""
        return f"{self.part or 'reward'} ≥ {self.threshold:g}"


@dataclass(frozen=True)
class Judged:
    """One prompt's samples that have a reward. `right` and `votes` are of those that the part says something about; a right
    sample votes RIGHT, None votes for nothing.
    """

    prompt: Prompt
    category: str | None
    rewards: tuple[float, ...]
    right: tuple[bool, ...]
    votes: tuple[str | None, ...] | None


@dataclass(frozen=True)
class Summary:
    """Figures of one model. `estimates` and `scores` by name of the measure (reward, avg@n, pass@k, maj@k); scores by prompt id,
    to be paired with another model's. `errors`: samples whose reward failed; `unscored`: all without one. `truncated`,
    `answered`: shares of samples cut at the limit, and of those with an answer (None without `answer_of`). `parts`: mean of each
    part of the reward and how many samples have it. `failed`: why nothing votes though something should.
    """

    estimates: Mapping[str, Estimate]
    scores: Mapping[str, Scores]
    prompts: int
    samples: int
    errors: int
    unscored: int
    truncated: float
    answered: float | None
    length: float
    parts: Mapping[str, tuple[float, int]]
    judged: tuple[Judged, ...]
    notes: tuple[str, ...] = ()
    categories: Mapping[str, Summary] = field(default_factory=dict[str, "Summary"])
    failed: str = ""


def summarise(groups: Sequence[Group], measures: Measures, n_samples: int) -> Summary:
    """All figures of these groups, and of each category by itself. Raises ValueError where no sample has a reward, ConfigError
    where none has the part that says what is right.
    """
    votes, failed = _votes(groups, measures.answer_of)
    whole = _summary(groups, measures, n_samples, votes)
    if f"avg@{n_samples}" not in whole.estimates:
        names = ", ".join(whole.parts)
        raise _wrong_key("correct_by", f"no sample has the part {measures.part} of the reward; parts: {names}")
    by = dict[str, list[Group]]()
    for group in groups:
        if (category := measures.category(group.prompt)) is not None:
            by.setdefault(category, []).append(group)
    scored = {name: some for name, some in by.items() if any(group.rewards for group in some)}
    categories = {name: _summary(scored[name], measures, n_samples, votes) for name in sorted(scored)}
    notes = [f"category {name}: no sample has a reward" for name in sorted(by.keys() - scored.keys())]
    notes += [f"no maj@k: {failed}"] if votes is None else []
    return replace(
        whole,
        notes=(*notes, *_cautions(whole, measures)),
        categories=categories,
        failed=failed if measures.answer_of else "",
    )


Votes = Callable[[Sample], str | None]


def _votes(groups: Sequence[Group], answer_of: AnswerOf | None) -> tuple[Votes | None, str]:
    """What each sample votes for; or why nothing can."""
    if answer_of is None:
        return None, "nothing says how to find the answer in a response; name it with answer_of"
    found, errors = dict[int, str | None](), list[Exception]()
    for group in groups:
        for sample in group.samples:
            try:
                found[id(sample)] = answer_of(group.prompt, sample.text)
            except Exception as error:  # whatever the user's function raises; what was sampled is worth more than maj@k
                errors.append(error)
    if errors:
        return None, f"answer_of failed on {len(errors)} responses; the first: {type(errors[0]).__name__}: {errors[0]}"
    return (lambda sample: found[id(sample)]), ""


def _summary(groups: Sequence[Group], measures: Measures, n_samples: int, votes: Votes | None) -> Summary:
    judged = tuple(_judged(group, measures, votes) for group in groups)
    samples = [sample for group in groups for sample in group.samples]
    scores = dict[str, Scores]({"reward": {one.prompt.uid: one.rewards for one in judged if one.rewards}})
    right = {one.prompt.uid: [float(hit) for hit in one.right] for one in judged if one.right}
    scores[f"avg@{n_samples}"] = right
    for k in measures.sizes:
        enough = [one for one in judged if len(one.right) >= k]
        scores[f"pass@{k}"] = {one.prompt.uid: [pass_at_k(len(one.right), sum(one.right), k)] for one in enough}
    for k in measures.sizes:
        agreed = [(one, one.votes) for one in judged if one.votes is not None and len(one.votes) >= k]
        scores[f"maj@{k}"] = {one.prompt.uid: [maj_at_k(votes, RIGHT, k)] for one, votes in agreed}
    scores = {name: found for name, found in scores.items() if found}
    drawn = {one.prompt.uid: len(one.right) for one in judged}
    cut = [sample.stop_reason == "length" for sample in samples]
    answered = None if votes is None else fmean(votes(sample) is not None for sample in samples)
    return Summary(
        {name: _estimate(name, found, drawn) for name, found in scores.items()}, scores, len(groups), len(samples),
        sum(sample.status == "reward_error" for sample in samples), sum(sample.reward is None for sample in samples),
        fmean(cut), answered, fmean(sample.length for sample in samples),
        _parts(samples), judged,
    )  # fmt: skip


def _judged(group: Group, measures: Measures, votes: Votes | None) -> Judged:
    known = [(sample, hit) for sample in group.samples if (hit := measures.right(sample)) is not None]
    cast = None if votes is None else tuple(RIGHT if hit else _wrong(votes(sample)) for sample, hit in known)
    right = tuple(hit for _, hit in known)
    return Judged(group.prompt, measures.category(group.prompt), tuple(group.rewards), right, cast)


def _wrong(answer: str | None) -> str | None:
    return None if answer is None else f"not {answer}"


def _estimate(name: str, scores: Scores, drawn: Mapping[str, int]) -> Estimate:
    """Of pass@k and maj@k the scores are one number for each prompt, made of as many samples as were drawn for it."""
    if not name.startswith(("pass@", "maj@")):
        return avg_at_k(list(scores.values()))
    return of_shares([value for row in scores.values() for value in row], sum(drawn[uid] for uid in scores))


def _parts(samples: Sequence[Sample]) -> dict[str, tuple[float, int]]:
    """A part that some samples lack is averaged over those that have it."""
    found = dict[str, list[float]]()
    for sample in samples:
        for name, value in sample.parts.items():
            found.setdefault(name, []).append(value)
    return {name: (fmean(values), len(values)) for name, values in found.items()}


def _cautions(found: Summary, measures: Measures) -> list[str]:
    """What makes the figures say less than they seem to."""
    notes = list[str]()
    if found.truncated >= 0.1:
        notes.append(
            f"{found.truncated:.0%} of the responses were cut at max_new_tokens: what they would have said is unknown, and most "
            "count as wrong; raise max_new_tokens"
        )
    if not any(any(one.right) for one in found.judged):
        best = max(max(one.rewards, default=0.0) for one in found.judged)
        notes.append(
            f"no sample counts as right ({measures.rule}); the highest reward is {best:g}. Where that should count, set "
            "correct_threshold or correct_by"
        )
    for name, estimate in found.estimates.items():
        if estimate.prompts < found.prompts:
            lacking = found.prompts - estimate.prompts
            notes.append(f"{name} is over {estimate.prompts} prompts: {lacking} have too few samples with a reward")
    return notes


def _wrong_key(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(f"evaluator.{name}", message)])
