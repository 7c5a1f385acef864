"""How one kind of engine server is started, checked, asked, and given new weights: what `ServerEngine` needs to know of it.

A dialect is stateless: it translates. Whom to ask, when, and what to do when a server is lost is `pool` and `client`.
Left out: text. Ids go out, ids come back; a completion's text is decoded by the client, with the trainer's tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx2
from torch import Tensor

from partita.engine.api import Draw, Sampling
from partita.records import StopReason

HEALTH = "/health"
"""What every kind of server answers with 200 while it is alive."""


class EngineError(RuntimeError):
    """The servers cannot do what the run needs; the message says which one, what it said, and what to do."""


class ServerLost(Exception):
    """A server went away, or is not what it was before: what it was asked is to be asked again, there or elsewhere."""


class OtherWeights(ServerLost):
    """A server holds other weights than it is believed to: it was started again, or was given newer ones meanwhile."""


@dataclass(frozen=True)
class Served:
    """What a server is to serve. model: a folder in Hugging Face's format. context: tokens of prompt and completion together.

    slots: completions at a time. device: as torch names it, cpu or cuda. adapter_rank: of the adapters that will be published,
    None without any. python: the interpreter of the environment that the server is installed in. apart: a server that can
    computes one round after the other, so that what a lost one had is computed anew in the same batches; for synchronous runs,
    where no other round waits.
    """

    model: str
    dtype: str
    context: int
    slots: int
    python: str
    device: str = "cpu"
    tensor_parallel: int = 1
    adapter_rank: int | None = None
    trust_remote_code: bool = False
    prefill_tokens: int = 2048
    apart: bool = False
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Start:
    """A command line, and the environment variables that it needs beside those of whoever runs it."""

    command: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Weights:
    """Published weights. name: unique over all runs, so that a server which holds others says so. folder: as Hugging Face's
    format has it, in safetensors; adapters: it holds those alone, as peft writes them. received: the server that is told of them
    has them already, from GPU to GPU.
    """

    name: str
    version: int
    folder: Path
    adapters: bool = False
    received: bool = False


class Transfer(Protocol):
    """Sends weights from this process to running servers."""

    def passing(
        self, servers: Sequence[tuple[str, object]], weights: Iterable[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor]]:
        """The weights, each after it was sent; what the servers compute is aborted first. servers: their addresses, each with
        what changes when it was started again. Raises EngineError.
        """
        ...


@dataclass(frozen=True)
class Ask:
    """A completion to sample, or to go on with: `prompt_ids` end with the `done` tokens that were sampled already.

    `sampling` counts from here on: its `max_new_tokens` and `min_new_tokens` are what is left of them.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    draw: Draw
    done: int = 0


@dataclass(frozen=True)
class Answer:
    """What a server sampled; fields as in `Completion`. "abort": it stopped before the end, and can be asked to go on."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: StopReason


class Dialect(Protocol):
    """One kind of server. The clients of `httpx2` that are handed in have the server's address as their base.

    name: as `rollout.backend` has it. whole_rounds: the requests of a round that fall to one server are asked in one call of
    `generate`; else each has a call of its own, which can be cancelled alone. adapters_alone: `renew` takes adapters without the
    model that they belong to. tied_twice: whole weights hold a head that is the embedding under its own name too.
    """

    name: str
    whole_rounds: bool
    adapters_alone: bool
    tied_twice: bool

    def command(self, served: Served, host: str, port: int) -> Start:
        """What starts a server that listens at `host` and `port`."""
        ...

    async def check(self, http: httpx2.AsyncClient, served: Served) -> None:
        """Return when the server can be asked. Raises ServerLost while it cannot be yet, EngineError where it never will:
        it was started without something that is needed, or serves another model."""
        ...

    def generate(
        self, http: httpx2.AsyncClient, asks: Sequence[Ask], weights: Weights
    ) -> AsyncIterator[tuple[int, Answer | ValueError]]:
        """(place in `asks`, answer) as they are finished; ValueError for an ask that this server can never answer.

        Raises ServerLost where the connection ends, OtherWeights where the server holds others than `weights`, EngineError where it
        says what no server of this kind would.
        """
        ...

    async def renew(self, http: httpx2.AsyncClient, weights: Weights) -> None:
        """Put `weights` in place between two tokens: what runs comes back as far as it is, or goes on with the new weights
        and says so by its versions. Nothing that was cached for other weights is used again. Raises ServerLost, EngineError.
        """
        ...


@contextmanager
def understood(http: httpx2.AsyncClient, path: str) -> Iterator[None]:
    """Around reading an answer. Raises EngineError where that is of another shape."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"{http.base_url}{path} answers in another shape than a server of rollout.backend ({type(error).__name__}: {error}): "
            "is it of another kind, or another version?"
        ) from error


def seed_of(draw: Draw, done: int, bits: int = 63) -> int:
    """A seed for servers that draw by a generator for each request: equal for equal requests, in 0 .. 2**bits - 1.

    done: tokens that were sampled before; a request that goes on must not repeat the draws that it began with.
    """
    named = f"{draw.seed}:{draw.stream}:{draw.serial}:{draw.sample}:{draw.call}:{done}"
    drawn = hashlib.blake2b(named.encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") >> (64 - bits)


def unreachable(http: httpx2.AsyncClient, error: httpx2.TransportError) -> str:
    """How a connection to a server failed."""
    return f"{http.base_url}: {type(error).__name__} {error}".rstrip()


def refusal(response: httpx2.Response) -> str:
    """The reason that a refusal gives: `error` of requests, `error_message` of SGLang's adapters, `message` of its weights."""
    try:
        found = response.json()
        error = found.get("error") or found.get("error_message") or found.get("message") or found
        return str(error["message"] if isinstance(error, Mapping) and "message" in error else error)[:500]
    except (ValueError, AttributeError):
        return response.text[:500].strip() or "nothing"
