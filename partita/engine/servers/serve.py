"""`python -m partita.engine.servers.serve`: the built-in engine in a process of its own, asked over HTTP.

A round of requests is one POST, so a round that is asked again is computed in the same batches: the same round on the same weights
gives the same bits as `LocalEngine` in this process. New weights are taken between two decode steps, as there, and every token says
which ones sampled it. A client that hangs up frees its slots.

Left out: who may ask. It listens on this machine's loopback unless `--host` says otherwise, and then to everybody there.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from partita.engine.api import Completion, Request
from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.engine.servers.wire import WireError, answers_body, read_round
from partita.engine.web import MissingServerError, require_server
from partita.models.load import LoadedModel, ModelLoadError, load_causal_lm
from partita.models.packed import weights
from partita.models.selfcheck import ModelRefused, decoding_copy
from partita.ops.memory import forget_products, keep_freed_memory

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as Asked
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
NEEDED = ("serving the built-in engine", "serve")
"""For `require_server`: what it is for, and what brings it."""
LAST_ANSWERS_SECONDS = 1


class WeightsError(ValueError):
    """Weights that the server does not hold, or cannot take; nothing has changed."""


class CrashedError(RuntimeError):
    """The engine has failed for good; the process ends, and whoever watches it starts another one."""


@dataclass
class Served:
    """An engine and the weights that it holds. One owner: the server's event loop.

    shapes: of the weights that it takes. apart: a round starts when the one before it is done, and is answered as a whole, so that
    nothing is computed together with what happens to run; else rounds share the slots, and completions are answered one by one.
    name, version: of the weights; no name before the first were given. crash: what ended the engine.
    """

    engine: LocalEngine
    shapes: Mapping[str, tuple[int, ...]]
    apart: bool
    name: str = ""
    version: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    crash: str | None = None

    async def answers(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[list[tuple[int, Completion | ValueError]], None]:
        """(place in the round, answer), some at a time. Raises CrashedError; ending it early frees the slots."""
        async with self.turn if self.apart else nullcontext():
            self.check()
            futures = self.engine.submit(requests)
            try:
                done = self._done(futures)
                if self.apart:
                    yield sorted([one async for one in done], key=lambda one: one[0])
                else:
                    async for one in done:
                        yield [one]
            finally:
                for future in futures:
                    future.cancel()

    async def _done(self, futures: Sequence[Future[Completion]]) -> AsyncIterator[tuple[int, Completion | ValueError]]:
        """The futures' places and results, in the order in which they come."""
        came: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for at, future in enumerate(futures):
            future.add_done_callback(lambda _, at=at: loop.call_soon_threadsafe(came.put_nowait, at))
        for _ in futures:
            at = await came.get()
            error = futures[at].exception()
            if error is None:
                yield at, futures[at].result()
                continue
            self.check()
            if not isinstance(error, ValueError):
                raise error
            yield at, error

    async def load(self, name: str, version: int, folder: Path) -> None:
        """Take the weights of a folder between two decode steps. Raises WeightsError, CrashedError."""
        async with self.loading:
            self.check()
            try:
                await asyncio.to_thread(self._publish, folder, version)
            except WeightsError:
                raise
            except Exception:  # whatever it is, the engine has ended with it
                self.check()
                raise
            self.name, self.version = name, version

    def _publish(self, folder: Path, version: int) -> None:
        with opened(folder, self.shapes) as given:
            self.engine.publish(given, version)

    def check(self, name: str | None = None) -> None:
        """Raise CrashedError if the engine has failed, WeightsError if it holds others than the named weights."""
        try:
            self.engine.submit([])
        except RuntimeError as error:
            cause = error.__cause__ or error
            self.crash = f"{type(cause).__name__}: {cause}"
            raise CrashedError(self.crash) from cause
        if name not in (None, self.name):
            raise WeightsError(
                f"asked for the weights {name}; here are {self.name or 'those that the server began with'}"
            )


