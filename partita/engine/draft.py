"""A completion while it grows, whoever samples it: when it ends, and what it is in the end.

Left out: sampling. An engine adds one token after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from partita.engine.api import Completion, Request
from partita.engine.text import StopWatch, cut_at_stop, decode
from partita.records import StopReason


@dataclass
class Draft:
    """What was sampled so far for a request. limit: tokens at which it is full."""

    request: Request
    limit: int
    watch: StopWatch | None
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    def add(self, token: int, logprob: float, version: int) -> StopReason | None:
        """Append a token; why the completion ends with it, if it does."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        sampling = self.request.sampling
        if token in sampling.stop_ids:
            return "stop"
        seen = self.watch is not None and self.watch.look(self.ids)
        if seen and len(self.ids) >= sampling.min_new_tokens:
            return "stop"
        return "length" if len(self.ids) >= self.limit else None

    def completion(self, tokenizer: PreTrainedTokenizerBase, reason: StopReason) -> Completion:
        """All that was sampled, and its text; `reason` is why there is no more."""
        sampling = self.request.sampling
        ended_by_id = bool(self.ids) and self.ids[-1] in sampling.stop_ids
        text = decode(tokenizer, self.ids[:-1] if ended_by_id else self.ids)
        before_stop = cut_at_stop(text, sampling.stop_strings)
        if before_stop is not None:
            text, reason = before_stop, "stop"
        return Completion(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), reason, text)


def draft_of(request: Request, context: int, tokenizer: PreTrainedTokenizerBase) -> Draft:
    """An empty draft. Raises ValueError for a request that cannot run in a context of so many tokens."""
    sampling, prompt = request.sampling, len(request.prompt_ids)
    if not prompt:
        raise ValueError("a request without prompt ids: nothing predicts its first token")
    if sampling.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={sampling.max_new_tokens} must be at least 1")
    if prompt >= context:
        raise ValueError(f"a prompt of {prompt} tokens leaves no room in a context of {context} tokens")
    watch = StopWatch(tokenizer, sampling.stop_strings) if sampling.stop_strings else None
    return Draft(request, min(sampling.max_new_tokens, context - prompt), watch)
