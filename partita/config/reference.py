"""Markdown tables of every key, made from the schema: path, type, bounds, default and meaning, by section."""

from __future__ import annotations

from typing import Any

from partita.config.document import dump
from partita.config.schema import Key, is_map, keys_of


def reference_markdown(cls: type[Any], title: str) -> str:
    """The reference page of a config: one heading and one table per section, in declared order.

    A section whose keys and defaults were already listed refers to the first place. Raises ValueError with the names of
    keys that have no doc.
    """
    page = _Page()
    page.section(cls, "", {}, "")
    if page.undocumented:
        raise ValueError("keys without a doc: " + ", ".join(page.undocumented))
    return "\n\n".join([f"# {title}", *page.parts]) + "\n"


class _Page:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.undocumented: list[str] = []
        self.listed: list[tuple[type[Any], dict[str, Any], str]] = []

    def section(self, cls: type[Any], path: str, given: dict[str, Any], note: str) -> None:
        """One section, then those below it. `given` holds defaults that differ from the class's own."""
        keys = keys_of(cls)
        defaults = {name: given.get(name, key.default) for name, key in keys.items()}
        if path:
            self.parts.append(f"## `{path}`")
        first = next((where for kind, same, where in self.listed if kind is cls and same == defaults), None)
        if first is not None:
            self.parts.append(f"{note}The same keys and defaults as `{first}`.")
            return
        self.listed.append((cls, defaults, path))
        intro = (note + _summary(cls)).strip()
        if intro:
            self.parts.append(intro)
        rows = [_row(path, key, defaults[name]) for name, key in keys.items() if key.section is None]
        self.undocumented += [_join(path, name) for name, key in keys.items() if not key.doc and key.section is None]
        if rows:
            self.parts.append("\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows]))
        for name, key in keys.items():
            if key.section is not None:
                self.below(key, _join(path, name), defaults[name])

    def below(self, key: Key, path: str, default: Any) -> None:
        """The section, or the sections, that a key holds."""
        place = path + {"list": "[]", "map": ".<name>"}.get(key.shape, "")
        note = f"{key.doc[0].upper()}{key.doc[1:].removesuffix('.')}. " if key.doc else ""
        if key.shape != "section":
            note += f"A {key.shape} of sections, empty by default. " if not default else f"A {key.shape} of sections. "
        elif default is None:
            note += "Absent (null) by default. "
        given: dict[str, Any] = default if key.shape == "section" and is_map(default) else {}
        if key.section is not None:
            self.section(key.section, place, given, note)


def _row(path: str, key: Key, default: Any) -> str:
    kind = f"{key.kind}; {key.limits}" if key.limits else key.kind
    shown = "required" if key.needed else f"`{dump(default)}`"
    cells = (f"`{_join(path, key.name)}`", kind, shown, key.doc)
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _summary(cls: type[Any]) -> str:
    # A dataclass without a docstring gets its signature as one.
    text = (cls.__doc__ or "").strip()
    return "" if text.startswith(f"{cls.__name__}(") else text.split("\n\n")[0].replace("\n", " ")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
