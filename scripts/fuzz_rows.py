"""Rows of every layout in files of every kind, broken in every way: for `fuzz.py`.

Every row of a file must be kept, or counted as left out, or named in a refusal; what is kept must be what the file says.
Left out: rows of the hub, and rewards (`fuzz_rewards.py`).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from fuzz_common import Try, Wrong, check_command
from fuzz_values import changed, scrambled, scrambled_bytes, strange, written
from pyarrow import parquet
from tiny_model import make

from partita.look import known_of
from partita.tasks.dataset import DatasetConfig, TaskRow, TaskRows, load_rows
from partita.tasks.offline_rows import OfflineDataConfig, load_comparisons, load_conversations, load_judgements
from partita.tasks.prompt import PromptError, render_prompts
from partita.tasks.settings import ColumnsConfig
from partita.tasks.turns import turns_of
from partita.train.config import ActorConfig

NAMES = r"train_dataset|rows\."
HELLO = {"role": "user", "content": "hello"}
PROMPTED: tuple[dict[str, Any], ...] = (
    {"question": "2+3?", "answer": "so 2+3=<<2+3=5>>5\n#### 5"}, {"question": "1000+80?", "answer": "1,080"},
    {"question": "half?", "answer": 2.5}, {"problem": "2+2?", "level": "Level 2", "solution": "it is \\boxed{4}"},
    {"data_source": "math_dapo", "prompt": [{"role": "user", "content": "x"}], "reward_model": {"ground_truth": "21"},
     "extra_info": {"index": 3}},
    {"prompt": {"role": ["user"], "content": ["7*7?"]}, "answer": "49"},
    {"messages": [{"role": "system", "content": "short"}, HELLO], "answer": "A"},
    {"conversations": [{"from": "human", "value": "2+2?"}], "answer": "4"},
    {"instruction": "say", "input": "hi", "answer": "hi"},
    {"prompt": "<｜User｜>how long?<｜Assistant｜><think>\n", "answer": "12"},
    {"chosen": "\n\nHuman: a bird\n\nAssistant:", "answer": "wren"}, {"prompt": "p", "ground_truth": "1", "nums": [1, 2, 3]},
)  # fmt: skip
LEARNED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sft", {"messages": [HELLO, {"role": "assistant", "content": "hi", "weight": 1}]}),
    ("sft", {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}], "system": "short"}),
    ("sft", {"instruction": "say", "input": "hi", "output": "Hi!", "history": [["a", "b"]]}),
    ("sft", {"prompt": "a", "completion": "b"}),
    ("sft", {"text": "plain words"}),
    ("dpo", {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5}),
    ("dpo", {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}),
    ("dpo", {"chosen": [HELLO, {"role": "assistant", "content": "b"}], "rejected": [HELLO, {"role": "assistant", "content": "c"}]}),
    ("kto", {"prompt": "a", "completion": "b", "label": True}),
    ("kto", {"messages": [HELLO, {"role": "assistant", "content": "b"}], "label": 0}),
)  # fmt: skip
PIECES = (
    ",",
    "\n",
    "\r\n",
    "\r",
    '"',
    "{",
    "}",
    "[",
    "]",
    "\x00",
    "\ufeff",
    "NaN",
    "Infinity",
    "\t",
    "\\ud800",
    "\n\n",
    "null",
    "1" * 5000,
    "#",
)
LOADERS: dict[str, Callable[..., Any]] = {"sft": load_conversations, "dpo": load_comparisons, "kto": load_judgements}


@dataclass(frozen=True)
class Written:
    """A file of rows. rows: how many it has, None where only the reader can tell. texts: its lines of JSON, where it has such."""

    file: Path
    rows: int | None
    texts: Sequence[str] = ()


def _rows(base: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    """Some rows like `base`, one or two of them changed."""
    rows = [dict(base) for _ in range(rng.choice((1, 2, 3, 5)))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(rows))
        found = changed(rows[at], rng)
        rows[at] = found if isinstance(found, dict) else {"prompt": found}
    return rows


def _write(rows: list[dict[str, Any]], rng: random.Random, folder: Path) -> Written:
    kind = rng.choice((_json_lines, _json_lines, _json_lines, _json, _csv, _parquet))
    return kind(rows, rng, folder)


def _json_lines(rows: list[dict[str, Any]], rng: random.Random, folder: Path) -> Written:
    ending = rng.choice(("\n", "\n", "\r\n", "\n\n"))
    text = ending.join(written(row, rng) for row in rows) + rng.choice(("", "\n", "\n \n"))
    if rng.random() < 0.3:
        text = scrambled(text, rng, PIECES)
    return _encoded(text, rng, folder / f"rows.{rng.choice(('jsonl', 'jsonl', 'ndjson'))}")


def _encoded(text: str, rng: random.Random, file: Path) -> Written:
    """The text in some encoding, packed or not, sometimes damaged."""
    code = rng.choice(("utf-8",) * 6 + ("utf-8-sig", "utf-16", "latin-1", "utf-32"))
    data = text.encode(code, "surrogatepass" if code.startswith("utf") else "replace")
    if rng.random() < 0.1:
        data = scrambled_bytes(data, rng)
    lines = _lines(data)
    if rng.random() < 0.25:
        file = file.with_name(f"{file.name}.gz")
        at = rng.randint(0, len(data))
        # two packed files behind each other are one, as `cat a.gz b.gz` makes
        data = gzip.compress(data) if rng.random() < 0.6 else gzip.compress(data[:at]) + gzip.compress(data[at:])
        if rng.random() < 0.2:
            data, lines = scrambled_bytes(data, rng), None
    file.write_bytes(data)
    return Written(file, None if lines is None else len(lines), lines or ())


def _lines(data: bytes) -> list[str] | None:
    """The lines that are rows, None where the encoding leaves it open."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return None
    lines = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape").split("\n")
    return [line.lstrip("\ufeff") for line in lines if line.lstrip("\ufeff").strip()]


