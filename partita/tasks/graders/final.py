"""Where the final answer of a response stands, for graders that compare texts.

Left out: mathematics, whose last number or answer line may be the answer; see `graders.math`.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")
_OPEN, _CLOSE = "<answer>", "</answer>"
_THINK = "<think>"


def with_opened_thought(prompt: str, response: str) -> str:
    """The response with the `<think>` that the prompt ends with, as the templates of some models do; else as it is."""
    opened = prompt.rstrip().endswith(_THINK) and not response.lstrip().startswith(_THINK)
    return _THINK + response if opened else response


def after_thinking(response: str) -> str | None:
    """What follows the last `</think>`; None where a `<think>` is not closed."""
    response = response.rpartition("</think>")[2]
    return None if _THINK in response else response


def final_text(response: str) -> str:
    """The final answer of a response, "" without one: what the last `\\boxed` holds, else what stands in the last
    `<answer>...</answer>`, else all of it; only what follows `</think>` counts.
    """
    text = after_thinking(response)
    if text is None:
        return ""
    if "\\boxed" in text:
        return last_box(text) or ""
    return (last_tagged(text) or "") if has_tags(text) else text.strip()


def has_tags(text: str) -> bool:
    """Whether `<answer>` or `</answer>` stands in it."""
    return _OPEN in text or _CLOSE in text


def last_tagged(text: str) -> str | None:
    """What stands in the last `<answer>...</answer>`, or before the first `</answer>` where the prompt opened it; None when it
    is empty or not closed.
    """
    if text.rfind(_OPEN) > text.rfind(_CLOSE):
        return None
    return text.rpartition(_CLOSE)[0].rpartition(_OPEN)[2].strip() or None


def last_box(text: str) -> str | None:
    """What the last `\\boxed{...}` holds, braces balanced; None when it is empty, unfinished or has no braces."""
    start = text.rfind("\\boxed") + len("\\boxed")
    while start < len(text) and text[start].isspace():
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 2  # an escaped brace does not nest
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start + 1 : at].strip() or None
        at += 1
    return None


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Mark and content of each fenced block that is closed. A fence with a mark begins a new block even within one."""
    blocks: list[tuple[str, str]] = []
    fence, mark, inside = "", "", list[str]()
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line)
        if found and found[1].startswith(fence) and (found[2] or not fence):
            fence, mark, inside = found[1], found[2], []
        elif found and fence and found[1].startswith(fence):
            blocks.append((mark, "".join(inside)))
            fence = ""
        else:
            inside.append(line + "\n")
    return blocks
