"""The engine of a run whose model is served by other processes: requests go to them, completions come back, weights go out.

One thread with an event loop of its own sends and receives; callers hand in rounds and weight updates. A request whose server
was lost is asked again, one that a weight update interrupted goes on from the tokens that it has: every token's version is
that of the weights which sampled it.
Left out: what differs between kinds of servers (their dialects), and the processes themselves.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from partita.engine.api import Completion, Request
from partita.engine.config import ServerConfig
from partita.engine.draft import draft_of
from partita.engine.random import check_draw
from partita.engine.servers.addresses import Addresses, last_lines
from partita.engine.servers.api import Answer, Dialect, EngineError, OtherWeights, Served, ServerLost, Transfer, Weights
from partita.engine.servers.job import Job
from partita.engine.servers.pool import Listener, Member, Pool, unless_gone
from partita.engine.servers.probe import Probe
from partita.engine.servers.published import Publisher

T = TypeVar("T")
CLOSE_SECONDS = 10.0
COUNTED = ("reissued", "continued", "lost", "write_seconds")
MOST_LOSSES = 5
"""How often a request may lose its server: one that does so each time is taken for the reason."""


@dataclass
class ServerStats:
    """Counts since the engine started.

    prompt_tokens: of all requests. forward_seconds: in which at least one request was open. publish_seconds: of weight updates,
    write_seconds of these went into the folder. reissued: requests that were asked again because their server was lost;
    continued: requests that a weight update interrupted; lost: how often a server was. probe_difference: see `Probe`.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    forward_seconds: float = 0.0
    publish_seconds: float = 0.0
    write_seconds: float = 0.0
    reissued: int = 0
    continued: int = 0
    lost: int = 0
    probe_difference: float = 0.0


@dataclass(frozen=True)
class Servers:
    """Who is asked, and how: what the engine is made of."""

    dialect: Dialect
    served: Served
    addresses: Addresses
    config: ServerConfig
    transfer: Transfer | None = None


