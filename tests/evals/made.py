"""Groups that were made by hand: right is what equals the answer."""

from partita.evals.answers import ANSWERS
from partita.evals.measures import Measures
from partita.records import Group, Prompt, Row, Sample, StopReason


def sample(text: str, reward: float | None, length: int = 4, stop: StopReason = "stop", **parts: float) -> Sample:
    row = Row([1] * length, [True] * length, [0.0] * length, [0] * length)
    status = "ok" if reward is not None else "reward_error"
    return Sample([row], stop, text, reward, parts, [], status)


def group(number: int, *samples: Sample, answer: str = "7", **row: object) -> Group:
    return Group(number, Prompt(f"p{number}", (number,), "", row, (), answer), list(samples))


def numbers(*texts: str, answer: str = "7") -> list[Sample]:
    """Samples that are right when they are the answer."""
    return [sample(text, float(text == answer)) for text in texts]


NUMBERS = Measures((1, 2, 4), answer_of=ANSWERS["number"])
GROUPS = [
    group(0, *numbers("7", "7", "9", "none"), level="easy"),
    group(1, *numbers("9", "9", "7", "3"), level="hard"),
    group(2, *numbers("1", "2", "3", "4"), level="hard"),
]
