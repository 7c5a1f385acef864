"""A process reward model as a reward: each step of a response is given to it and its value stands where the step ends.

It reads the user's words, then the steps, each with a separator behind it, encoded one by one as TRL's PRMTrainer trains. The
policy's own tokens are not encoded again: where a step ends among them is found by decoding (`judges.steps`).
Left out: the model itself (`models.process`), which this floor does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from partita.ops.threads import release_threads
from partita.tasks.functions import error_text
from partita.tasks.judges.steps import Decode, places, split
from partita.tasks.judges.wording import said
from partita.tasks.reward import PROCESS, Answer, RewardSetupError
from partita.tasks.reward_call import Outcome


class StepValuer(Protocol):
    """What values rows of token ids at chosen places."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its own."""
        ...

    @property
    def context(self) -> int:
        """Most tokens of a row."""
        ...

    def values(self, rows: Sequence[Sequence[int]], at: Sequence[Sequence[int]]) -> list[list[float]]:
        """One value for each place of each row."""
        ...


@dataclass(frozen=True)
class Walk:
    """A response as it is read: ids, the places where values are read, and the tokens of the response that these stand for."""

    ids: list[int]
    at: list[int]
    ends: list[int]


class ProcessReward:
    """Owns the thread in which a process reward model runs. decode: the policy's ids to text. between: what stands between two
    steps of a response; separator: what the model reads behind each. Raises RewardSetupError for one that it cannot read.
    """

    def __init__(self, valuer: StepValuer, decode: Decode, between: str, separator: str) -> None:
        self._valuer, self._decode, self._between = valuer, decode, between
        self._separator = self._ids(separator)
        if not self._separator:
            raise RewardSetupError(
                f"reward.process_separator={separator!r} has no token in the process reward model's tokenizer; name a text that has"
            )
        self._thread = ThreadPoolExecutor(1, PROCESS)

    async def ask(self, answers: Sequence[Answer]) -> list[Outcome]:
        """See `tasks.reward.Judge`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._judge, answers)

    def close(self) -> None:
        """End the thread; what waits for it is not judged."""
        self._thread.shutdown(cancel_futures=True)

    def walk(self, answer: Answer) -> Walk | Outcome:
        """How an answer is read, or why it cannot be."""
        steps = split(answer.text, self._between)
        if not (steps and answer.ids):
            return Outcome(None, error="the response has no step")
        begin = self._valuer.tokenizer.bos_token_id
        ids = [*([begin] if isinstance(begin, int) else []), *self._ids(said(answer))]
        at = list[int]()
        for step in steps:
            ids += [*self._ids(step.text), *self._separator]
            at.append(len(ids) - 1)
        if len(ids) > self._valuer.context:
            return Outcome(
                None, error=f"{len(ids)} tokens of prompt and steps; it reads {self._valuer.context} at most"
            )
        return Walk(ids, at, places(steps, answer.ids, self._decode))

    def _judge(self, answers: Sequence[Answer]) -> list[Outcome]:
        read = [self.walk(answer) for answer in answers]
        walks = [one for one in read if isinstance(one, Walk)]
        try:
            values = self._valuer.values([walk.ids for walk in walks], [walk.at for walk in walks])
            found = iter([_outcome(walk, of_walk) for walk, of_walk in zip(walks, values, strict=True)])
        except Exception as error:  # whatever the model's code raises is these samples' error, kept with its traceback
            found = iter([Outcome(None, error=error_text(error))] * len(walks))
        release_threads()
        return [next(found) if isinstance(one, Walk) else one for one in read]

    def _ids(self, text: str) -> list[int]:
        encoded = self._valuer.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(encoded)  # pyright: ignore[reportArgumentType]


def _outcome(walk: Walk, values: Sequence[float]) -> Outcome:
    if not all(0 <= value <= 1 for value in values):  # NaN is not in between
        return Outcome(None, error=f"the values of the steps are {list(values)}, not numbers from 0 to 1")
    return Outcome(sum(values) / len(values), steps=tuple(zip(walk.ends, values, strict=True)))
