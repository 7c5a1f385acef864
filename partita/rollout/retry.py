"""The workflow that tells the policy when it was wrong, and lets it try again in the same conversation.

Left out: drawing a group anew until it is mixed (`rollouts.Retry`): there nobody is told anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from partita.engine.api import Completion
from partita.records import Sample
from partita.rollout.dialogue import Dialogue, Rows, check_rows
from partita.rollout.workflow import Episode
from partita.tasks.functions import error_text, load_object
from partita.tasks.reading import filled
from partita.tasks.reward import Scored

FEEDBACK = "That is not right. Look at it again, and answer anew."


@dataclass(eq=False)
class RetryWithFeedback:
    """A workflow of up to `tries` answers. All fields are keys of `rollout.workflow_kwargs`.

    right: an answer with this reward or more ends it. feedback: what a wrong answer is told, a text with places in braces as
    {reward}, {response}, {try} and the row's columns; {{name}} is {name} itself. feedback_function: in its place a function of
    (response, scored, row) that returns the text, or its name as path/file.py:function. discount: the reward is that of the last
    try, times this for every try before it. rows: see `rollout.dialogue`.

    Reward functions are asked about each try by itself. A try that was cut, or that has no reward, is the last. Raises ValueError
    for values that cannot work, LoadError for a name that leads nowhere, DataError at a place that no column fills.
    """

    tries: int = 2
    feedback: str = FEEDBACK
    feedback_function: str | Callable[..., str] | None = None
    right: float = 1.0
    discount: float = 1.0
    rows: Rows = "one"

    def __post_init__(self) -> None:
        if self.tries < 1 or not 0 < self.discount <= 1:
            raise ValueError(f"tries={self.tries}, discount={self.discount}; expected 1 or more, and above 0 up to 1")
        check_rows(self.rows)
        given = self.feedback_function
        self._function: Any = load_object(given) if isinstance(given, str) else given

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`."""
        talk, first, before = Dialogue(episode, rows=self.rows), Scored(None), 0
        for tried in range(1, self.tries + 1):
            before = talk.length
            said = await talk.ask()
            scored = await episode.score(said.text, said.ids, said.stop_reason, talk.transcript)
            first = scored if tried == 1 else first
            if scored.reward is None or scored.reward >= self.right or tried == self.tries:
                break
            try:
                told = self._told(episode, said, scored, tried)
            except FeedbackFailed as error:
                scored = Scored(None, scored.parts, "reward_error", f"feedback: {error}")
                break
            if not talk.tell(told):
                break
        rights = {"retry/first_right": first, "retry/right": scored}
        metrics = {name: float(one.reward >= self.right) for name, one in rights.items() if one.reward is not None}
        return talk.sample(_discounted(scored, self.discount ** (tried - 1), before), metrics)

    def _told(self, episode: Episode, said: Completion, scored: Scored, tried: int) -> str:
        row = episode.prompt.row
        if self._function is None:
            return filled(self.feedback, {**row, "reward": scored.reward, "response": said.text, "try": tried})
        try:
            return str(self._function(said.text, scored, dict(row)))
        except Exception as error:  # as with a reward: the error of this sample
            raise FeedbackFailed(error_text(error)) from error


class FeedbackFailed(RuntimeError):
    """A feedback function raised."""


def _discounted(scored: Scored, factor: float, before: int) -> Scored:
    """The worth of the last try within the whole sample. before: trained tokens of the tries before it."""
    steps = [(at + before, factor * worth) for at, worth in scored.step_rewards]
    reward = None if scored.reward is None else factor * scored.reward
    return replace(scored, reward=reward, step_rewards=steps)