def _json(rows: list[dict[str, Any]], rng: random.Random, folder: Path) -> Written:
    text = f"[{', '.join(written(row, rng) for row in rows)}]"
    text = rng.choice((text, text, f'{{"data": {text}}}', written(rows[0], rng), "[1, null, {}]", "[]", "{}", ""))
    if rng.random() < 0.3:
        text = scrambled(text, rng, PIECES)
    made = _encoded(text, rng, folder / "rows.json")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return Written(made.file, None)
    exact = made.file.suffix == ".json" and made.file.read_bytes() == text.encode("utf-8", "surrogatepass")
    return Written(made.file, len(found) if exact and isinstance(found, list) else None)


def _csv(rows: list[dict[str, Any]], rng: random.Random, folder: Path) -> Written:
    names = list(dict.fromkeys(name for row in rows for name in row))
    tabs, held = rng.random() < 0.3, io.StringIO()
    table = csv.writer(held, delimiter="\t" if tabs else ",", quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)))
    table.writerow(names)
    for row in rows:
        cells = [row.get(name, "") for name in names]
        table.writerow(
            [
                one if isinstance(one, str | int | float) and one is not True else written(one, rng)[:100_000]
                for one in cells
            ]
        )
    text = held.getvalue()
    broken = rng.random() < 0.3
    made = _encoded(scrambled(text, rng, PIECES) if broken else text, rng, folder / f"rows.{'tsv' if tabs else 'csv'}")
    exact = not broken and made.file.suffix != ".gz" and made.file.read_bytes() == text.encode("utf-8", "surrogatepass")
    return Written(made.file, len(rows) if exact else None)


