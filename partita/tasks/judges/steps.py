"""Takes a response apart into steps, and finds the token at which each of them ends, without encoding anything again.

Left out: what a step is worth.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]
"""Ids to text, without special tokens."""
UNFINISHED = "\ufffd"  # a tokenizer shows bytes of an incomplete character like this
NAMED = {"lines": r"\n+", "paragraphs": r"\n\s*\n"}
"""What stands between two steps, by name."""


@dataclass(frozen=True)
class Step:
    """A step's words, and where it ends in the response: characters up to where the next one begins, what stands between them
    included.
    """

    text: str
    end: int


def split(response: str, between: str) -> list[Step]:
    """The steps of a response, none of an empty one. between: a name of `NAMED`, or a regular expression for what stands
    between steps. Parts without a word are no steps; they belong to the one before, or to the first.
    """
    pattern = re.compile(NAMED.get(between, between))
    borders = [found.span() for found in pattern.finditer(response)]
    steps, begun = list[Step](), 0
    for start, end in [*borders, (len(response), len(response))]:
        if words := response[begun:start].strip():
            steps.append(Step(words, end))
        elif steps:
            steps[-1] = Step(steps[-1].text, end)
        begun = end
    return steps


def characters(ids: Sequence[int], decode: Decode) -> list[int]:
    """How many characters of the text are complete after each token; a token that shows nothing adds none.

    Only a few ids are decoded per token. The last settled ones are decoded again with what follows, because many tokenizers
    decode an id differently at the start of a text.
    """
    found, settled_text, piece, start, settled = list[int](), 0, "", 0, 0
    for i in range(len(ids)):
        window = decode(ids[start : i + 1])
        if len(window) > len(piece) and not window.endswith(UNFINISHED):
            settled_text += len(window) - len(piece)
            start, settled = settled, i + 1
            piece = decode(ids[start:settled])
        found.append(settled_text)
    return found


def places(steps: Sequence[Step], ids: Sequence[int], decode: Decode) -> list[int]:
    """The token at which each step ends, counted from 0: the first one after which all of it is there, and for the last step
    the last token, so that the end of the response is part of it. `ids` must not be empty.
    """
    complete = characters(ids, decode)
    found = [min(bisect_left(complete, step.end), len(ids) - 1) for step in steps[:-1]]
    return [*found, len(ids) - 1] if steps else []
