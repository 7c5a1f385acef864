"""Conversations written as one text: "\\n\\nHuman: ... \\n\\nAssistant: ...", as those of hh-rlhf.

Left out: which columns hold one (`tasks.conversations`).
"""

from __future__ import annotations

import re

from partita.tasks.messages import Message, RowError, Turn, check_text

TRANSCRIPT = re.compile(r"\n\n(Human|Assistant): ?")
HUMAN = "\n\nHuman:"


def asked_in(text: str, column: str) -> list[Message]:
    """A transcript that ends where the assistant is to speak."""
    messages = [message for message, _ in turns_in(text, column)]
    return messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages


def turns_in(text: str, column: str) -> list[Turn]:
    """The turns of a transcript that begins with the human's; a mark counts at the beginning of a paragraph only."""
    check_text(text, column)
    marks = list(TRANSCRIPT.finditer(text))
    turns = list[Turn]()
    for mark, end in zip(marks, [*(after.start() for after in marks[1:]), len(text)], strict=True):
        role, said = "user" if mark[1] == "Human" else "assistant", text[mark.end() : end].strip()
        if turns and turns[-1][0]["role"] == role:
            raise RowError(
                "a transcript with two turns of one speaker in a row", f"{column}: two turns of {mark[1]} in a row"
            )
        turns.append(({"role": role, "content": said}, role == "assistant" and bool(said)))
    return turns
