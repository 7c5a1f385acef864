"""Text of sampled ids, and stop strings found while tokens arrive.

Left out: encoding. What was sampled is never turned back into ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # a tokenizer shows bytes of an incomplete character like this


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of `ids` without special tokens, spaces as they were sampled."""
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """`text` up to the first stop string in it; None when there is none."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else None


class StopWatch:
    """Tells whether the text of a growing completion contains a stop string, decoding only a few ids per token.

    A stop string may span tokens or end inside one. The text is settled piece by piece; the last settled piece is
    decoded again with what follows, because many tokenizers decode an id differently at the start of a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._overlap = max(map(len, stops)) - 1
        self._tail = ""  # the end of the settled text, shorter than the longest stop string
        self._piece = ""  # text of the last settled ids, _start .. _settled
        self._start = self._settled = 0
        self.hit = False

    def look(self, ids: list[int]) -> bool:
        """Call after every token with all ids so far; True from the first stop string on."""
        window = decode(self._tokenizer, ids[self._start :])
        text = self._tail + window[len(self._piece) :]
        self.hit = self.hit or any(stop in text for stop in self._stops)
        if len(window) > len(self._piece) and not window.endswith(UNFINISHED):
            self._tail = text[max(0, len(text) - self._overlap) :]
            self._start, self._settled = self._settled, len(ids)
            self._piece = decode(self._tokenizer, ids[self._start : self._settled])
        return self.hit
