"""Prompts that bring the markers of a chat template along, and what they mean without them.

`<｜User｜>How long?<｜Assistant｜><think>` shown in a template would have two user markers, one of which the model has never
seen inside a turn. Such a text is used as it is where its markers are the model's own, else it is taken apart.

Left out: markers in the middle of a text. They are what somebody wrote about, and stay words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from partita.tasks.messages import Message

_BOS = r"(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)?\s*"
_ENDS = r"(?:<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<\|end\|>|<\|endoftext\|>|</s>|<eos>)?\s*"


@dataclass(frozen=True)
class Layout:
    """One family's way of writing turns, by its markers. system: empty where it has none. leads: a system message without
    a marker may stand before the first turn.
    """

    user: str
    assistant: str
    system: str = ""
    leads: bool = False

    def opens(self, text: str) -> bool:
        """Whether a text begins like a conversation of this layout."""
        markers = "|".join(re.escape(marker) for marker in (self.user, self.system) if marker)
        if re.match(f"{_BOS}(?:{markers})", text):
            return True
        return self.leads and self.user in text and self.assistant in text

    def asks(self, text: str) -> bool:
        """Whether a text of this layout ends where the assistant is to speak."""
        return text.rfind(self.assistant) > text.rfind(self.user)

    def is_of(self, template: str) -> bool:
        """Whether a chat template writes turns with these markers."""
        return all(re.sub(r"(?<=>).*", "", marker) in template for marker in (self.user, self.assistant))

    def take_apart(self, text: str) -> Taken | None:
        """The messages of a text with one turn of the user and the beginning of the assistant's; None for any other."""
        user, assistant, system = (re.escape(marker) for marker in (self.user, self.assistant, self.system))
        before = rf"(?:{system}(?P<system>.*?){_ENDS})?" if self.system else ""
        before = r"(?P<system>.*?)" if self.leads else before
        found = re.fullmatch(rf"{_BOS}{before}{user}(?P<user>.*?){_ENDS}{assistant}(?P<begun>.*)", text, re.DOTALL)
        inner = "" if found is None else found["user"] + found["begun"]
        if found is None or any(marker in inner for marker in (self.user, self.assistant, "<<SYS>>")):
            return None
        told = (found.groupdict().get("system") or "").strip()
        said = [("system", told)] if told else []
        messages = tuple({"role": role, "content": words} for role, words in [*said, ("user", found["user"].strip())])
        begun = found["begun"].lstrip()
        return Taken(messages, begun)


@dataclass(frozen=True)
class Taken:
    """A templated text apart: its messages, and how the answer begins (`<think>`), empty where it does not."""

    messages: tuple[Message, ...]
    begun: str


LAYOUTS = (
    Layout("<｜User｜>", "<｜Assistant｜>", leads=True),
    Layout("<|im_start|>user", "<|im_start|>assistant", "<|im_start|>system"),
    Layout(
        "<|start_header_id|>user<|end_header_id|>", "<|start_header_id|>assistant<|end_header_id|>",
        "<|start_header_id|>system<|end_header_id|>",
    ),
    Layout("<start_of_turn>user", "<start_of_turn>model"),
    Layout("<|user|>", "<|assistant|>", "<|system|>"),
    Layout("[INST]", "[/INST]"),
)  # fmt: skip
"""DeepSeek's, ChatML, Llama 3's, Gemma's, Phi's and Mistral's."""


def layout_of(text: str) -> Layout | None:
    """The layout that a text is written in, None for plain words."""
    return next((layout for layout in LAYOUTS if layout.opens(text)), None)