@contextmanager
def opened(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """The weights in a folder's safetensors files, read one at a time, which have the given names and shapes.

    The files stay open: whoever wrote them may remove them meanwhile. Raises WeightsError.
    """
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(path, "pt")) for path in sorted(folder.glob("*.safetensors"))]
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{folder}: its weights cannot be read ({error})") from error
        if not files:
            raise WeightsError(f"{folder}: no safetensors file is there, as seen from {socket.gethostname()}")
        names = [(name, file) for file in files for name in file.keys()]  # noqa: SIM118
        found = {name: tuple(file.get_slice(name).get_shape()) for name, file in names}
        lacking = sorted(shapes.keys() - found.keys())
        strange = sorted(name for name, shape in found.items() if shapes.get(name) != shape)
        if lacking or strange:
            raise WeightsError(
                f"{folder}: not weights of the served model: {len(lacking)} are missing {lacking[:3]}, {len(strange)} are unknown "
                f"or of another shape {strange[:3]}"
            )
        yield ((name, file.get_tensor(name)) for name, file in names)


class Lines:
    """An ASGI response of one JSON value a line, each sent when it comes, until the client hangs up."""

    def __init__(self, lines: AsyncGenerator[Any, None]) -> None:
        self.lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            gone.cancel()
            failed, _ = await asyncio.gather(sending, gone, return_exceptions=True)
        if isinstance(failed, Exception):
            raise failed

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/x-ndjson")],
            }
        )
        async with aclosing(self.lines):  # at once, also where sending ends: it holds slots
            async for line in self.lines:
                body = json.dumps(line, separators=(",", ":")).encode() + b"\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class Endpoints:
    """What can be asked. about: what the server says of itself. crashed: called when the engine has failed, after the answer that
    says so.
    """

    served: Served
    about: Mapping[str, Any]
    crashed: Callable[[], None]
    json: Callable[..., ASGIApp]

    async def generate(self, request: Asked) -> ASGIApp:
        """POST {weights, requests}: lines of answers. 409: these are not the weights that it holds."""
        name, requests = read_round(await request.json())
        self.served.check(name)
        return Lines(self._lines(requests))

    async def load(self, request: Asked) -> ASGIApp:
        """POST {name, version, folder}: answered when the weights are in use. 409: they do not fit."""
        body = await request.json()
        await self.served.load(str(body["name"]), int(body["version"]), Path(str(body["folder"])))
        return self.json({"weights": self.served.name, "version": self.served.version})

    async def health(self, request: Asked) -> ASGIApp:
        """GET: what is served, and which weights it holds."""
        self.served.check()
        return self.json({**self.about, "weights": self.served.name, "version": self.served.version})

    async def stats(self, request: Asked) -> ASGIApp:
        """GET: `EngineStats`."""
        return self.json(asdict(self.served.engine.stats()))

    async def _lines(self, requests: Sequence[Request]) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(self.served.answers(requests)) as answers:
                async for some in answers:
                    yield answers_body(some)
        except CrashedError as error:
            yield {"error": str(error)}
            self.crashed()

    def guarded(self, answer: Callable[[Asked], Awaitable[ASGIApp]]) -> Callable[[Asked], Awaitable[ASGIApp]]:
        """The same, with errors as JSON: 400 for what was asked, 409 for weights, 500 where the engine has failed."""

        async def endpoint(request: Asked) -> ASGIApp:
            try:
                return await answer(request)
            except WeightsError as error:
                return self.json({"error": str(error)}, 409)
            except CrashedError as error:
                self.crashed()
                return self.json({"error": str(error)}, 500)
            except (KeyError, TypeError, ValueError) as error:
                said = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
                return self.json({"error": said}, 400)

        return endpoint


