"""The servers of a run: which of them can be asked, which is asked next, and how one that was lost comes back.

One task per server owns it: it waits until the server can be asked, gives it the newest weights, opens it, and looks after
it until it is lost; then again. All of it runs on the client's event loop.
Left out: requests. What a lost server was asked is asked again by `client`.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import httpx2

from partita.engine.config import ServerConfig
from partita.engine.servers.addresses import Address, Addresses, last_lines
from partita.engine.servers.api import HEALTH, Dialect, EngineError, Served, ServerLost, Weights

T = TypeVar("T")
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
"""`Member.places` says how many requests a server gets at a time. An idle connection ends here first: servers end theirs after
5 s, and a request that is sent at that moment would look as if its server were lost."""
AHEAD = 32
"""Requests that wait at a server for a slot there, so that none is free until we hear of it; the others wait here, because each
is an open connection."""
RETRY_SECONDS = 0.2
"""Between two looks at a server that cannot be asked yet."""
LOOK_SECONDS = 60.0
"""Of one such look: the address of a server that does not say a word is read anew after it."""
FAILED_LOOKS = 3
CONNECT_SECONDS = 10.0


@dataclass(eq=False)
class Member:
    """One server. places: one for each request that it has at a time. weights: what it holds, None while that is not known.
    received: the name of those that were sent to it past the folder, empty for none. load: requests that were dealt to it. asked:
    calls that wait for it, heard: when it last answered one, or got the first of them. open: it can be asked. gone: set when the
    connection of now is given up, with the reason.
    """

    index: int
    name: str
    places: asyncio.Semaphore
    http: httpx2.AsyncClient | None = None
    address: Address | None = None
    weights: Weights | None = None
    received: str = ""
    load: int = 0
    asked: int = 0
    heard: float = 0.0
    open: bool = False
    lost: int = 0
    gone: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def line(self) -> httpx2.AsyncClient:
        """The connection of a server that was reached."""
        assert self.http is not None, f"{self.name} was used before it was reached"
        return self.http

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Inside, a call waits for its answers."""
        if self.asked == 0:
            self.heard = time.monotonic()
        self.asked += 1
        try:
            yield
        finally:
            self.asked -= 1

    @property
    def silent(self) -> float:
        """Seconds in which it has answered nothing of what it was asked."""
        return time.monotonic() - self.heard if self.asked else 0.0


@dataclass(frozen=True)
class Listener:
    """What a pool tells. renewed: a server holds new weights and is not open yet. failed: something ends the run."""

    renewed: Callable[[Member], Awaitable[None]]
    failed: Callable[[BaseException], None]


