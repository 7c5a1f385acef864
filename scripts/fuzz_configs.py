"""Configs with changed keys, values and spelling, and overrides of every kind: for `fuzz.py`.

Every key that is given must be in what is loaded, with its value and its source, or be named in a refusal; what is loaded must
be written as YAML that loads to the same again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml
from fuzz_common import Try, Wrong, check_command
from fuzz_values import NUMBERS, WORDS, json_copy, misspelt, nested, scrambled, strange

from partita.algo.presets import PRESETS
from partita.config import Loaded
from partita.config.schema import Key, all_keys, keys_of
from partita.offline.config import KINDS, load_offline_config
from partita.run import RunConfig, composed, load_run_config
from partita.trainer import QUICKSTART

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = r"\w"
PIECES = (
    "\t", "\n", "  ", ":", ": ", "- ", "#", "'", '"', "&a ", "*a", "<<: *a", "!!int ", "!!binary ", "!!timestamp ", "!!set ",
    "!!python/tuple ", "? ", "| ", ">-\n", "---\n", "...", "%YAML 9.9\n", "{", "}", "[", "]", "on", "yes", "1e-6", "0x1F",
    "010", "1:30", ".nan", ".inf", "~", "${seed}", "${", "${nope}", "${actor}", "${oc.env:NOPE}", "${oc.env:HOME}", "\\${",
    "???", "é: 1\n", "\ufeff", "\x00", "\x85", "\u2028", "1" * 5000,
)  # fmt: skip
ODD_OVERRIDES = (
    "=", "a", "~", "+=1", "a..b=1", "reward.options.f.kwargs.x=1", "seed=${seed}", "actor=1", "gconfig={", f"seed={'[' * 500}",
)  # fmt: skip
BASES = ("own.yaml", "./own.yaml", "above.yaml", "5", "[a]", '"a\\0b"', ".", "a" * 5000)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]\n" for one, two in zip("abcdefgh", "bcdefghi", strict=True)
)


def _kind(rng: random.Random) -> tuple[str, type[Any]]:
    kind = rng.choice(("train", "train", "train", *KINDS))
    return kind, RunConfig if kind == "train" else KINDS[kind]


def _value(key: Key, rng: random.Random) -> Any:
    """A value that often suits the key."""
    if rng.random() < 0.08:
        return strange(rng)
    if key.shape != "leaf" or rng.random() < 0.3:
        return None if key.needed else json_copy(key.default)
    words = key.kind.replace(" or null", "")
    if words.startswith("one of"):
        return rng.choice(words.removeprefix("one of ").split(", "))
    if words == "bool":
        return rng.choice((True, False))
    if words in ("int", "float"):
        return rng.choice(
            (0.5, 0.1, 1, 1e-6, 2.0, 0.9, 0.0, "1e-6", rng.choice(NUMBERS))
            if words == "float"
            else (1, 2, 3, 4, 8, 64, 0)
        )
    if words.startswith("list"):
        return rng.choice(([], [1], [1, 2], ["a"], [0.5, 1.0], [None], "a"))
    return rng.choice((None if key.needed else json_copy(key.default), "a", "own", *WORDS[:12]))


def _tree(cls: type[Any], rng: random.Random) -> dict[str, Any]:
    """A config with some keys set, most of them known."""
    known = all_keys(cls)
    tree = dict[str, Any]()
    for path in rng.sample(sorted(known), rng.choice((1, 1, 2, 3, 6))):
        parts = path.replace(".*.", ".x.").split(".")
        if rng.random() < 0.08:
            at = rng.randrange(len(parts))
            parts[at] = rng.choice((misspelt(parts[at], rng), "", "a b", "é", "1"))
        branch = tree
        for part in parts[:-1]:
            below = branch.setdefault(part, {})
            branch = below if isinstance(below, dict) else {}
        branch[parts[-1]] = _value(known[path], rng)
    if cls is RunConfig and rng.random() < 0.3:
        tree["algorithm"] = rng.choice((*PRESETS, "grppo", 1, None))
    if cls is RunConfig and rng.random() < 0.1:
        until = rng.choice(({"step": 3}, {"plateau": "reward/mean"}, {"step": 0}, {}, None, 5))
        tree["stages"] = [
            {"until": until, "set": _tree(RunConfig, rng)},
            {"set": {"actor.eps_clip": rng.choice((0.1, 0.3, "x"))}},
        ]
    return tree


def _text(cls: type[Any], rng: random.Random) -> tuple[str, dict[str, Any] | None]:
    """The text of a file, and what was given in it where that is known."""
    if rng.random() < 0.02:
        return BOMB, None
    if rng.random() < 0.25:
        file = rng.choice([QUICKSTART, *sorted(EXAMPLES.rglob("*.yaml"))])
        text = file.read_text().replace("base: ", f"base: {file.parent}/")
        return (scrambled(scrambled(text, rng, PIECES), rng, PIECES) if rng.random() < 0.8 else text), None
    tree = _tree(cls, rng)
    try:
        text = (
            json.dumps(tree)
            if rng.random() < 0.2
            else yaml.safe_dump(tree, allow_unicode=rng.random() < 0.5, sort_keys=False)
        )
    except (RecursionError, ValueError):
        return "[" * 3000, None
    if rng.random() < 0.3:
        return scrambled(text, rng, PIECES), None
    return text, tree


def _overrides(cls: type[Any], rng: random.Random) -> list[str]:
    known, words = all_keys(cls), list[str]()
    for path in rng.sample(sorted(known), rng.choice((0, 0, 1, 2))):
        name = path.replace("*", "x") if rng.random() < 0.9 else misspelt(path, rng)
        try:
            value = rng.choice((str, json.dumps))(_value(known[path], rng))
        except (RecursionError, ValueError):
            value = str(nested(50, rng))
        words.append(
            f"{rng.choice(('',) * 12 + ('+', '+', '~', '++'))}{name}{rng.choice(('=',) * 12 + ('', '=='))}{value}"
        )
    return [*words, rng.choice(ODD_OVERRIDES)] if rng.random() < 0.1 else words


def _load(kind: str, file: Path, words: list[str]) -> Loaded[Any]:
    return load_run_config([file], words) if kind == "train" else load_offline_config(kind, file, words)


@contextmanager
def opened(folder: Path) -> Iterator[Try]:
    """Feeds config files and overrides to the loaders, to what composes and explains them, and to the commands."""

    def one(rng: random.Random, folder: Path) -> str:
        (kind, cls), file = _kind(rng), folder / "own.yaml"
        text, given = _text(cls, rng)
        file.write_bytes(text.encode(rng.choice(("utf-8",) * 9 + ("utf-16",)), "surrogatepass"))
        if rng.random() < 0.05:
            (folder / "above.yaml").write_text(f"base: {rng.choice(BASES)}\n")
            file, given = folder / "above.yaml", None
        words = _overrides(cls, rng)
        if rng.random() < 0.15 and not any(word.startswith("-") for word in words):
            return check_command([rng.choice(("config", "explain")), file, *words], NAMES)
        loaded = _load(kind, file, words)
        if given is not None:
            _check_given(loaded, cls, given, file.name, words)
        _check_written(loaded, kind, folder / "again.yaml")
        if kind == "train":
            composed(loaded.value)
        return "loaded"

    yield one


def _check_given(loaded: Loaded[Any], cls: type[Any], given: dict[str, Any], name: str, words: list[str]) -> None:
    """Every value of the file is said to come from there, unless an override is about it."""
    about = [word.lstrip("+~").split("=")[0] for word in words]
    for path in _leaves(given, keys_of(cls), ""):
        if path.split(".")[0] == "algorithm" or any(path.startswith(word) or word.startswith(path) for word in about):
            continue
        if path in loaded.sources and name not in loaded.sources[path]:
            raise Wrong(f"{path} is in the file and is said to come from {loaded.sources[path]!r}")
        if path not in loaded.sources and not any(known.startswith(f"{path}.") for known in loaded.sources):
            raise Wrong(f"{path} is in the file and not in what was loaded")


def _leaves(tree: dict[str, Any], keys: dict[str, Key], before: str) -> list[str]:
    """The paths of declared values; what lies in open sections and lists is one value."""
    found = list[str]()
    for name, value in tree.items():
        key = keys.get(name)
        below = key.section if key is not None and key.shape == "section" else None
        if isinstance(value, dict) and below is not None and is_dataclass(below):
            found += _leaves(value, keys_of(below), f"{before}{name}.")
        else:
            found.append(f"{before}{name}")
    return found


def _check_written(loaded: Loaded[Any], kind: str, file: Path) -> None:
    file.write_text(loaded.to_yaml(with_sources=True), encoding="utf-8")
    same = _load(kind, file, [])
    if repr(same.tree) != repr(loaded.tree):
        ours, theirs = repr(loaded.tree), repr(same.tree)
        at = next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
        raise Wrong(
            f"written and read again it differs: {ours[max(at - 80, 0) : at + 80]!r} and {theirs[max(at - 80, 0) : at + 80]!r}"
        )