def _parquet(rows: list[dict[str, Any]], rng: random.Random, folder: Path) -> Written:
    file = folder / "rows.parquet"
    try:
        table = pyarrow.Table.from_pylist(rows)
        if rng.random() < 0.05:
            table = pyarrow.concat_tables([table, table]).slice(0, 0)
        if rng.random() < 0.05:
            table = table.append_column(rng.choice((table.column_names[0], "x")), table.column(0))
        parquet.write_table(
            table, file, row_group_size=rng.choice((1, 2, 1000)), compression=rng.choice(("snappy", "none", "zstd"))
        )
    except (pyarrow.ArrowException, UnicodeError, OverflowError, TypeError, ValueError, IndexError, RecursionError):
        return _json_lines(rows, rng, folder)  # what no such file can hold
    if rng.random() < 0.15:
        file.write_bytes(scrambled_bytes(file.read_bytes(), rng))
        return Written(file, None)
    return Written(file, table.num_rows)


@contextmanager
def opened(folder: Path) -> Iterator[Try]:
    """Feeds rows that are prompts to `load_rows`, the renderer and `partita data`."""
    model = make(folder / "model")
    known = known_of(ActorConfig(path=str(model)), None)

    def one(rng: random.Random, folder: Path) -> str:
        made = _write(_rows(rng.choice(PROMPTED), rng), rng, folder)
        config = _config(made.file, rng)
        if rng.random() < 0.05:
            words = [
                "data",
                made.file,
                "--model",
                model,
                "--rows",
                2,
                "--score",
                2,
                f"train_dataset.on_bad_row={config.on_bad_row}",
            ]
            return check_command(words, r"train_dataset|rows\.|row |reward|template")
        loaded = load_rows(config, seed=1)
        _check_counts(loaded, config, made)
        if made.texts and not config.template:
            for row in loaded.rows:
                _check_row(row, made.texts, config)
        try:
            found = render_prompts(loaded.rows, known.tokenizer, config, context=known.context, reserve=8)
        except PromptError:
            return "not rendered"
        long = sum(int(count) for note in found.notes for count in re.findall(r"^(\d+) of \d+ prompts left out", note))
        if len(found.prompts) + long != len(loaded.rows):
            raise Wrong(f"{len(found.prompts)} prompts and {long} left out of {len(loaded.rows)} rows: {found.notes}")
        return "kept"

    yield one


def _config(file: Path, rng: random.Random) -> DatasetConfig:
    """A section that reads the file, in one of the many ways."""
    keys: dict[str, Any] = {
        "on_bad_row": rng.choice(("error", "skip", "skip", "skip")),
        "last_answer": rng.choice(("error", "drop")),
    }
    if rng.random() < 0.2:
        keys["answer_format"] = rng.choice(("gsm8k", "boxed", "plain"))
    elif rng.random() < 0.2:
        keys["columns"] = ColumnsConfig(
            rng.choice((None, "question", "prompt", "messages", "nope")), rng.choice((None, "auto", "answer", "a.b"))
        )
    if rng.random() < 0.1 and "columns" not in keys:
        keys["template"] = rng.choice(("{question}!", "{nums} {{x}} {", "{answer} {extra_info.index}"))
    keys |= {"dedup": rng.random() < 0.2, "too_long": rng.choice(("skip", "error"))}
    if rng.random() < 0.1:
        keys["where"] = rng.choice(
            (
                {"level": "Level 2"},
                {"answer": {"min": 1, "max": 3}},
                {"extra_info": {"index": 3}},
                {"nums": [[1, 2, 3]]},
            )
        )
    if rng.random() < 0.1:
        keys |= rng.choice(
            (
                {"system": "be brief"},
                {"instruction": None},
                {"instruction": "go"},
                {"templated": "ignore"},
                {"prefill": "<think>"},
            )
        )
    return DatasetConfig(path=str(file), **keys)


