"""Whether a server computes with the weights that the trainer has: one fixed prompt, asked of both after each update.

Left out: how the trainer scores. It is handed in, because an engine knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.api import Draw, Sampling
from partita.engine.servers.api import Answer, Ask, EngineError

Score = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""(prompt ids, ids that follow, temperature) -> the trainer's log-prob of each id that follows."""
DRAW = Draw(seed=0, stream=2**32 - 1, serial=0, sample=0)
MOVED = 1e-3
"""Nats by which the trainer's log-probs must have moved before a server that has not moved at all is called stale: rounding
to the server's precision may swallow less."""


@dataclass(frozen=True)
class _Seen:
    """What was found after an update: the version, the server's answers by its name, and the trainer's log-probs by ids."""

    version: int
    answers: Mapping[str, Answer]
    scores: Mapping[tuple[int, ...], tuple[float, ...]]


class Probe:
    """limit: mean difference of a log-prob, in nats, beyond which server and trainer do not have the same weights."""

    def __init__(
        self, score: Score, prompt_ids: Sequence[int], *, tokens: int, temperature: float, limit: float
    ) -> None:
        self.score, self.limit, self._temperature = score, limit, temperature or 1.0
        sampling = Sampling(max_new_tokens=tokens, temperature=self._temperature)
        self.ask = Ask(tuple(prompt_ids), sampling, DRAW)
        self.difference = 0.0
        """The largest of the last comparison."""
        self._seen: _Seen | None = None

    def compare(self, answers: Mapping[str, Answer], version: int) -> None:
        """Compare what the servers, by name, sampled with the trainer's weights of `version`. Raises EngineError."""
        scores = {answer.ids: self._scored(answer.ids) for answer in answers.values()}
        found = {name: apart(answer.logprobs, scores[answer.ids]) for name, answer in answers.items()}
        before, self._seen = self._seen, _Seen(version, answers, scores)
        self.difference = max(found.values(), default=0.0)
        for name, difference in found.items():
            if before is not None:
                self._check_moved(name, before, answers[name], scores[answers[name].ids], version)
            self._check(name, difference, version)

    def check_again(self, name: str, answer: Answer, version: int) -> None:
        """Compare what a server that came back sampled with what the trainer said of these weights before, as far as the
        same ids were drawn. Raises EngineError.
        """
        seen = self._seen
        if seen is None or seen.version != version:
            return
        ids = max(seen.scores, key=lambda ids: _common(ids, answer.ids))
        same = _common(ids, answer.ids)
        if same:
            self._check(name, apart(answer.logprobs[:same], seen.scores[ids][:same]), version)

    def _scored(self, ids: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(self.score(self.ask.prompt_ids, ids, self._temperature))

    def _check(self, name: str, difference: float, version: int) -> None:
        if not difference <= self.limit:  # nan too
            raise EngineError(
                f"{name} has taken the weights of version {version}, but its log-probs of a probe prompt differ by "
                f"{difference:.4g} nats a token from the trainer's of version {version} (limit {self.limit:g}, "
                "rollout.probe.max_difference): it computes with other weights, with another model than actor.path, or not "
                "at the sampling temperature"
            )

    def _check_moved(self, name: str, before: _Seen, answer: Answer, scores: tuple[float, ...], version: int) -> None:
        """Equal to the last bit, though the trainer's own log-probs of the same tokens moved: these are the old weights."""
        old, old_scores = before.answers.get(name), before.scores.get(answer.ids)
        if old is None or old_scores is None or (old.ids, old.logprobs) != (answer.ids, answer.logprobs):
            return
        moved = apart(scores, old_scores)
        if moved > MOVED:
            raise EngineError(
                f"{name} has taken the weights of version {version}, but answers a probe prompt exactly as with version "
                f"{before.version}, while the trainer's log-probs moved by {moved:.4g} nats a token between the two: it still "
                f"computes with version {before.version}"
            )


def apart(some: Sequence[float], others: Sequence[float]) -> float:
    """Mean absolute difference; 0 of none."""
    differences = [abs(one - other) for one, other in zip(some, others, strict=True)]
    return sum(differences) / max(1, len(differences))


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(some), len(others)))
