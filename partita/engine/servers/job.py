"""A request on its way to the servers: what is left to sample of it, and who waits for it.

Left out: sending it.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from partita.engine.api import Completion
from partita.engine.draft import Draft
from partita.engine.servers.api import Answer, Ask
from partita.records import StopReason


@dataclass(eq=False)
class Job:
    """losses: how often its server was lost meanwhile."""

    draft: Draft
    future: Future[Completion]
    losses: int = 0

    @property
    def ask(self) -> Ask:
        """What is left to sample of it."""
        request, done = self.draft.request, len(self.draft.ids)
        left = replace(
            request.sampling,
            max_new_tokens=self.draft.limit - done,
            min_new_tokens=max(0, request.sampling.min_new_tokens - done),
        )
        return Ask((*request.prompt_ids, *self.draft.ids), left, request.draw, done)

    def take(self, answer: Answer) -> StopReason | None:
        """Append what was sampled, no further than the completion goes; why that ends with it, if it does.

        Raises FloatingPointError.
        """
        for token, logprob, version in zip(answer.ids, answer.logprobs, answer.versions, strict=True):
            if not math.isfinite(logprob):
                raise FloatingPointError(
                    f"non-finite log-prob after {len(self.draft.ids)} tokens of {self.draft.request.draw}"
                )
            reason = self.draft.add(token, logprob, version)
            if reason is not None:
                return reason
        # the server reads a stop string, or the end of its context, where we do not
        return None if answer.stop_reason == "abort" else answer.stop_reason

    def finish(self, tokenizer: PreTrainedTokenizerBase, reason: StopReason) -> None:
        """Resolve the future with what there is."""
        if not self.future.done():
            self.settle(self.draft.completion(tokenizer, reason))

    def settle(self, result: Completion | BaseException) -> None:
        """Resolve the future, unless that was done or nobody waits any more."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)
