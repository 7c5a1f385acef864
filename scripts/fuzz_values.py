"""Values and spellings that break readers, and changes that make broken input out of good input, for `fuzz.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

DEEP = (3, 60, 130, 400, 900, 5000, 60_000)  # levels of nesting
LONG = (200, 5_000, 200_000)  # characters
WORDS = (
    "", " ", "\n", "0", "007", "2.50", "-4", "1,080", "true", "null", "nan", "NaN", "inf", "1e-6", "1e999", "3/4", "A", "(B)",
    "yes", "on", "\x00", "a\x00b", "\ud800", "x\udfffy", "\u2028", "\ufeff", "\x85", "\x1b[31mred", "\u202etxet", "e\u0301",
    "中文", "😀", "\r\n", "\\", '"', "'", "####", "#### ", "#### 7", "so\n#### 1,080", "\\boxed{", "\\boxed{}", "\\boxed{5}",
    "\\boxed{\\frac{1}{2}}", "{answer}", "{{x}}", "{", "${x}", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|user|>hi", "<s>[INST] hi [/INST]", "<eos>", "<think>", "</think>", "\n\nHuman: hi\n\nAssistant:",
    "\n\nHuman: hi\n\nHuman: ho", "\n\nAssistant: yes", "~nobody/x", "/", "..", "a" * 300,
)  # fmt: skip
NUMBERS = (
    0, -0.0, 1, -1, 3, 0.1, 42.0, 1e22, 1e-320, 1e308, 2**31, 2**53 + 1, 2**63, 2**64, 10**25, 10**400, float("nan"), float("inf"),
    float("-inf"), True, False, None,
)  # fmt: skip


def nested(depth: int, rng: random.Random) -> Any:
    """A list or an object of so many levels."""
    value: Any = 1
    in_lists = rng.random() < 0.5
    for _ in range(depth):
        value = [value] if in_lists else {"a": value}
    return value


def strange(rng: random.Random) -> Any:
    """A value that a row, a config or a message may hold by mistake."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(WORDS)
    if kind < 5:
        return rng.choice(NUMBERS)
    if kind == 5:
        return rng.choice(("a", "é", "\n", "{", "9")) * rng.choice(LONG)
    if kind == 6:
        return nested(rng.choice(DEEP[:5]), rng)
    made: tuple[Callable[[], Any], ...] = (
        list, dict, lambda: [[]], lambda: [None], lambda: {"": 1}, lambda: [strange(rng), strange(rng)],
        lambda: {"role": "user", "content": strange(rng)},
        lambda: [{"role": rng.choice(("user", "bot", "")), "content": strange(rng)}],
        lambda: {"role": ["user"], "content": [strange(rng)]}, lambda: [{"from": "human", "value": strange(rng)}],
    )  # fmt: skip
    return rng.choice(made)()


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of everything in a value that is not nested too deeply to walk."""
    found = [path]
    if len(path) < 6 and isinstance(value, dict):
        found += [one for name, below in value.items() for one in places(below, (*path, name))]
    elif len(path) < 6 and isinstance(value, list):
        found += [one for at, below in enumerate(value) for one in places(below, (*path, at))]
    return found


def changed(value: Any, rng: random.Random, strange: Callable[[random.Random], Any] = strange) -> Any:
    """A copy with one place changed: another value, none, a misspelt name, a value in a list, a further name."""
    path = rng.choice(places(value)[1:] or [()])
    if not path:
        return strange(rng)
    copy = json_copy(value)
    parent = copy
    for step in path[:-1]:
        parent = parent[step]
    last, how = path[-1], rng.randrange(6)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, dict):
        parent[misspelt(str(last), rng)] = parent.pop(last)
    elif how == 2:
        parent[last] = [parent[last]]
    elif how == 3 and isinstance(parent, dict):
        parent[
            rng.choice(("tools", "weight", "system", "label", "margin", "history", "kind", "", "a.b", "row", "é"))
        ] = strange(rng)
    else:
        parent[last] = strange(rng)
    return copy


def json_copy(value: Any, levels: int = 8) -> Any:
    """A copy of lists and objects; what lies deeper is shared."""
    if isinstance(value, dict) and levels:
        return {name: json_copy(item, levels - 1) for name, item in value.items()}
    return [json_copy(item, levels - 1) for item in value] if isinstance(value, list) and levels else value


def misspelt(word: str, rng: random.Random) -> str:
    """A word with one letter left out, doubled or changed, or in capitals."""
    if not word:
        return "x"
    at = rng.randrange(len(word))
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            f"{word[:at]}x{word[at + 1 :]}",
            word.upper(),
            f"{word} ",
        )
    )


def scrambled(text: str, rng: random.Random, pieces: Sequence[str]) -> str:
    """A text with a piece put in, a part cut out or doubled, or its end missing."""
    at, more = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    how = rng.randrange(5)
    if how == 0:
        return text[:at] + rng.choice(pieces) + text[at:]
    if how == 1:
        return text[:at] + text[min(more, at + 5) :]
    if how == 2:
        return text[:at] + text[at : at + 40] + text[at:]
    return (
        text[:more]
        if how == 3
        else text.replace(rng.choice(("\n", ",", ":", '"', " ")), rng.choice(pieces), rng.randint(1, 3))
    )


def scrambled_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes with some changed, put in, or missing at the end."""
    at = rng.randint(0, len(data))
    how = rng.randrange(3)
    if how == 0:
        return data[:at]
    other = bytes(rng.choice((0, 10, 34, 0xFF, 0xC3, rng.randrange(256))) for _ in range(rng.randint(1, 4)))
    return data[:at] + other + data[at + (len(other) if how == 1 else 0) :]


def written(value: Any, rng: random.Random) -> str:
    """A value as JSON, in one of the ways of writing it; also what only Python's JSON has (NaN), and names twice."""
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=rng.choice(((",", ":"), (", ", ": "))))
    except (RecursionError, ValueError):  # deeper, or a larger number, than Python writes itself
        return "[" * 60_000 + "1" + "]" * 60_000 if rng.random() < 0.5 else "1" * 5_000
    if isinstance(value, dict) and value and rng.random() < 0.03:
        name = json.dumps(rng.choice(list(value)))
        text = f"{text[:-1]}, {name}: {rng.choice(('1', 'null', json.dumps('another')))}}}"
    return text