class ServerEngine:
    """An `Engine` over servers. Nothing can be sampled before the first `publish`."""

    def __init__(
        self, servers: Servers, tokenizer: PreTrainedTokenizerBase, publisher: Publisher, probe: Probe | None = None
    ) -> None:
        """Raises EngineError when a server cannot be reached in time, or cannot do what is needed."""
        self._servers, self.publisher, self.probe = servers, publisher, probe
        # Its own copy: a tokenizer whose padding another thread sets refuses to decode at that moment.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._stats, self._told = ServerStats(), ServerStats()
        self._open, self._busy_since = 0, 0.0
        self._error: BaseException | None = None
        self._closing = False
        self._tasks = set[asyncio.Task[Any]]()
        self._probed = dict[str, Answer]()
        self._publishing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="partita-servers", daemon=True)
        self._thread.start()
        self._pool = self._on_loop(self._opened())
        try:
            self._on_loop(self._pool.all_reached())
        except BaseException:
            self.close()
            raise

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """See `Engine`. The future of a request that cannot run (its prompt fills the context) holds a ValueError.

        Cancelling a future ends its request. Raises RuntimeError when the engine is closed or has crashed.
        """
        self._check()
        futures, jobs = list[Future[Completion]](), list[Job]()
        for request in requests:
            check_draw(request.draw)
            futures.append(Future())
            try:
                draft = draft_of(request, self._servers.served.context, self._tokenizer)
            except ValueError as error:
                futures[-1].set_exception(error)
            else:
                jobs.append(Job(draft, futures[-1]))
        self._loop.call_soon_threadsafe(self._deal, jobs)
        return futures

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Engine`. Returns when every server that is there has the weights and was compared with the trainer.

        Raises EngineError where that comparison fails; the engine has crashed then.
        """
        self._check()
        began = time.perf_counter()
        try:
            published = self._written(weights, version)
            self._stats.write_seconds += time.perf_counter() - began
            probed = self._on_loop(self._renew(published))
            if self.probe is not None:
                self.probe.compare(probed, version)
                self._stats.probe_difference = self.probe.difference
        except BaseException as error:
            self._error = self._error or error
            with suppress(RuntimeError):  # closed meanwhile: nobody is left to be told
                self._loop.call_soon_threadsafe(self._fail, error)
            raise
        self._stats.publish_seconds += time.perf_counter() - began

    def _written(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Weights:
        """The folder, for servers that are started later too; where weights are sent past it, they have been."""
        transfer = self._servers.transfer
        if transfer is None:
            return self.publisher.write(weights, version)
        there = [(member, member.lost) for member in self._on_loop(self._pool.shut())]
        servers = [(member.address.url, lost) for member, lost in there if member.address is not None]
        published = self.publisher.write(transfer.passing(servers, weights), version)
        for member, lost in there:
            if member.lost == lost:  # else it is another process now, which has received nothing
                member.received = published.name
        return published

    def close(self) -> None:
        """See `Engine`. Open futures resolve with what has come back of them and stop reason "abort"; the servers go on."""
        if self._closing:
            return
        self._closing = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        self._loop.close()
        self.publisher.close()

    def stats(self) -> ServerStats:
        """A copy of the counts so far."""
        busy = time.perf_counter() - self._busy_since if self._open else 0.0
        lost = sum(member.lost for member in self._pool.members)
        return replace(self._stats, forward_seconds=self._stats.forward_seconds + busy, lost=lost)

    def take_counts(self) -> dict[str, float]:
        """Metrics of what happened to requests and servers since they were last taken, and the last probe's difference."""
        now, before = self.stats(), self._told
        self._told = now
        counted = {name: float(getattr(now, name) - getattr(before, name)) for name in COUNTED}
        if self.probe is not None:
            counted["probe_difference"] = now.probe_difference
        return {f"engine/{name}": value for name, value in counted.items()}

    def _check(self) -> None:
        if isinstance(self._error, EngineError):
            raise self._error  # says all that there is to say
        if self._error is not None:
            raise RuntimeError("the engine has crashed, see the cause above") from self._error
        if self._closing:
            raise RuntimeError("the engine is closed")

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, on the engine's thread. Raises what it raises, or what made the engine crash meanwhile."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called from a future's callback, on the thread that would have to carry it out")
        try:
            return asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop).result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the engine was closed meanwhile") from None

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        if self._error is not None:  # since it was handed in: who would have ended the wait is gone
            work.close()
            raise self._error
        task = self._track(work)
        try:
            return await task
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise

    def _track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _opened(self) -> Pool:
        given = self._servers
        listener = Listener(self._on_renewed, self._fail)
        return Pool(given.dialect, given.served, given.addresses, given.config, listener)

    async def _renew(self, weights: Weights) -> dict[str, Answer]:
        """Put weights into the servers; what these sampled of the probe, by their names."""
        self._probed, self._publishing = {}, True
        try:
            await self._pool.renew(weights)
        finally:
            self._publishing = False
        return self._probed

    async def _on_renewed(self, member: Member) -> None:
        if self.probe is None:
            return
        assert member.weights is not None, "told before the server held any"
        answers = self._pool.dialect.generate(member.line, [self.probe.ask], member.weights)
        [answer] = [answer async for _, answer in answers]
        if isinstance(answer, ValueError) or not answer.ids:
            raise EngineError(f"{member.name} samples nothing for the probe prompt (rollout.probe): {answer}")
        if self._publishing:
            self._probed[member.name] = answer
        else:
            self.probe.check_again(member.name, answer, member.weights.version)

    def _deal(self, jobs: Sequence[Job]) -> None:
        """Give a round to the servers: requests with one prompt to one server, whose cache then holds it."""
        if self._error is not None or self._closing:
            self._give_back(jobs)
            return
        groups = dict[tuple[int, ...], list[Job]]()
        for job in jobs:
            groups.setdefault(job.draft.request.prompt_ids, []).append(job)
        shares = dict[Member, list[Job]]()
        for group, member in zip(groups.values(), self._pool.deal([*map(len, groups.values())]), strict=True):
            shares.setdefault(member, []).extend(group)
        self._began(len(jobs))
        for member, share in shares.items():
            for some in [share] if self._pool.dialect.whole_rounds else [[job] for job in share]:
                task = self._track(self._serve(some, member))
                task.add_done_callback(partial(self._over, some))
                for job in some:
                    job.future.add_done_callback(partial(self._noticed, some, task))

    def _noticed(self, jobs: Sequence[Job], task: asyncio.Task[Any], _: Future[Completion]) -> None:
        """End a call that nobody waits for any more. Runs on whatever thread cancelled a future."""
        if not self._closing and all(job.future.cancelled() for job in jobs):
            self._loop.call_soon_threadsafe(task.cancel)

    async def _serve(self, jobs: list[Job], member: Member) -> None:
        """Ask until all of the jobs are done; `member` has them in its load already."""
        left = jobs
        try:
            async with member.places:
                while left:
                    member = await self._pool.opened(member, len(left))
                    await self._ask(member, left)
                    still = [job for job in left if not job.future.done()]
                    member.load -= len(left) - len(still)
                    left = still
        finally:
            member.load -= len(left)

    async def _ask(self, member: Member, jobs: Sequence[Job]) -> None:
        """Ask a server that is open once; what is not done then is to be asked again. Raises EngineError where that is no use."""
        held, gone = member.weights, member.gone
        assert held is not None, "a server is opened when it holds weights"
        try:
            with member.waited_for():
                await unless_gone(self._answered(member, jobs, held), gone)
            left = [job for job in jobs if not job.future.done()]
            if left and member.open and member.weights == held:
                raise ServerLost("it ended requests before their end, without new weights")
            self._stats.continued += len(left)
        except ServerLost as error:
            left = [job for job in jobs if not job.future.done()]
            if isinstance(error, OtherWeights) and held != self._pool.newest:
                self._stats.continued += len(left)  # they came there after the weights that were sent later
                return
            self._pool.lose(member, gone, str(error))
            self._reissue(left, member, error)

    def _reissue(self, jobs: Sequence[Job], member: Member, error: ServerLost) -> None:
        """Count what is asked again. Raises EngineError where that is no use."""
        self._stats.reissued += len(jobs)
        for job in jobs:
            job.losses += 1
            if job.losses > MOST_LOSSES:
                raise EngineError(
                    f"{member.name} was lost {job.losses} times over one request ({job.draft.request.draw}), the last time: {error}"
                    f"{last_lines(member.address)}"
                ) from error

    def _over(self, jobs: Sequence[Job], task: asyncio.Task[None]) -> None:
        """After `_serve`, however it ended, also before it began."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._give_back(jobs)
        self._ended(len(jobs))

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Resolve what is still open: with the error that the engine died of, or with what there is."""
        for job in jobs:
            if self._error is not None:
                job.settle(self._error)
            else:
                job.finish(self._tokenizer, "abort")

    async def _answered(self, member: Member, jobs: Sequence[Job], weights: Weights) -> None:
        async for place, answer in self._pool.dialect.generate(member.line, [job.ask for job in jobs], weights):
            job, member.heard = jobs[place], time.monotonic()
            if isinstance(answer, ValueError):
                job.settle(answer)
            else:
                self._take(member, job, answer)

    def _take(self, member: Member, job: Job, answer: Answer) -> None:
        """Append what was sampled, and resolve the future where the completion ends with it."""
        before = len(job.draft.ids)
        try:
            reason = job.take(answer)
        except FloatingPointError as error:
            raise EngineError(
                f"{member.name} sampled with the weights of version {answer.versions[0]}: {error}"
            ) from error
        self._stats.tokens += len(job.draft.ids) - before
        if reason is not None:
            self._stats.prompt_tokens += len(job.draft.request.prompt_ids)
            job.finish(self._tokenizer, reason)

    def _began(self, requests: int) -> None:
        if not self._open:
            self._busy_since = time.perf_counter()
        self._open += requests

    def _ended(self, requests: int) -> None:
        self._open -= requests
        if not self._open:
            self._stats.forward_seconds += time.perf_counter() - self._busy_since

    def _fail(self, error: BaseException) -> None:
        """Hand the error to everybody who waits and to everybody who comes later."""
        self._error = self._error or error
        for task in [task for task in self._tasks if task is not asyncio.current_task()]:
            task.cancel()

    async def _end(self) -> None:
        await _ended([*self._tasks])
        await self._pool.close()
        await _ended([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