def _check_counts(loaded: TaskRows, config: DatasetConfig, made: Written) -> None:
    """Every row of the file is kept, or counted."""
    out = sum(int(count) for note in loaded.notes for count in re.findall(r"(?:^|\D)(\d+) of \d+ rows left out", note))
    chosen = [re.search(r"(\d+) of (\d+) rows are as `where`", note) for note in loaded.notes]
    for found in filter(None, chosen):
        out += int(found[2]) - int(found[1])
    if made.rows is not None and len(loaded.rows) + out != made.rows:
        raise Wrong(
            f"{made.rows} rows in the file, {len(loaded.rows)} kept and {out} counted as left out: {loaded.notes}, {config}"
        )
    if len({row.uid for row in loaded.rows}) != len(loaded.rows):
        raise Wrong("two rows have one uid")


def _check_row(row: TaskRow, texts: Sequence[str], config: DatasetConfig) -> None:
    """A kept row has the values of its line, and its gold answer is in that line."""
    line = texts[int(row.uid.split("-")[0]) - 1]
    pairs = list[list[tuple[str, Any]]]()
    told = json.loads(line, object_pairs_hook=lambda given: pairs.append(given) or dict(given))
    if twice := [name for given in pairs for name in dict(given) if sum(other == name for other, _ in given) > 1]:
        raise Wrong(f"{twice[0]!r} is there twice, and one of the two was lost: {line[:200]!r}")
    if repr(told) != repr(dict(row.row)):
        raise Wrong(f"the row {str(row.row)[:300]} is not its line {line[:300]!r}")
    gold = told.get("answer", row.answer)
    if isinstance(gold, str) and config.columns.answer == "auto":
        wanted = {gold.strip(), gold.rpartition("####")[2].strip().replace(",", "")}
        if row.answer not in wanted and "\\boxed" not in gold:
            raise Wrong(f"gold answer {row.answer!r} of {gold[:200]!r}")
    if not row.messages or not any(str(one["content"]).strip() in repr(told) or one["content"] for one in row.messages):
        raise Wrong(f"messages {row.messages!r} of {line[:200]!r}")


@contextmanager
def learned(folder: Path) -> Iterator[Try]:
    """Feeds rows that are learned from to the loaders of `partita sft`, `rm` and `dpo`, and to `partita data`."""
    model = make(folder / "model")
    known = known_of(ActorConfig(path=str(model)), None)

    def one(rng: random.Random, folder: Path) -> str:
        kind, base = rng.choice(LEARNED)
        made = _write(_rows(base, rng), rng, folder)
        keys: dict[str, Any] = {"on_bad_row": rng.choice(("error", "skip", "skip")), "dedup": rng.random() < 0.2}
        if rng.random() < 0.1:
            keys["chat_template"] = "none"
        if rng.random() < 0.1:
            keys |= rng.choice(
                (
                    {"layout": "messages"},
                    {"columns": {"prompt": "a.b"}},
                    {"system": str(strange(rng))[:99]},
                    {"max_length": 20},
                )
            )
        if rng.random() < 0.05:
            loss = ["loss.type=kto"] if kind == "kto" else []
            name = "dpo" if kind == "kto" else kind
            return check_command(
                ["data", made.file, "--kind", name, "--model", model, *loss], r"train_dataset|rows\.|row |template"
            )
        turns = turns_of(known.tokenizer, known.stop_ids, keys.pop("chat_template", "auto"))
        found = LOADERS[kind](OfflineDataConfig(path=str(made.file), **keys), turns, context=known.context, seed=1)
        out = sum(reason.rows for reason in found.dropped)
        if made.rows is not None and len(found.rows) + out != made.rows:
            raise Wrong(f"{made.rows} rows in the file, {len(found.rows)} kept and {out} left out: {found.notes}")
        for record in found.rows:
            sides = [record.chosen_rows, record.rejected_rows] if kind == "dpo" else [record.rows]
            for row in (row for side in sides for row in side):
                if not any(row.trained) or len(row.ids) != len(row.trained) or max(row.ids) > 257:
                    raise Wrong(f"a row with nothing to learn, or with other ids: {row}")
        return "kept"

    yield one
