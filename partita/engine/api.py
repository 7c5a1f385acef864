"""What every rollout engine offers: token ids in, ids with log-probs and weight versions out, never text.

Left out: scheduling and weights transport. Each engine owns those; see `engine.local`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from partita.records import StopReason


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens. temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 switch those filters off.

    `stop_ids` are all end-of-sequence ids of the model and its tokenizer; the one drawn is kept in the completion.
    `stop_strings` end a completion when they appear in its decoded text; ids and log-probs keep all sampled tokens.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draw:
    """Names a stream of uniforms: token t of a request always gets the uniform of (these five numbers, t)."""

    seed: int
    stream: int
    serial: int
    sample: int
    call: int = 0


@dataclass(frozen=True)
class Request:
    """One completion to sample. Requests with equal `prompt_ids` in one `submit` share their prefill."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    draw: Draw


@dataclass(frozen=True)
class Completion:
    """What was sampled. `logprobs` are of the full softmax at the sampling temperature (at 1 for greedy), float32 nats.

    `versions` holds the weight version that sampled each token. `text` is decoded without special tokens, without the
    stop token, and ends before a stop string. `stop_reason` "length" means `max_new_tokens` (or the context) ran out;
    "abort" that the engine gave up.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: StopReason
    text: str


class Engine(Protocol):
    """Submit, publish, close; a crash inside the engine reaches every open future as its exception."""

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Hand in requests as one round, admitted in this order; one future each."""
        ...

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace the weights between two decode steps; tokens sampled afterwards carry `version`."""
        ...

    def close(self) -> None:
        """Abort what is open and end the pump."""
        ...
