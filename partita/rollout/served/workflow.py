"""The workflow of an agent that knows nothing of Partita: it gets a base_url, and what it returns is its reward or its answer.

All its calls are one sample of one or more rows, with one reward. Left out: what its calls become (`served.session`) and where
its code runs (`served.processes`).
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from partita.engine.web import MissingServerError, require_server
from partita.records import Prompt, Sample, StopReason
from partita.rollout.episodes import RolloutError
from partita.rollout.served.answers import MODEL
from partita.rollout.served.processes import AgentFailed, Processes, Returned
from partita.rollout.served.requests import OnOverride
from partita.rollout.served.server import NEEDED, Server
from partita.rollout.served.session import Session
from partita.rollout.served.shown import Showings
from partita.rollout.transcript import Transcript
from partita.rollout.workflow import Episode, sample_of
from partita.tasks.functions import LoadError, load_object
from partita.tasks.pool import PoolError
from partita.tasks.reward import Scored
from partita.tasks.tools.calls import FORMATS

PART = "agent"
"""What an agent's own reward is called among the parts."""
API_KEY = "partita"
"""Clients want one; the address is the secret."""


class AgentError(ValueError):
    """An agent cannot be run as configured; the message says what to change."""


@dataclass(eq=False)
class Agent:
    """A workflow that runs an agent against the served policy. All fields are keys of `rollout.workflow_kwargs`.

    agent: a function, async or not, by name (path/file.py:function) or as an object. It is called by the names of its
    parameters: base_url, api_key, model, messages, row, answer, any column of the row, and `kwargs`. It returns its reward (a
    number), its answer (a text, which the task's rewards score), or a dict with `reward` or `text`; other numbers there are
    metrics, texts are notes.
    timeout_seconds: its own seconds, waiting for the model not counted; it is killed then. max_calls: to the model, of one
    sample. on_override: what happens to a temperature or the like that is not the run's: error refuses the call, ignore samples as
    the run does and says so once. calls: how tool calls are written, hermes or llama3. max_request_mb: of one request.
    start_seconds: for importing the agent. memory_gb: what it may add to the memory of its process, None for no limit.
    """

    agent: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_seconds: float = 120.0
    max_calls: int = 64
    on_override: OnOverride = "ignore"
    calls: Literal["hermes", "llama3"] = "hermes"
    max_request_mb: float = 32.0
    start_seconds: float = 60.0
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        self._check()
        self._warned: set[str] = set()
        self._showings = Showings(FORMATS[self.calls])
        self._server = Server(int(self.max_request_mb * 2**20))
        self._processes = Processes(self.agent, self.memory_gb)
        try:
            self._wanted = _Wanted.of(self.agent, self.kwargs)
            self._processes.wait_ready(self.start_seconds)
        except BaseException as error:
            self._processes.close()
            if isinstance(error, PoolError):
                raise AgentError(
                    f"the agent's process cannot start (start_seconds={self.start_seconds:g}): {error}"
                ) from error
            raise

    def _check(self) -> None:
        for name in ("timeout_seconds", "max_calls", "max_request_mb", "start_seconds", "memory_gb"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise AgentError(f"{name}={value!r}; expected a number above 0")
        for name, choices in (("on_override", ("error", "ignore")), ("calls", tuple(FORMATS))):
            if getattr(self, name) not in choices:
                raise AgentError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(choices)}")
        try:
            require_server(*NEEDED)
        except MissingServerError as error:
            raise AgentError(str(error)) from error

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`. What goes wrong in the agent is the sample's status; an error of the engine ends the run."""
        session = Session(episode, self.max_calls, self.on_override, self._showings)
        base_url, token = self._server.open(session)
        try:
            given = self._wanted.values(episode.prompt, base_url)
            returned = await self._returned(session, base_url, given)
        except AgentFailed as error:
            returned = error
        finally:
            self._server.forget(token)
            session.close()
        self._tell(session)
        return await _sample(session, returned)

    def close(self) -> None:
        """End all agents and the server."""
        self._processes.close()
        self._server.close()

    async def _returned(self, session: Session, base_url: str, given: Mapping[str, Any]) -> Returned:
        """What the agent comes to within its limit. Raises AgentFailed, and what broke the engine."""
        ended = asyncio.ensure_future(self._processes.call((base_url, API_KEY), given))
        limit = asyncio.ensure_future(session.clock.reach(self.timeout_seconds))
        try:
            await asyncio.wait({ended, limit, session.crashed}, return_when=asyncio.FIRST_COMPLETED)
            if session.crashed.done():
                session.crashed.result()
            if not ended.done():
                raise AgentFailed(
                    f"did not end within {self.timeout_seconds:g} seconds of its own (rollout.workflow_kwargs.timeout_seconds); "
                    f"it had {session.answers} calls answered"
                )
            return ended.result()
        finally:
            await _over(ended)
            await _over(limit)

    def _tell(self, session: Session) -> None:
        fresh = [name for name in session.set_aside if name not in self._warned]
        self._warned.update(fresh)
        for name in fresh:
            warnings.warn(
                f"the agent asks for {name}={session.set_aside[name]!r:.80}, and the run decides how tokens are sampled: it is "
                "ignored. Leave it out of the call, or refuse such calls with rollout.workflow_kwargs.on_override=error",
                stacklevel=2,
            )


async def _over(task: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until it is over."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # heard of


async def _sample(session: Session, returned: Returned | AgentFailed) -> Sample:
    """The record of all calls, and what they were worth together."""
    rows, last = session.rows(), session.last
    metrics = {f"{PART}/calls": float(session.answers), f"{PART}/rows": float(len(rows))}
    if isinstance(returned, AgentFailed):
        scored = Scored(None, {}, "reward_error", f"the agent {returned}")
    elif last is None:
        scored = Scored(None, {}, "reward_error", "the agent made no call that was answered: there is nothing to train")
    else:
        trained = [one for row in rows for one, own in zip(row.ids, row.trained, strict=True) if own]
        scored = await _scored(session, returned, last.stop_reason, trained)
        metrics |= {f"{PART}/{name}": value for name, value in returned.parts.items()}
    said = returned.text if isinstance(returned, Returned) else None
    if said is None:
        said = "" if last is None else last.text
    rows = rows or [Transcript(session.episode.prompt.ids).row()]  # nothing of it is trained
    return sample_of(rows, "stop" if last is None else last.stop_reason, said, scored, metrics)


async def _scored(session: Session, returned: Returned, stop_reason: StopReason, trained: Sequence[int]) -> Scored:
    """The agent's own reward, or what the task's rewards say to its answer."""
    if returned.reward is not None:
        scored = Scored(returned.reward, {PART: returned.reward})
    else:
        assert returned.text is not None, "an agent returns a reward or a text"
        scored = await session.episode.score(returned.text, trained, stop_reason, session.transcript)
    return replace(scored, notes=scored.notes | {f"{PART}/{name}": note for name, note in returned.notes.items()})


@dataclass(frozen=True)
class _Wanted:
    """What an agent asks for by the names of its parameters. kwargs: what the config gives it; they win over columns."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_rest: bool
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, agent: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> _Wanted:
        """Raises AgentError for what cannot be called by name, and for arguments that it does not have."""
        name = agent if isinstance(agent, str) else getattr(agent, "__qualname__", type(agent).__qualname__)
        try:
            found = load_object(agent) if isinstance(agent, str) else agent
            parameters = inspect.signature(found).parameters.values()
        except (LoadError, TypeError) as error:
            raise AgentError(f"agent: {error}") from error
        if only := [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]:
            raise AgentError(f"agent {name}: {only[0]!r} is positional-only; an agent is called by name")
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        wanted = cls(
            name, tuple(one.name for one in named if one.default is one.empty),
            tuple(one.name for one in named if one.default is not one.empty),
            any(one.kind is one.VAR_KEYWORD for one in parameters), dict(kwargs),
        )  # fmt: skip
        known = (*wanted.required, *wanted.optional)
        if unknown := [given for given in kwargs if given not in known and not wanted.takes_rest]:
            near = difflib.get_close_matches(unknown[0], known, 1)
            more = f" (near: {near[0]})" if near else ""
            raise AgentError(
                f"kwargs.{unknown[0]}: agent {name} has no such parameter{more}; it has: {', '.join(known)}"
            )
        return wanted

    def values(self, prompt: Prompt, base_url: str) -> dict[str, Any]:
        """What the agent is called with. Raises RolloutError for a required name that there is not."""
        there = {str(name): value for name, value in prompt.row.items() if str(name).isidentifier()}
        there |= {} if prompt.answer is None else {"answer": prompt.answer}
        there |= {
            "base_url": base_url, "api_key": API_KEY, "model": MODEL, "row": dict(prompt.row),
            "messages": [dict(message) for message in prompt.messages],
        }  # fmt: skip
        there |= self.kwargs
        if missing := [name for name in self.required if name not in there]:
            near = difflib.get_close_matches(missing[0], there, 1)
            more = f" (near: {near[0]})" if near else ""
            raise RolloutError(
                f"agent {self.name} asks for {missing[0]!r}, which row {prompt.uid} does not have{more}; there are: "
                f"{', '.join(there)}. Rename the parameter, give it a default, or set rollout.workflow_kwargs.kwargs.{missing[0]}"
            )
        return (
            there
            if self.takes_rest
            else {name: there[name] for name in (*self.required, *self.optional) if name in there}
        )
