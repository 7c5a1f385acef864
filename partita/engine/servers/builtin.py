"""The built-in engine served by processes of its own (`serve`): the dialect that `rollout.backend=local` has with servers.

A round goes to a server as a whole and its completions carry their versions, so nothing is aborted when weights change: what runs
goes on with the new ones, as it does in this process.
Left out: several GPUs for one engine, and adapters beside the weights; they are published merged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from partita.engine.servers.api import Answer, Ask, EngineError, OtherWeights, Served, ServerLost, Start, Weights
from partita.engine.servers.serve import NEEDED
from partita.engine.servers.wire import WireError, read_answers, round_body
from partita.engine.web import MissingServerError, require_server


@dataclass(frozen=True)
class Builtin:
    """See `Dialect`."""

    name: str = "local"
    whole_rounds: bool = True
    adapters_alone: bool = False
    tied_twice: bool = False

    def command(self, served: Served, host: str, port: int) -> Start:
        """See `Dialect`. Raises EngineError for what the built-in engine cannot do."""
        if served.tensor_parallel > 1:
            raise EngineError(
                f"rollout.server.tensor_parallel={served.tensor_parallel}: the built-in engine runs on one device; take "
                "rollout.backend=vllm, or more servers (allocation.servers)"
            )
        if served.python == sys.executable:  # of another interpreter the server itself says it
            try:
                require_server(*NEEDED)
            except MissingServerError as error:
                raise EngineError(str(error)) from error
        given: dict[str, object] = {
            "model": served.model, "device": served.device, "dtype": served.dtype, "slots": served.slots, "context": served.context,
            "prefill-tokens": served.prefill_tokens, "host": host, "port": port,
        }  # fmt: skip
        options = [part for key, value in given.items() for part in (f"--{key}", str(value))]
        options += ["--apart"] if served.apart else []
        options += ["--trust-remote-code"] if served.trust_remote_code else []
        return Start((served.python, "-m", "partita.engine.servers.serve", *options, *served.args), served.env)

    async def check(self, http: httpx2.AsyncClient, served: Served) -> None:
        """See `Dialect`."""
        about = await _asked(http, "GET", "/health")
        if about.get("engine") != "partita":
            raise EngineError(
                f"{http.base_url} is no server of the built-in engine (rollout.backend=local); its /health says {str(about)[:200]}"
            )
        if about["dtype"] != served.dtype:
            raise EngineError(
                f"{http.base_url} serves in {about['dtype']}, and rollout.dtype means {served.dtype}: restart it with that"
            )
        if about["context"] < served.context:
            raise EngineError(
                f"{http.base_url} serves {about['context']} tokens of context, and the run needs {served.context}"
            )

    async def generate(
        self, http: httpx2.AsyncClient, asks: Sequence[Ask], weights: Weights
    ) -> AsyncIterator[tuple[int, Answer | ValueError]]:
        """See `Dialect`. With a server that runs rounds apart, all answers come together or none does."""
        if any(ask.done for ask in asks):
            raise EngineError(
                f"{http.base_url}: the built-in engine's server ends what it begins, and was asked to go on"
            )
        left = set(range(len(asks)))
        try:
            async with http.stream("POST", "/generate", json=round_body(asks, weights.name)) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refused(http, response)
                async for line in response.aiter_lines():
                    for at, answer in _answers(http, line):
                        if at not in left:
                            raise ServerLost(
                                f"{http.base_url}: answered place {at} of {len(asks)}, which was not asked or was done"
                            )
                        left.remove(at)
                        yield at, answer
        except httpx2.TransportError as error:
            raise ServerLost(f"{http.base_url}: {type(error).__name__} {error}".rstrip()) from error
        if left:
            raise ServerLost(f"{http.base_url}: the answer ended before {len(left)} of {len(asks)} completions")

    async def renew(self, http: httpx2.AsyncClient, weights: Weights) -> None:
        """See `Dialect`."""
        body = {"name": weights.name, "version": weights.version, "folder": str(weights.folder)}
        await _asked(http, "POST", "/load", json=body)


DIALECT = Builtin()


def _answers(http: httpx2.AsyncClient, line: str) -> list[tuple[int, Answer | ValueError]]:
    try:
        some = json.loads(line)
        if isinstance(some, dict):
            raise ServerLost(f"{http.base_url}: the engine has failed there: {some.get('error')}")
        return read_answers(some)
    except (WireError, ValueError) as error:
        raise ServerLost(f"{http.base_url}: {error}") from error


async def _asked(http: httpx2.AsyncClient, method: str, path: str, **body: Any) -> dict[str, Any]:
    """The JSON object that a short call gives. Raises ServerLost, EngineError."""
    try:
        response = await http.request(method, path, **body)
    except httpx2.TransportError as error:
        raise ServerLost(f"{http.base_url}: {type(error).__name__} {error}".rstrip()) from error
    if response.status_code != 200:
        raise _refused(http, response)
    try:
        found = response.json()
    except ValueError:
        found = response.text
    return found if isinstance(found, dict) else {"text": found}


def _refused(http: httpx2.AsyncClient, response: httpx2.Response) -> ServerLost | EngineError:
    """409 of a round: it holds other weights, as a server that was started again does. 500: the engine there has failed."""
    try:
        said = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = response.text[:200]
    problem = f"{http.base_url}{response.request.url.path}: {response.status_code}: {said}"
    if response.status_code == 409 and response.request.url.path == "/generate":
        return OtherWeights(problem)
    return ServerLost(problem) if response.status_code >= 500 else EngineError(problem)
