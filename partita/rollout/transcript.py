"""One token row in the making: what the policy wrote, and what it was told in between.

Left out: which ids stand between the two (`tasks.chat`), and when a conversation ends (`rollout.dialogue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.api import Completion
from partita.records import Row


class Transcript:
    """Grows from the ids of a prompt by turns. Sampled ids are kept as they were sampled, with their log-probs and versions."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt_ids)
        self.turns = 0
        """Completions so far."""
        self._prompt = len(self.ids)
        self._trained = [False] * len(self.ids)
        self._logprobs = [0.0] * len(self.ids)
        self._versions = [-1] * len(self.ids)

    def said(self, completion: Completion) -> None:
        """The policy's turn, trained on: a continuation of exactly `ids`."""
        self.ids += completion.ids
        self._trained += [True] * len(completion.ids)
        self._logprobs += completion.logprobs
        self._versions += completion.versions
        self.turns += 1

    def told(self, ids: Sequence[int]) -> None:
        """Whatever the policy did not write, not trained on."""
        self.ids += ids
        self._trained += [False] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._versions += [-1] * len(ids)

    @property
    def trained(self) -> list[int]:
        """The ids that the policy wrote, of all turns."""
        return [one for one, own in zip(self.ids, self._trained, strict=True) if own]

    @property
    def after(self) -> list[int]:
        """All ids that followed the prompt, whoever wrote them."""
        return self.ids[self._prompt :]

    def row(self) -> Row:
        """A copy as the record that is trained on."""
        return Row(list(self.ids), list(self._trained), list(self._logprobs), list(self._versions))
