"""Runs agents, each in a process that can be killed: an agent is somebody's code, and may never end.

Processes are forked from one that has imported the agent, used again for later samples, and killed with everything they started
when their agent overruns its limit. There are as many as agents run at the same time: a round of completions goes out when every
sample waits, so none may wait for a process.

Left out: limits (`served.workflow` keeps them) and what runs inside (`served.child`).
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.rollout.served.child import Caller
from partita.tasks.pool import Nursery
from partita.tasks.reward_call import Call

NAMED = f"{Caller.__module__}:call_named"
HEADER = struct.Struct("!Q")


class AgentFailed(Exception):
    """An agent raised, died, or returned what is neither a reward nor an answer; the message says which."""


@dataclass(frozen=True)
class Returned:
    """What an agent came to: `reward`, or else `text` for the task's rewards; `parts` and `notes` are what it told beside it."""

    reward: float | None
    text: str | None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    notes: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Process:
    pid: int
    channel: socket.socket


class Processes:
    """The processes of one agent, a name or an object; an object's are forked from this process when this is made.

    memory_gb: what the agent may add to what is loaded already; None for no limit.
    """

    def __init__(self, agent: str | Callable[..., Any], memory_gb: float | None = None) -> None:
        self._memory = 0 if memory_gb is None else int(memory_gb * 2**30)
        self._before: dict[str, Any] = {"agent": agent} if isinstance(agent, str) else {}
        self._nursery = Nursery([NAMED, agent] if isinstance(agent, str) else [Caller(agent)])
        self._idle: list[_Process] = []

    def wait_ready(self, seconds: float) -> None:
        """Wait until the agent is imported. Raises PoolError when that fails or takes longer."""
        self._nursery.wait_ready(seconds)

    async def call(self, address: tuple[str, str], given: Mapping[str, Any]) -> Returned:
        """Run the agent with these arguments to its end. Cancelled, it is killed. Raises AgentFailed, PoolError."""
        try:
            call = Call(0, keywords={**self._before, "address": address, "given": dict(given)})
            frame = pickle.dumps((self._memory, *call.as_tuple()))
        except Exception as error:
            raise AgentFailed(f"arguments cannot be sent to a process: {type(error).__name__}: {error}") from error
        process = self._idle.pop() if self._idle else self._fork()
        try:
            answer = await _exchange(process.channel, frame)
        except BaseException:
            self._end(process)
            raise
        if answer is None:
            code = self._end(process)
            how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
            raise AgentFailed(f"its process ended: {how}")
        if answer.get("memory"):  # what is left of it cannot be trusted
            self._end(process)
        else:
            self._idle.append(process)
        if "error" in answer:
            raise AgentFailed(str(answer["error"]))
        ((_, _, notes, _),) = answer["outcomes"]
        return Returned(**json.loads(notes["returned"]))

    def _fork(self) -> _Process:
        process = _Process(*self._nursery.fork())
        process.channel.setblocking(False)
        return process

    def _end(self, process: _Process) -> int:
        process.channel.close()
        return self._nursery.end(process.pid)

    def close(self) -> None:
        """End all processes."""
        for process in self._idle:
            process.channel.close()
        self._idle.clear()
        self._nursery.close()


async def _exchange(channel: socket.socket, frame: bytes) -> dict[str, Any] | None:
    """Send a call and wait for its answer; None when the process goes away."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    try:
        await loop.sock_sendall(channel, HEADER.pack(len(frame)) + frame)
        while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack_from(data)[0]:
            part = await loop.sock_recv(channel, 1 << 16)
            if not part:
                return None
            data += part
    except ConnectionError:
        return None
    return json.loads(data[HEADER.size :])
