"""A conversation of the policy with whoever answers it, as token rows: ask, tell, ask again, until it is over.

It is over with a turn that was cut, or when the context has no room for what would be told and an answer. Rows come about in
one of two ways. "one": a single row that grows; what was sampled stays as it is. "rerendered": the template shows the whole
conversation anew before every turn, as it does when a model is used in a chat, so that it may leave earlier thinking out; where
that goes on from the row before it, the row grows, else a new one begins. A token is trained in the row it was sampled in.

Left out: rewards, and who answers (`rollout.multi_turn`, `rollout.retry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from partita.engine.api import Completion
from partita.records import Row, Sample, StopReason
from partita.rollout.transcript import Transcript
from partita.rollout.workflow import Episode, sample_of
from partita.tasks.chat import Messages
from partita.tasks.reward import Scored

Rows = Literal["one", "rerendered"]
ROWS: tuple[Rows, ...] = ("one", "rerendered")
NOTHING = Completion((), (), (), "length", "")
"""What is said when a conversation is over."""
BETWEEN_TURNS = "\n\n"


class Dialogue:
    """One conversation, which opens with the prompt's messages or with those given.

    stop_reason: of the last turn, and "length" once there was no room. turns: completions so far.
    """

    def __init__(self, episode: Episode, messages: Messages | None = None, rows: Rows = "one") -> None:
        self.stop_reason: StopReason = "stop"
        self.turns = 0
        self._episode, self._rerender = episode, rows == "rerendered"
        self._messages = [dict(message) for message in messages or episode.prompt.messages]
        # as it was rendered with its data set, where nothing was put to it
        opening = episode.prompt.ids if messages is None else episode.chat.opening(self._messages)
        self._rows = [Transcript(opening)]
        self._texts: list[str] = []
        self._told: list[str] = []  # what followed the prompt, in turns, as text
        self._last: Sequence[int] = ()
        if episode.room(opening) < 1:
            self.stop_reason = "length"

    @property
    def over(self) -> bool:
        """Whether the policy cannot be asked again."""
        return self.stop_reason != "stop"

    @property
    def text(self) -> str:
        """What the policy wrote, its turns with an empty line between them."""
        return BETWEEN_TURNS.join(self._texts)

    @property
    def transcript(self) -> str:
        """All that followed the prompt: the turns of the policy and what it was told, with empty lines between them."""
        return BETWEEN_TURNS.join(self._told)

    @property
    def trained(self) -> list[int]:
        """The ids that the policy wrote, of all rows."""
        return [one for row in self._rows for one in row.trained]

    @property
    def length(self) -> int:
        """How many these are."""
        return len(self.trained)

    async def ask(self, *, max_new_tokens: int | None = None, stop: Sequence[str] = ()) -> Completion:
        """The policy's next turn; an empty one with stop reason "length" when the conversation is over."""
        if self.over:
            return NOTHING
        row = self._rows[-1]
        completion = await self._episode.generate(row.ids, max_new_tokens=max_new_tokens, stop=stop)
        row.said(completion)
        self.turns += 1
        self._last, self.stop_reason = completion.ids, completion.stop_reason
        self._texts.append(completion.text)
        self._told.append(completion.text)
        rendering = self._episode.chat.rendering
        before = "" if rendering is None else rendering.prefill
        self._messages.append({"role": "assistant", "content": before + completion.text})
        return completion

    def tell(self, said: str | Messages) -> bool:
        """Answer the policy with a user's text, or with messages. False, and nothing is told, when the conversation is over or
        has no room for this and a token more; it is over then.
        """
        if self.over:
            return False
        messages: Messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        grown = self._grown(messages)
        if self._episode.room(grown) < 1:
            self.stop_reason = "length"
            return False
        row = self._rows[-1]
        if grown[: len(row.ids)] == row.ids:
            row.told(grown[len(row.ids) :])
        else:
            self._rows.append(Transcript(grown))
        self._messages += [dict(message) for message in messages]
        self._told += [str(message["content"]) for message in messages]
        return True

    def cut(self) -> None:
        """End it here, before its own end."""
        self.stop_reason = "length"

    def _grown(self, messages: Messages) -> list[int]:
        """What is to be sampled from when this has been told."""
        chat = self._episode.chat
        if self._rerender:
            return chat.opening([*self._messages, *messages])
        return [*self._rows[-1].ids, *chat.reply(self._last, messages)]

    def rows(self) -> list[Row]:
        """The token rows so far, without one that the policy has not spoken in."""
        return [row.row() for i, row in enumerate(self._rows) if row.turns or i == 0]

    def sample(self, scored: Scored, metrics: Mapping[str, float] | None = None) -> Sample:
        """The record of it all."""
        return sample_of(self.rows(), self.stop_reason, self.text, scored, metrics)


def check_rows(value: Any) -> None:
    """Raises ValueError for anything but one of `ROWS`."""
    if value not in ROWS:
        raise ValueError(f"rows={value!r}; expected one of {', '.join(ROWS)}")
