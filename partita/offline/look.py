"""What a run on data would see of its rows: how many, how long, what of each is learned, and which were left out why.

Nothing is trained: of a model only its tokenizer and its configuration are read. Left out: prompts that are sampled from
(`look`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from partita.look import CHARACTERS, Known, known_of, lengths, shown_ids
from partita.offline.config import DpoConfig, OfflineConfig, SftConfig
from partita.records import Row
from partita.report.text import shorten
from partita.tasks.files import DataError
from partita.tasks.offline_rows import (
    OfflineDataConfig,
    OfflineRows,
    Rendered,
    RenderedJudged,
    RenderedPair,
    load_comparisons,
    load_conversations,
    load_judgements,
)
from partita.tasks.turns import turns_of

Record = Rendered | RenderedPair | RenderedJudged


def look_at_rows(config: OfflineConfig, rows: int, held_out: bool, say: Callable[[str], None]) -> None:
    """Tell `say`, line by line; `rows` of them in full. held_out: of those that are evaluated on. Raises what a run would
    raise at its start.
    """
    known = known_of(config.actor, config.tokenizer_path)
    section = config.valid_dataset if held_out and config.valid_dataset is not None else config.train_dataset
    name = "train_dataset" if section is config.train_dataset else "valid_dataset"
    found = _load(config, section, known, name)
    kept: Sequence[Record] = found.held_out if held_out and config.valid_dataset is None else found.rows
    if not kept:
        raise DataError("no held-out rows: set valid_dataset, or train_dataset.held_out")
    sizes = [sum(len(row.ids) for row in side) for one in kept for _, side in sides(one)]
    for line in (*found.notes, lengths("a row", sizes)):
        say(line)
    for one in kept[:rows]:
        say("")
        say(f"row {one.uid}{_judged(one)}")
        for title, side in sides(one):
            _show(title, side, known.tokenizer, say)


def _load(config: OfflineConfig, section: OfflineDataConfig, known: Known, name: str) -> OfflineRows[Record]:
    turns = turns_of(known.tokenizer, known.stop_ids, section.chat_template, section.chat_template_kwargs)
    load = load_comparisons
    if isinstance(config, SftConfig):
        load = load_conversations
    elif isinstance(config, DpoConfig) and config.loss.type == "kto":
        load = load_judgements
    found: OfflineRows[Record] = load(section, turns, context=known.context, seed=config.seed, section=name)  # pyright: ignore[reportAssignmentType]
    return found


def sides(record: Record) -> list[tuple[str, tuple[Row, ...]]]:
    """The token rows of a record: of a pair, of each side."""
    if isinstance(record, RenderedPair):
        return [("chosen", record.chosen_rows), ("rejected", record.rejected_rows)]
    return [("", record.rows)]


def _judged(record: Record) -> str:
    if isinstance(record, RenderedJudged):
        return ", good" if record.good else ", bad"
    margin = record.margin if isinstance(record, RenderedPair) else None
    return "" if margin is None else f", margin {margin:g}"


def _show(title: str, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> None:
    for row in rows:
        learned = sum(row.trained)
        say(f"  {title}{': ' if title else ''}{len(row.ids)} tokens, {learned} of them learned")
        spans = groupby(zip(row.ids, row.trained, strict=True), key=lambda one: one[1])
        for trained, span in spans:
            ids = [one for one, _ in span]
            text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
            for line in shorten(text, CHARACTERS).split("\n"):
                say(f"  {'learned' if trained else '       '} | {line}")
        say(shown_ids(row.ids))
