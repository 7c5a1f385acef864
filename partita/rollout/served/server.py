"""The HTTP side: one server per run, on this machine's loopback, in a thread of its own; every sample has its own address.

An address holds a random token, so that calls belong to their sample and nobody else can make any. Requests go to the event loop
of the rollout that the sample belongs to, and are taken back from it when their client hangs up.

Left out: what is answered (`served.session`, `served.answers`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from partita.engine.web import require_server
from partita.rollout.served.answers import (
    CREATED,
    MODEL,
    Answered,
    chat_events,
    chat_object,
    text_events,
    text_object,
)
from partita.rollout.served.requests import ApiError, Asked, read_chat, read_text
from partita.rollout.served.session import Session, gone

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
CLOSE_SECONDS = 10.0
NEEDED = ("the served base_url", "agents")
"""For `require_server`: what it is for, and what brings it."""
NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients try again after some statuses; none of ours goes away by that."""


class Server:
    """Serves sessions from `open` to `forget`; its thread starts with the first."""

    def __init__(self, max_request_bytes: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.max_request_bytes = max_request_bytes
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._uvicorn: Any = None
        self._port = 0

    def open(self, session: Session) -> tuple[str, str]:
        """Serve the session: its base_url, and the token in it."""
        with self._lock:
            if self._thread is None:
                self._start()
        token = secrets.token_urlsafe(24)
        self.sessions[token] = session
        return f"http://{LOOPBACK}:{self._port}/s/{token}/v1", token

    def forget(self, token: str) -> None:
        """Answer no more calls to this address."""
        self.sessions.pop(token, None)

    def close(self) -> None:
        """End the server and its thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._uvicorn.should_exit = True
                thread.join(CLOSE_SECONDS)

    def _start(self) -> None:
        require_server(*NEEDED)
        uvicorn = importlib.import_module("uvicorn")
        listening = socket.socket()
        listening.bind((LOOPBACK, 0))
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            app_of(self), lifespan="off", loop="asyncio", http="h11", ws="none", log_config=None, access_log=False,
            timeout_keep_alive=600, timeout_graceful_shutdown=1,
        )  # fmt: skip
        listening.listen(
            config.backlog
        )  # it takes connections before the server does: nobody has to wait for the start
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, kwargs={"sockets": [listening]}, name="partita-served", daemon=True
        )
        self._thread.start()


def app_of(server: Server) -> Starlette:
    """The routes. Every error is OpenAI's error object."""
    applications = importlib.import_module("starlette.applications")
    Route = importlib.import_module("starlette.routing").Route

    def chat(request: Request) -> Awaitable[Response]:
        return _complete(server, request, read_chat, chat_object, chat_events)

    def text(request: Request) -> Awaitable[Response]:
        return _complete(server, request, read_text, text_object, text_events)

    async def models(request: Request) -> Response:
        _session(server, request)
        return _json({"object": "list", "data": [_model()]})

    async def model(request: Request) -> Response:
        _session(server, request)
        if request.path_params["model"] != MODEL:
            raise ApiError(404, f"there is one model, {MODEL}", param="model", code="model_not_found")
        return _json(_model())

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    routes = [
        Route("/s/{token}/v1/chat/completions", _endpoint(chat), methods=["POST"]),
        Route("/s/{token}/v1/completions", _endpoint(text), methods=["POST"]),
        Route("/s/{token}/v1/models", _endpoint(models)),
        Route("/s/{token}/v1/models/{model:path}", _endpoint(model)),
        Route("/health", health),
    ]
    handlers = {404: _not_served, 405: _not_served, 500: _failed}
    return applications.Starlette(routes=routes, exception_handlers=handlers)


def _endpoint(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ApiError as error:
            return _json(error.body(), error.status)

    return endpoint


async def _not_served(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    served = "chat/completions, completions and models, below the base_url, are served"
    return _json(ApiError(status, f"{request.method} of this path is not served; {served}").body(), status)


async def _failed(request: Request, error: Exception) -> Response:
    return _json(ApiError(500, f"the server failed with {type(error).__name__}").body(), 500)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    responses = importlib.import_module("starlette.responses")
    return responses.JSONResponse(body, status_code=status, headers=NO_RETRY if status >= 400 else None)


def _model() -> dict[str, Any]:
    return {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "partita"}


def _session(server: Server, request: Request) -> Session:
    session = server.sessions.get(request.path_params["token"])
    if session is None:
        raise gone()
    return session


async def _complete(
    server: Server,
    request: Request,
    read: Callable[..., Asked],
    whole: Callable[[Answered], dict[str, Any]],
    events: Callable[[Answered, Asked], Iterator[bytes]],
) -> Response:
    session = _session(server, request)
    body = await _body(request, server.max_request_bytes)
    asked = read(body, session.episode.sampling, session.on_override)
    answered = await _answered(request, session, asked)
    if not asked.stream:
        return _json(whole(answered))
    responses = importlib.import_module("starlette.responses")
    return responses.Response(b"".join(events(answered, asked)), media_type="text/event-stream")


async def _answered(request: Request, session: Session, asked: Asked) -> Answered:
    """What the session answers. The call is taken back when its client hangs up."""
    work = session.ask(asked)
    try:
        on_loop = asyncio.run_coroutine_threadsafe(work, session.loop)
    except RuntimeError as error:  # that loop is closed: its run has ended
        work.close()
        raise gone() from error
    answer = asyncio.wrap_future(on_loop)
    hung_up = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({answer, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and not answer.cancelled():
            return answer.result()
        raise gone()
    finally:
        answer.cancel()
        hung_up.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, most: int) -> dict[str, Any]:
    """The JSON object in the body. Raises ApiError for anything else, and for more than `most` bytes."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise ApiError(413, f"the request has more than {most} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object")
    return body