class Pool:
    """The servers of a run, made on the running event loop."""

    def __init__(
        self, dialect: Dialect, served: Served, addresses: Addresses, config: ServerConfig, listener: Listener
    ) -> None:
        self.dialect, self._served, self._addresses, self._config = dialect, served, addresses, config
        self._listener = listener
        self.members = [
            Member(index, addresses.name(index), asyncio.Semaphore(served.slots + AHEAD))
            for index in range(len(addresses))
        ]
        self.newest: Weights | None = None
        self._changed = asyncio.Condition()
        self._keepers = [asyncio.ensure_future(self._keep(member)) for member in self.members]

    async def all_reached(self) -> None:
        """Wait until every server can be talked to: a run begins with all of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: all(member.http is not None for member in self.members))

    async def renew(self, weights: Weights) -> None:
        """Put new weights into every server that is there and open them; one that is lost gets them when it is back."""
        self.newest = weights
        await asyncio.gather(*(self._renewed(member) for member in self.members if member.http is not None))
        await self.any_open()

    async def shut(self) -> list[Member]:
        """Ask no server any more until weights are renewed; those that are there."""
        there = [member for member in self.members if self._there(member)]
        for member in there:
            member.open = False
        return there

    async def any_open(self) -> None:
        """Wait until a server can be asked."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(member.open for member in self.members))

    def deal(self, groups: Sequence[int]) -> list[Member]:
        """For each group of a round, by its number of requests, the server with the least to do, the first among equals.

        Apart: as if all servers were there and had nothing to do, so that a round is always split in the same way.
        """
        apart = self._served.apart
        there = self.members if apart else [one for one in self.members if one.http is not None] or self.members
        loads = {member: 0 if apart else member.load for member in there}
        dealt: list[Member] = []
        for requests in groups:
            member = min(there, key=lambda one: loads[one])
            loads[member] += requests
            member.load += requests
            dealt.append(member)
        return dealt

    async def opened(self, member: Member, requests: int) -> Member:
        """`member` when it can be asked; another one, to which the load moves, where it was lost and another is there."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: member.open or (member.http is None and any(one.open for one in self.members))
            )
        if member.open:
            return member
        member.load -= requests
        other = min((one for one in self.members if one.open), key=lambda one: one.load)
        other.load += requests
        return other

    def lose(self, member: Member, of: asyncio.Future[str], reason: str) -> None:
        """Give up the connection whose `gone` was `of`; once, however many notice that it is broken."""
        if not of.done():
            of.set_result(reason)
            member.open, member.lost = False, member.lost + 1
            warnings.warn(f"{member.name} was lost ({reason}); what it was asked is asked again", stacklevel=2)

    async def close(self) -> None:
        """End looking after the servers; they themselves go on."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(one.http.aclose() for one in self.members if one.http is not None))

    async def _keep(self, member: Member) -> None:
        try:
            while True:
                await self._reach(member)
                await asyncio.gather(self._look_after(member), self._renewed(member))
                await self._forget(member)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._listener.failed(error)

    async def _reach(self, member: Member) -> None:
        """Return when the server can be asked; its address is read anew each time.

        Raises EngineError when that takes too long and no other server is there, or where it never can be.
        """
        deadline, said = time.monotonic() + self._config.start_timeout, "its address is not known yet"
        while True:
            member.address = self._addresses.read(member.index)
            if member.address is not None:
                http = _client(member.address.url)
                try:
                    said = await self._looked(http)
                finally:
                    if said is not None:
                        await http.aclose()
                if said is None:
                    break
            if time.monotonic() > deadline:
                self._give_up(member, said)
                deadline += self._config.start_timeout
            await asyncio.sleep(RETRY_SECONDS)
        member.gone = asyncio.get_running_loop().create_future()
        async with self._changed:
            member.http, member.weights, member.received = http, None, ""
            self._changed.notify_all()

    async def _looked(self, http: httpx2.AsyncClient) -> str | None:
        """Why a server cannot be asked yet; None where it can. Raises EngineError where it never can be."""
        patience = min(LOOK_SECONDS, self._config.start_timeout)
        try:
            async with asyncio.timeout(patience):
                await self.dialect.check(http, self._served)
        except TimeoutError:
            return f"{http.base_url} does not answer (for {patience:g} s)"
        except (ServerLost, httpx2.HTTPError) as error:
            return str(error) or type(error).__name__
        return None

    def _give_up(self, member: Member, said: str) -> None:
        """Raises EngineError unless the run can go on with other servers."""
        message = (
            f"{member.name} could not be asked for {self._config.start_timeout:g} s (rollout.server.start_timeout): {said}"
            f"{last_lines(member.address)}"
        )
        others = any(map(self._there, self.members))
        if self.newest is None or not others:  # a run begins with all of them
            raise EngineError(message)
        warnings.warn(f"{message}\nThe run goes on with the other servers.", stacklevel=2)

    async def _renewed(self, member: Member) -> None:
        """Give a server the newest weights, if there are any, whoever is first to, and open it."""
        async with member.turn:
            while self.newest is not None and self._there(member) and member.weights != self.newest:
                member.open = False
                await self._renew(member, self.newest, member.gone)
            if self.newest is not None and self._there(member):
                async with self._changed:
                    member.open = True
                    self._changed.notify_all()

    async def _renew(self, member: Member, weights: Weights, gone: asyncio.Future[str]) -> None:
        """Put weights into a server, and let it be told. Raises EngineError."""
        given = replace(weights, received=member.received == weights.name)
        try:
            async with asyncio.timeout(self._config.start_timeout):
                await unless_gone(self.dialect.renew(member.line, given), gone)
                member.weights = weights
                await unless_gone(self._listener.renewed(member), gone)
        except (ServerLost, httpx2.HTTPError) as error:
            self.lose(member, gone, str(error) or type(error).__name__)
        except TimeoutError as error:
            raise EngineError(
                f"{member.name} says that it is well, but has not begun to sample with the weights of version {weights.version} "
                f"for {self._config.start_timeout:g} s (rollout.server.start_timeout){last_lines(member.address)}"
            ) from error

    def _there(self, member: Member) -> bool:
        return member.http is not None and not member.gone.done()

    async def _look_after(self, member: Member) -> None:
        """Return when the server is lost: somebody said so, or it does not answer any more."""
        failed, patience = 0, self._config.answer_timeout
        while failed < FAILED_LOOKS:
            done, _ = await asyncio.wait([member.gone], timeout=self._config.health_seconds)
            if done:
                return
            try:
                answer = await member.line.get(HEALTH, timeout=max(CONNECT_SECONDS, self._config.health_seconds))
                failed = 0 if answer.status_code == httpx2.codes.OK else failed + 1
                if failed == 0 and patience is not None and member.silent > patience:
                    what = f"it has answered nothing for {patience:g} s (rollout.server.answer_timeout)"
                    self.lose(member, member.gone, f"{what}, though it says that it is well")
                    return
            except httpx2.HTTPError:
                failed += 1
        self.lose(member, member.gone, f"it did not answer {HEALTH} {FAILED_LOOKS} times in a row")

    async def _forget(self, member: Member) -> None:
        async with self._changed:
            http, member.http, member.weights, member.open = member.line, None, None, False
            self._changed.notify_all()
        await http.aclose()


def _client(url: str) -> httpx2.AsyncClient:
    """Straight to a server: what the environment says of proxies and passwords is of other machines than the run's."""
    timeout, secret = httpx2.Timeout(None, connect=CONNECT_SECONDS), url.startswith("https:")
    return httpx2.AsyncClient(base_url=url, timeout=timeout, limits=LIMITS, trust_env=False, verify=secret)


async def unless_gone(work: Awaitable[T], gone: asyncio.Future[str]) -> T:
    """What `work` gives; raises ServerLost as soon as the server that it talks to is given up."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ServerLost(gone.result())
        return task.result()
    finally:
        task.cancel()
