"""Built-in tasks that make their own rows: nothing to download, small enough for a laptop and a small model.

A task has a training and a held-out split. Which split a row belongs to is a hash of its content, so the two never
overlap, whatever the seeds and sizes; variants of one content (7 + 15 and 15 + 7) are always on the same side.

Left out: rows from files and hubs; see `tasks.dataset`.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from partita.tasks import gym_rows
from partita.tasks.functions import LoadError, load_object
from partita.tasks.graders.gym import reasoning_gym_score
from partita.tasks.graders.text import last_number_correct
from partita.tasks.words import STORIES, WORDS

Split = Literal["train", "test"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A named source of rows and the reward functions that judge them.

    `rows(split, size, seed)` gives rows with the columns `question` and `answer`; size None means the task's own
    choice. The same arguments give the same rows, and no row of one split ever appears in the other. gold: whether there is one
    right answer, False for rows whose `answer` is null and which only their reward can judge.
    """

    name: str
    rows: Callable[[Split, int | None, int], Sequence[Row]]
    functions: tuple[Callable[..., Any], ...]
    gold: bool = True


def held_out(task: str, content: object) -> bool:
    """Whether rows with this content belong to the held-out split: about 22 of 100 do."""
    digest = hashlib.blake2b(f"{task}/{content}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < 22


def _below(rng: random.Random, n: int) -> int:
    # random() is the one method whose numbers Python promises to keep between versions.
    return int(rng.random() * n)


def _shuffled(items: Sequence[Row], rng: random.Random) -> list[Row]:
    keyed = sorted((rng.random(), i) for i in range(len(items)))
    return [items[i] for _, i in keyed]


def _finite(
    name: str, table: Callable[[], Iterator[tuple[object, Row]]]
) -> Callable[[Split, int | None, int], list[Row]]:
    """Rows of a task that can list all its (content, row) pairs; they come in an order of the seed."""

    def rows(split: Split, size: int | None, seed: int) -> list[Row]:
        kept = [row for content, row in table() if held_out(name, content) == (split == "test")]
        if size is not None and size > len(kept):
            raise ValueError(f"size={size}: task {name!r} has {len(kept)} rows in its {split} split")
        return _shuffled(kept, random.Random(f"{name}/{split}/{seed}"))[:size]

    return rows


def _drawn(
    name: str, draw: Callable[[random.Random], tuple[object, Row]], default: int, most: int
) -> Callable[[Split, int | None, int], list[Row]]:
    """Distinct rows of a task too large to list, drawn until there are enough."""

    def rows(split: Split, size: int | None, seed: int) -> list[Row]:
        if size is not None and size > most:
            raise ValueError(f"size={size}: task {name!r} gives at most {most} different rows")
        rng, found = random.Random(f"{name}/{split}/{seed}"), dict[str, Row]()
        while len(found) < (default if size is None else size):
            content, row = draw(rng)
            if held_out(name, content) == (split == "test"):
                found.setdefault(row["question"], row)
        return list(found.values())

    return rows


def _largest(rng: random.Random) -> tuple[object, Row]:
    numbers: list[int] = []
    while len(numbers) < 4:
        number = 1 + _below(rng, 99)
        if number not in numbers:
            numbers.append(number)
    listed = ", ".join(map(str, numbers))
    return sorted(numbers), {
        "question": f"What is the largest number in this list: {listed}?",
        "answer": str(max(numbers)),
    }


def _addition() -> Iterator[tuple[object, Row]]:
    for a, b in product(range(1, 21), repeat=2):
        yield sorted((a, b)), {"question": f"What is {a} + {b}?", "answer": str(a + b)}


def _multiplication() -> Iterator[tuple[object, Row]]:
    for a, b in product(range(2, 10), repeat=2):
        yield sorted((a, b)), {"question": f"What is {a} times {b}?", "answer": str(a * b)}


def _letters() -> Iterator[tuple[object, Row]]:
    for word in WORDS:
        absent = [letter for letter in "aeinorst" if letter not in word][:2]
        for letter in [*sorted(set(word)), *absent]:
            question = f'How many times does the letter "{letter}" occur in the word "{word}"?'
            yield word, {"question": question, "answer": str(word.count(letter)), "word": word, "letter": letter}


def _subtraction_story(rng: random.Random) -> tuple[object, Row]:
    story = STORIES[_below(rng, len(STORIES))]
    more = 5 + _below(rng, 45)
    fewer = 2 + _below(rng, more - 2)
    who = story.people[_below(rng, len(story.people))]
    what = story.things[_below(rng, len(story.things))]
    question = story.text.format(who=who, what=what, more=more, fewer=fewer)
    return (story.text, more, fewer), {"question": question, "answer": str(more - fewer)}


_JUDGED = (last_number_correct,)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("largest", _drawn("largest", _largest, default=2000, most=100_000), _JUDGED),
        Task("addition", _finite("addition", _addition), _JUDGED),
        Task("multiplication", _finite("multiplication", _multiplication), _JUDGED),
        Task("letters", _finite("letters", _letters), _JUDGED),
        Task(
            "subtraction_stories",
            _drawn("subtraction_stories", _subtraction_story, default=2000, most=20_000),
            _JUDGED,
        ),
    )
}


GYM = "reasoning_gym/"
"""What stands before the name of a task of reasoning-gym."""
_GYM_ROWS = 200  # where no size is given: some tasks take seconds for a row


def _gym_task(name: str) -> Task:
    """A task of reasoning-gym, judged by its own scorer. Raises LoadError."""
    gym_rows.check_name(name)

    def rows(split: Split, size: int | None, seed: int) -> list[Row]:
        def is_of_split(question: str) -> bool:
            return held_out(f"{GYM}{name}", question) == (split == "test")

        return gym_rows.rows_of(name, is_of_split, _GYM_ROWS if size is None else size, seed)

    return Task(f"{GYM}{name}", rows, (reasoning_gym_score,), gym_rows.has_gold(name))


def find_task(name: str) -> Task | None:
    """The built-in task `name`, one of reasoning-gym as `reasoning_gym/name`, or your own as `package.module:task` or
    `path/file.py:task`; None when it is none of these.

    Your own may be a `Task` or a function without parameters that makes one. Raises LoadError when the name has the
    form of an object but leads nowhere or to something else.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith(GYM):
        return _gym_task(name.removeprefix(GYM))
    if ":" not in name or "://" in name:
        return None
    found = load_object(name)
    if inspect.isfunction(found) and not any(
        p.default is p.empty for p in inspect.signature(found).parameters.values()
    ):
        found = found()
    if not isinstance(found, Task):
        raise LoadError(
            f"{name}: is a {type(found).__name__}; expected a partita.tasks.catalog.Task or a function without "
            "parameters that makes one"
        )
    return found
