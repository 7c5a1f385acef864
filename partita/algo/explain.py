"""An algorithm in words: its keys, its parts, its formula, its paper, and how it differs from `grpo`.

Left out: colours and width. Lines are Markdown; a console may render them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, cast

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig
from partita.algo.presets import SOURCES, preset
from partita.algo.review import Section, review

BASELINE = "grpo"


def keys_of(name: str) -> AlgorithmKeys:
    """A preset as typed keys. Raises ValueError for an unknown name."""
    nested: dict[str, Callable[..., Any]] = {
        "adv_norm": NormConfig,
        "reward_norm": NormConfig,
        "dynamic_sampling": DynamicSampling,
    }
    values = {key: nested[key](**value) if key in nested else value for key, value in preset(name).items()}
    return AlgorithmKeys(**values)


def describe(algorithm: Algorithm) -> list[str]:
    """One line for each part: its slot, its values, and what it does."""
    lines: list[str] = []
    for slot in fields(algorithm):
        filled: Any = getattr(algorithm, slot.name)
        parts = cast(tuple[object, ...], filled) if isinstance(filled, tuple) else (filled,)
        lines += [f"{slot.name}: {_shown(part)}: {_first_sentence(part)}" for part in parts if part is not None]
    return lines


def explain(name: str, *, n_samples: int = 8, max_new_tokens: int = 1024) -> list[str]:
    """Markdown lines on a preset, composed for that many samples and tokens. Raises ValueError for an unknown name."""
    keys, source = keys_of(name), SOURCES[name]
    found = review(keys, n_samples=n_samples, max_new_tokens=max_new_tokens)
    parts = describe(compose(keys, n_samples=n_samples, max_new_tokens=max_new_tokens))
    lines = [
        f"# {name}",
        "",
        f"{source.title}. {source.url}",
        "",
        "## Formula",
        *_bullets(source.formula),
        "",
        "## Keys",
    ]
    lines += [f"- `actor.{key}: {_yaml(value)}`" for key, value in preset(name).items()]
    lines += ["", f"## Parts (n_samples {n_samples}, max_new_tokens {max_new_tokens})", *_bullets(parts)]
    for title, notes in (("Without effect", found.inactive), ("Filled in", found.assumed), ("Advice", found.advice)):
        if notes:
            lines += ["", f"## {title}", *_bullets(notes)]
    if name != BASELINE:
        lines += ["", f"## Difference to {BASELINE}", *_bullets(difference(keys, keys_of(BASELINE)))]
    return lines


def difference(keys: AlgorithmKeys, other: AlgorithmKeys) -> list[str]:
    """`key: value here (value there)` for every key on which the two differ."""
    return [f"`{path}`: {mine} ({theirs})" for path, mine, theirs in _differing(keys, other, "")]


def _differing(mine: Section, theirs: Section, prefix: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for item in fields(mine):
        left, right = getattr(mine, item.name), getattr(theirs, item.name)
        if isinstance(left, Section) and isinstance(right, Section):
            found += _differing(left, right, f"{prefix}{item.name}.")
        elif left != right:
            found.append((prefix + item.name, _yaml(left), _yaml(right)))
    return found


def _bullets(lines: list[str] | tuple[str, ...]) -> list[str]:
    return [f"- {line}" for line in lines]


def _yaml(value: Any) -> str:
    if isinstance(value, Section):
        default = type(value)()
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        value = {key: item for key, item in named.items() if item != getattr(default, key)} or named
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in items) + "}"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _shown(part: Any) -> str:
    if callable(part) and hasattr(part, "__name__"):
        return part.__name__
    if not is_dataclass(part):
        return str(part)
    values = ((f.name, getattr(part, f.name)) for f in fields(part))
    inside = ", ".join(f"{name}={_shown(value)}" for name, value in values)
    return f"{type(part).__name__}({inside})"


def _first_sentence(part: object) -> str:
    return " ".join((type(part).__doc__ or "").split("\n\n")[0].split())
