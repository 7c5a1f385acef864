"""Write docs/algorithms.md and docs/zh/algorithms.md: hand-written text from docs/src, with what the code knows put in.

usage: python scripts/algorithm_pages.py [--check]

A source holds `{{keys}}` (every algorithm key with its default and the presets that set it) and, for each preset,
`{{preset NAME}}` (paper, formula, parts, keys, difference to grpo). Raises ValueError for a source that leaves out a
preset, a part, or a choice of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pages

from partita.algo import credit, gate, keep, penalty, ratio, reduce, rows, shape
from partita.algo.explain import BASELINE, explain
from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig
from partita.algo.presets import PRESETS, SOURCES
from partita.config.document import dump
from partita.config.schema import plain

COMMAND = "scripts/algorithm_pages.py"
DOCS = pages.ROOT / "docs"
PART_MODULES = (credit, gate, keep, penalty, ratio, reduce, rows, shape)


@dataclass(frozen=True)
class Language:
    """A page, its source, and the words around what is made from code."""

    source: Path
    page: Path
    made: str
    paper: str
    parts: str
    sets: str
    keys: str
    difference: str


LANGUAGES = (
    Language(
        DOCS / "src" / "algorithms.en.md",
        DOCS / "algorithms.md",
        f"Made by `python {COMMAND}` from the code and `docs/src/algorithms.en.md`; change those, not this page.",
        "Paper: ",
        "| slot | part, with n_samples 8 and max_new_tokens 1024 |",
        "Keys:",
        "| key | default | set by |",
        "Difference to grpo, whose value stands in brackets:",
    ),
    Language(
        DOCS / "src" / "algorithms.zh.md",
        DOCS / "zh" / "algorithms.md",
        f"本页由 `python {COMMAND}` 根据代码和 `docs/src/algorithms.zh.md` 生成；请改后两者，不要直接改本页。",
        "论文：",
        "| 槽位 | 部件（n_samples 为 8，max_new_tokens 为 1024） |",
        "键：",
        "| 键 | 默认值 | 由谁设置 |",
        "与 grpo 的不同（括号内是 grpo 的值）：",
    ),
)


def generated() -> dict[Path, str]:
    """Both pages and their texts."""
    return {language.page: _page(language) for language in LANGUAGES}


def _page(language: Language) -> str:
    text = language.source.read_text(encoding="utf-8")
    if missing := list(unmentioned(text)):
        raise ValueError(f"{language.source.relative_to(pages.ROOT)} does not mention {', '.join(missing)}")
    text = text.replace("{{keys}}", key_table(language))
    for name in PRESETS:
        text = text.replace(f"{{{{preset {name}}}}}", preset_section(name, language))
    if left := re.search(r"\{\{.*?\}\}", text):
        raise ValueError(f"{language.source.relative_to(pages.ROOT)}: {left[0]} stands for nothing")
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{language.made}\n{rest}"


def unmentioned(text: str) -> Iterator[str]:
    """Presets without a place, and parts and choices of keys that the text never names in code quotes."""
    yield from (f"{{{{preset {name}}}}}" for name in PRESETS if f"{{{{preset {name}}}}}" not in text)
    quoted = " ".join(re.findall(r"`([^`\n]+)`", text))
    words = set(re.findall(r"\w+", quoted))
    yield from (name for name in (*part_names(), *choices()) if name not in words)


def part_names() -> Iterator[str]:
    """Every part that a key can bring in: the callable dataclasses of the slot modules."""
    for module in PART_MODULES:
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and is_dataclass(value) and "__call__" in vars(value):
                yield name


def choices() -> Iterator[str]:
    """Every word that a key of AlgorithmKeys itself can take, and the filters of dynamic sampling."""
    for hint in (*get_type_hints(AlgorithmKeys).values(), get_type_hints(DynamicSampling)["filter"]):
        yield from (word for word in get_args(hint) if isinstance(word, str))


def preset_section(name: str, language: Language) -> str:
    """Paper, formula, parts, keys and difference of one preset."""
    said, source = _sections(name), SOURCES[name]
    slots = [line.split(": ", 2) for line in _under(said, "Parts")]
    keys = [line.strip("`").removeprefix("actor.") for line in _under(said, "Keys")]
    lines = [
        f"{language.paper}[{source.title}]({source.url})",
        "",
        *("```", *source.formula, "```", ""),
        *(language.parts, "|---|---|"),
        *(f"| {slot} | `{part}` |" for slot, part, _ in slots),
        *("", language.sets, "", "```yaml", "actor:", *(f"  {line}" for line in keys), "```"),
    ]
    if name != BASELINE:
        lines += ["", language.difference, "", *(f"- {line}" for line in _under(said, "Difference"))]
    return "\n".join(lines)


def _sections(name: str) -> dict[str, list[str]]:
    """The bullets that `explain` has under each heading."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in explain(name):
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("- "):
            found.setdefault(heading, []).append(line.removeprefix("- "))
    return found


def _under(said: dict[str, list[str]], start: str) -> list[str]:
    return next(lines for heading, lines in said.items() if heading.startswith(start))


def key_table(language: Language) -> str:
    """One row per key: its default, and each preset that sets it, with the value. `reward_norm` is made as `adv_norm`."""
    nested: dict[str, type[Any]] = {"adv_norm": NormConfig, "dynamic_sampling": DynamicSampling}
    lines = [language.keys, "|---|---|---|"]
    for item in fields(AlgorithmKeys):
        below = nested.get(item.name)
        lines.append(_key_row(item.name, item.default, {} if below else PRESETS))
        if below:
            given = {name: keys[item.name] for name, keys in PRESETS.items() if item.name in keys}
            lines += [_key_row(inner.name, inner.default, given, f"{item.name}.") for inner in fields(below)]
    return "\n".join(lines)


def _key_row(name: str, default: Any, given: Mapping[str, Mapping[str, Any]], prefix: str = "") -> str:
    users = ", ".join(f"{user} `{_shown(keys[name])}`" for user, keys in given.items() if name in keys)
    return f"| `{prefix}{name}` | `{_shown(default)}` | {users} |"


def _shown(value: Any) -> str:
    return dump(plain(value))


if __name__ == "__main__":
    pages.main(generated(), COMMAND, "write docs/algorithms.md and docs/zh/algorithms.md")