def app_of(served: Served, about: Mapping[str, Any], crashed: Callable[[], None]) -> Starlette:
    """The routes to an engine."""
    applications = importlib.import_module("starlette.applications")
    Route = importlib.import_module("starlette.routing").Route
    here = Endpoints(served, about, crashed, importlib.import_module("starlette.responses").JSONResponse)
    routes = [Route(f"/{f.__name__}", here.guarded(f), methods=["POST"]) for f in (here.generate, here.load)]
    routes += [Route(f"/{f.__name__}", here.guarded(f)) for f in (here.health, here.stats)]
    return applications.Starlette(routes=routes)


def open_served(asked: argparse.Namespace) -> tuple[Served, dict[str, Any], tuple[str, ...]]:
    """The engine over weights of its own, what it says of itself, and what to tell the user. Raises ModelLoadError."""
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu":
        forget_products()
        keep_freed_memory()
    loaded: LoadedModel = load_causal_lm(
        asked.model, dtype=torch.float32, trust_remote_code=asked.trust_remote_code, device=device
    )
    dtype = compute_dtype(asked.dtype, device)
    sampler, note = decoding_copy(loaded.model, dtype, alone=True, compiled=asked.compile)
    context = min(asked.context or loaded.context, loaded.context)
    engine = LocalEngine(
        sampler, loaded.tokenizer, slots=asked.slots, context=context, prefill_tokens=asked.prefill_tokens
    )
    shapes = {name: tuple(weight.shape) for name, weight in weights(loaded.model)}
    about = {"engine": "partita", "model": asked.model, "dtype": str(dtype).removeprefix("torch."), "context": context}
    return Served(engine, shapes, asked.apart), about, (*loaded.notes, note)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m partita.engine.servers.serve", description="Serve the built-in engine."
    )
    parser.add_argument("--model", required=True, help="folder or hub name of the model")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one, unless it is said")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"), help="as rollout.dtype")
    parser.add_argument("--slots", type=int, default=64, help="completions sampled at the same time")
    parser.add_argument("--context", type=int, default=0, help="most tokens of prompt and completion; 0: the model's")
    parser.add_argument("--prefill-tokens", type=int, default=2048, help="as rollout.prefill_tokens")
    parser.add_argument("--apart", action="store_true", help="one round after the other: equal rounds give equal bits")
    parser.add_argument("--compile", action="store_true", help="as rollout.compile")
    parser.add_argument("--trust-remote-code", action="store_true", help="as actor.trust_remote_code")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; what is printed says which")
    return parser.parse_args(given)


def serve(asked: argparse.Namespace) -> int:
    """Serve until a signal ends it, or until the engine fails: then the reason is printed and 1 returned."""
    require_server(*NEEDED)
    uvicorn = importlib.import_module("uvicorn")
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((asked.host, asked.port))  # first: a port that is taken is said at once
        served, about, notes = open_served(asked)

        def end() -> None:
            server.should_exit = True

        config = uvicorn.Config(
            app_of(served, about, end), lifespan="off", loop="asyncio", http="h11", ws="none", log_config=None,
            access_log=False, timeout_keep_alive=600, timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
        )  # fmt: skip
        server = uvicorn.Server(config)
        listening.listen(config.backlog)
        where = f"http://{asked.host}:{listening.getsockname()[1]}"
        print(*notes, f"serving {asked.model} in {about['dtype']} at {where}", sep="\n", flush=True)
        server.run(sockets=[listening])
    if served.crash is not None:
        print(f"the engine has failed: {served.crash}", file=sys.stderr, flush=True)
        return 1
    served.engine.close()
    return 0


def main() -> int:
    """The command; what a user can put right is one line on stderr."""
    asked = arguments()
    try:
        return serve(asked)
    except (MissingServerError, ModelLoadError, ModelRefused) as error:
        print(f"cannot serve {asked.model}: {error}", file=sys.stderr, flush=True)
    except OSError as error:
        print(f"cannot listen at {asked.host}:{asked.port}: {error}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
