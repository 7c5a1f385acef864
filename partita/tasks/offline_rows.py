"""Token rows to learn from without sampling: conversations, preferences and judged answers of a data section.

Every row that is not learned from is counted, by its reason, with the first one named. Nothing is ever cut: a row that is
too long is left out, a pair as a whole. Left out: the order of rows and losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from partita.config.schema import key, key_factory
from partita.records import Row
from partita.tasks.conversations import (
    COLUMNS,
    LAYOUTS,
    ROLES,
    Comparison,
    Conversation,
    Judgement,
    NothingToLearn,
    RowError,
    RowReader,
)
from partita.tasks.dataset import bad_row, told_bad_rows
from partita.tasks.files import DataError, RawRow
from partita.tasks.paths import raw_rows
from partita.tasks.rendering import PromptError
from partita.tasks.settings import SourceConfig
from partita.tasks.split import digest, divided
from partita.tasks.turns import Turns

_SAYERS = ("assistant", "system", "tool", "user")


@dataclass(frozen=True)
class OfflineDataConfig:
    """Rows to learn from as they are: conversations, preferences or judged answers."""

    path: str | None = key(
        None,
        "a .jsonl, .json, .csv, .tsv or .parquet file (text also packed, as .jsonl.gz), a folder of them, a folder that `datasets` "
        "saved, a data set name on the hub, or a task (its columns are question and answer)",
    )
    split: str = key("train", "which split of a task, folder or hub data set")
    subset: str | None = key(None, "which configuration of a hub data set that has several")
    batch_size: int = key(8, "conversations, pairs or judged answers per train step", ge=1)
    size: int | None = key(
        None, "rows to read: a task makes this many, of other data the first ones; null for all", ge=1
    )
    shuffle: bool = key(True, "a new order in every epoch, set by the run's seed")
    layout: str = key(
        "auto",
        "which columns hold the conversation, where several could: messages (OpenAI), conversations (ShareGPT), alpaca "
        "(instruction, input, output), completion or response (with prompt), text; auto: the one that is there",
        choices=("auto", *LAYOUTS),
    )
    columns: dict[str, str] = key_factory(
        dict,
        "known columns by other names, as {prompt: question, completion: extra_info.answer}; known are "
        + ", ".join(COLUMNS),
    )
    roles: dict[str, str] = key_factory(
        dict, "who further roles are, as {bot: assistant}; known are " + ", ".join(sorted(ROLES))
    )
    system: str | None = key(None, "a system message before every conversation")
    dedup: bool = key(False, "keep only the first of equal rows")
    on_bad_row: Literal["error", "skip"] = key(
        "error",
        "a row that cannot be read: stop, or leave out and count; rows with nothing to learn (an empty answer, both "
        "answers the same) are always left out and counted",
    )
    max_length: int | None = key(
        None,
        "longest conversation in tokens, chat template included, for a pair that of each side; longer ones are left out "
        "and counted, never cut; null for as long as the context allows",
        ge=1,
    )
    held_out: float = key(
        0.0,
        "share of the rows that is held out, by a hash of their questions, where there is no valid_dataset",
        ge=0,
        lt=1,
    )
    chat_template: str = key(
        "auto",
        "auto: the tokenizer's own; none: the bare texts of prompt and answer; otherwise the path of a Jinja file",
    )
    chat_template_kwargs: dict[str, Any] = key_factory(
        dict, "further values for the template, as {enable_thinking: false} where a model's template knows it"
    )

    def __post_init__(self) -> None:
        if unknown := [name for name in self.columns if name not in COLUMNS]:
            raise ValueError(f"columns: {', '.join(unknown)} is not read; known are {', '.join(COLUMNS)}")
        if unknown := [f"{name}: {who}" for name, who in self.roles.items() if who not in _SAYERS]:
            raise ValueError(f"roles: {', '.join(unknown)}: a role must be one of {', '.join(_SAYERS)}")


@dataclass(frozen=True)
class Rendered:
    """A conversation to learn from: its token rows, mostly one. `question` is the same for rows that ask the same."""

    uid: str
    rows: tuple[Row, ...]
    question: str


@dataclass(frozen=True)
class RenderedPair:
    """A preference: one row a side, equal up to where the answers begin. margin: see `Comparison`."""

    uid: str
    chosen_rows: tuple[Row, ...]
    rejected_rows: tuple[Row, ...]
    margin: float | None
    question: str


@dataclass(frozen=True)
class RenderedJudged:
    """An answer that is good or not; `group` is the same for answers to the same question."""

    uid: str
    rows: tuple[Row, ...]
    good: bool
    group: str

    @property
    def question(self) -> str:
        """The same as `group`."""
        return self.group


@dataclass(frozen=True)
class Dropped:
    """How many rows were left out for one reason, and the first of them with what is wrong with it."""

    reason: str
    rows: int
    first: str


class _Asks(Protocol):
    @property
    def question(self) -> str: ...


R = TypeVar("R", bound=_Asks)
T = TypeVar("T", Conversation, Comparison, Judgement)


@dataclass(frozen=True)
class OfflineRows(Generic[R]):
    """What a data section came to: records to learn from, those held out, what was left out, lines for the start."""

    rows: tuple[R, ...]
    held_out: tuple[R, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]


def load_conversations(
    config: OfflineDataConfig, turns: Turns, *, context: int, seed: int, section: str = "train_dataset"
) -> OfflineRows[Rendered]:
    """Conversations whose answers are learned, of at most `context` tokens; `section` is only its name in messages.

    Raises DataError with rows and reasons: for rows that cannot be read (see `on_bad_row`), and where none is left.
    """

    def render(uid: str, found: Conversation) -> Rendered:
        return Rendered(uid, turns.rows(found), digest(found.question))

    return _load(config, context, seed, section, RowReader.conversation, render)


def load_comparisons(
    config: OfflineDataConfig, turns: Turns, *, context: int, seed: int, section: str = "train_dataset"
) -> OfflineRows[RenderedPair]:
    """Preferences, as `load_conversations` reads conversations."""

    def render(uid: str, found: Comparison) -> RenderedPair:
        chosen, rejected = turns.rows(found.chosen), turns.rows(found.rejected)
        if chosen == rejected:
            raise NothingToLearn("chosen and rejected are the same")
        return RenderedPair(uid, chosen, rejected, found.margin, digest(found.chosen.question))

    return _load(config, context, seed, section, RowReader.comparison, render)


def load_judgements(
    config: OfflineDataConfig, turns: Turns, *, context: int, seed: int, section: str = "train_dataset"
) -> OfflineRows[RenderedJudged]:
    """Judged answers, as `load_conversations` reads conversations."""

    def render(uid: str, found: Judgement) -> RenderedJudged:
        return RenderedJudged(uid, turns.rows(found.conversation), found.good, digest(found.conversation.question))

    return _load(config, context, seed, section, RowReader.judgement, render)


def _load(
    config: OfflineDataConfig,
    context: int,
    seed: int,
    section: str,
    read: Callable[[RowReader, Mapping[str, Any]], T],
    render: Callable[[str, T], R],
) -> OfflineRows[R]:
    reader = RowReader(config.layout, config.columns, {**ROLES, **config.roles}, config.system)
    limit = context if config.max_length is None else min(context, config.max_length)
    intake = _Intake[R](limit, config.dedup, config.size)
    try:
        for number, one in enumerate(_raw(config, seed), 1):
            if intake.full:
                break
            intake.take(number, one, lambda values: read(reader, values), render)
        intake.check(config)
        train, held = divided(intake.rows, [row.question for row in intake.rows], config.held_out)
    except DataError as error:
        raise DataError(f"{section}: {error}") from error.__cause__
    return OfflineRows(train, held, tuple(intake.dropped.values()), intake.notes(config, len(held)))


def _raw(config: OfflineDataConfig, seed: int) -> Sequence[RawRow]:
    source = SourceConfig(path=config.path, split=config.split, subset=config.subset, size=config.size)
    rows = raw_rows(source, seed).rows
    if not rows:
        raise DataError(f"{config.path}: no rows")
    return rows


class _Intake(Generic[R]):
    """Takes rows one after another and counts those it leaves out. limit: tokens; size: rows to read, None for all."""

    def __init__(self, limit: int, dedup: bool, size: int | None) -> None:
        self.limit, self.dedup, self.size = limit, dedup, size
        self.rows, self.dropped, self.bad = list[R](), dict[str, Dropped](), list[str]()
        self._read, self._seen, self._lengths, self._learned, self._apart = 0, set[str](), list[int](), list[int](), 0

    @property
    def full(self) -> bool:
        """Whether `size` rows were read that can be used, whatever their length."""
        return self._read == self.size

    def take(
        self, number: int, raw: RawRow, read: Callable[[Mapping[str, Any]], T], render: Callable[[str, T], R]
    ) -> None:
        """Keep the row, or count why not."""
        try:
            if raw.fault:
                raise RowError("unreadable", raw.fault)
            found = read(raw.values)
            name = digest(asdict(found))
            if self.dedup and name in self._seen:
                return self._drop("equal to a row before", raw.where)
            record = render(f"{number}-{name[:8]}", found)
        except NothingToLearn as error:
            return self._drop(error.reason, raw.where)
        except (DataError, PromptError) as error:
            self.bad.append(bad_row(raw, error))
            return self._drop(error.reason if isinstance(error, RowError) else "unusable", self.bad[-1])
        self._read += 1
        self._seen.add(name)
        self._measure(record, raw.where)

    def _measure(self, record: R, where: str) -> None:
        sides = _sides(record)
        longest = max(len(row.ids) for rows in sides for row in rows)
        if longest > self.limit:
            return self._drop(f"over {self.limit} tokens", f"{where}: {longest} tokens")
        self.rows.append(record)
        self._lengths.append(longest)
        self._learned.append(sum(sum(row.trained) for rows in sides for row in rows))
        self._apart += any(len(rows) > 1 for rows in sides)

    def _drop(self, reason: str, first: str) -> None:
        before = self.dropped.get(reason)
        self.dropped[reason] = replace(before, rows=before.rows + 1) if before else Dropped(reason, 1, first)

    def check(self, config: OfflineDataConfig) -> None:
        """Raises DataError for bad rows under on_bad_row=error, and when no row is left, or too few."""
        good = self._read
        if self.bad and (config.on_bad_row == "error" or not good):
            raise DataError(told_bad_rows(self.bad, good))
        if not self.rows:
            raise DataError(f"{config.path}: no row to learn from: {self._told()}")
        if config.size is not None and good < config.size:
            raise DataError(f"size={config.size}: {config.path} has only {good} usable rows")

    def _told(self) -> str:
        return "; ".join(f"{one.rows} {one.reason} (first: {one.first})" for one in self.dropped.values())

    def notes(self, config: OfflineDataConfig, held: int) -> tuple[str, ...]:
        """What the rows are and which were left out."""
        count = len(self.rows)
        tokens, learned = sum(self._lengths) / count, sum(self._learned) / count
        lines = [
            f"{config.path}: {count} rows, {tokens:.0f} tokens on average, {max(self._lengths)} at most, {learned:.1f} learned"
        ]
        if self.dropped:
            out = sum(one.rows for one in self.dropped.values())
            lines.append(f"{out} of {out + count} rows left out: {self._told()}")
        if self._apart:
            lines.append(
                f"{self._apart} rows in several parts: the chat template shows their earlier turns differently later"
            )
        return (*lines, f"{held} of {count} rows held out, by their questions") if held else tuple(lines)


def _sides(record: object) -> tuple[tuple[Row, ...], ...]:
    if isinstance(record, RenderedPair):
        return record.chosen_rows, record.rejected_rows
    assert isinstance(record, Rendered | RenderedJudged)
    return (record.rows,)
