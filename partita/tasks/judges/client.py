"""Sends a judge's requests: so many at a time, so many a minute, again where that may help, and none beyond the budget.

Runs on one event loop. Pauses grow and are spread by numbers that depend on the request and the try alone.
Left out: what is asked and how a verdict is read (`judges.judge`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx2

from partita.tasks.adapters import RewardSetupError
from partita.tasks.judges.ledger import Ledger
from partita.tasks.judges.settings import JudgeConfig
from partita.tasks.judges.verdicts import Reply, Unreadable, read_reply

T = TypeVar("T")
PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the second try of a request; twice as many before each further one."""
LONGEST_WAIT = 300.0
"""Seconds of a server's Retry-After that are waited for; beyond, the request has failed."""
BUSY = (408, 409, 425, 429)
OF_THIS_REQUEST = (400, 413, 422)
"""What a server answers to a request that it cannot take, as one that is too long; others may be fine."""


@dataclass(frozen=True)
class Fault:
    """Why a try gave nothing. again: another one may be luckier, not before `after` seconds."""

    why: str
    again: bool = True
    after: float = 0.0


class Client:
    """One judge's connections, made on the loop that first sends. key: None sends no key."""

    def __init__(self, name: str, config: JudgeConfig, key: str | None, ledger: Ledger) -> None:
        self._where, self._config, self._key, self._ledger = f"reward.judges.{name}", config, key, ledger
        self.url = f"{config.base_url.rstrip('/')}/chat/completions"
        self._http: httpx2.AsyncClient | None = None
        self._room = asyncio.Semaphore(config.concurrency)
        self._next_start = 0.0
        self._broken: RewardSetupError | None = None
        self.refused = ""
        """The limit of the budget for which a request was not sent, empty while all were."""

    def digest(self, body: Mapping[str, Any]) -> str:
        """What tells this request from all others."""
        whole = json.dumps([self.url, body], sort_keys=True)
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    async def ask(self, digest: str, body: Mapping[str, Any], read: Callable[[Reply], T]) -> tuple[Reply, T] | Fault:
        """A reply and what `read` makes of it, which raises Unreadable, or why there is none after all tries.

        Raises RewardSetupError where the server says that no request of this judge can work.
        """
        tries, fault = self._config.retries + 1, Fault("")
        for number in range(tries):
            if number:
                await asyncio.sleep(max(pause(digest, number), fault.after))
            async with self._room:
                found = await self._try(body, read, again=number > 0)
            if not isinstance(found, Fault):
                return found
            fault = found
            if not fault.again or fault.after > LONGEST_WAIT:
                return fault
        return Fault(f"after {tries} tries: {fault.why}" if tries > 1 else fault.why)

    async def _try(
        self, body: Mapping[str, Any], read: Callable[[Reply], T], *, again: bool
    ) -> tuple[Reply, T] | Fault:
        await self._turn()
        if self._broken is not None:  # another request has heard of it meanwhile
            raise self._broken
        spent = self._ledger.spent
        if reached := spent.over(self._config.budget):
            self.refused = f"{self._where}.{reached}"
            return Fault(self.refused, again=False)
        spent.requests += 1
        spent.retries += again
        self._ledger.write_counts()
        began = time.monotonic()
        answer = await self._send(body)
        if isinstance(answer, Fault):
            return answer
        try:
            return self._read(answer, time.monotonic() - began, read)
        except Unreadable as error:
            return Fault(f"no verdict: {error}")

    async def _turn(self) -> None:
        """Wait until another request may start."""
        now, per_minute = time.monotonic(), self._config.requests_per_minute
        start = max(now, self._next_start)
        if per_minute is not None:
            self._next_start = start + 60 / per_minute
        if start > now:
            await asyncio.sleep(start - now)

    async def _send(self, body: Mapping[str, Any]) -> Any:
        """The server's answer to one request, or a Fault."""
        if self._http is None:
            headers = {"Content-Type": "application/json"}
            headers |= {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            limits = httpx2.Limits(max_connections=self._config.concurrency)
            self._http = httpx2.AsyncClient(headers=headers, limits=limits, timeout=None)
        seconds = self._config.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.post(self.url, content=json.dumps(body))
        except TimeoutError:
            return Fault(f"no reply within {seconds:g} seconds ({self._where}.timeout_seconds)")
        except httpx2.HTTPError as error:
            return Fault(f"{self.url}: {type(error).__name__}: {error}")
        if response.status_code == 200:
            return self._content(response)
        return self._refused(response)

    def _content(self, response: httpx2.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            return Fault(f"{self.url} answered with what is not JSON: {self._told(response)}")

    def _refused(self, response: httpx2.Response) -> Fault:
        code = response.status_code
        why = f"{self.url} answered {code}: {self._told(response)}"
        if code in BUSY or code >= 500:
            after = retry_after(response.headers.get("retry-after", ""))
            if after <= LONGEST_WAIT:  # the others need not hear it one by one
                self._next_start = max(self._next_start, time.monotonic() + after)
            return Fault(why, after=after)
        if code in OF_THIS_REQUEST:
            return Fault(why, again=False)
        self._broken = RewardSetupError(f"{self._where}: {why}")
        raise self._broken

    def _told(self, response: httpx2.Response) -> str:
        """What the server said, without the key, which some repeat."""
        try:
            said = response.json()["error"]
            text = str(said["message"] if isinstance(said, Mapping) else said)
        except (ValueError, KeyError, TypeError):
            text = response.text
        return (text if self._key is None else text.replace(self._key, "[key]"))[:500].strip() or "nothing"

    def _read(self, answer: Any, seconds: float, read: Callable[[Reply], T]) -> tuple[Reply, T]:
        """Count what was used, then read. Raises Unreadable."""
        spent = self._ledger.spent
        spent.replies += 1
        spent.seconds += seconds
        usage = answer.get("usage") if isinstance(answer, Mapping) else None
        try:
            spent.tokens_in += int(usage["prompt_tokens"])  # pyright: ignore[reportOptionalSubscript]
            spent.tokens_out += int(usage["completion_tokens"])  # pyright: ignore[reportOptionalSubscript]
        except (KeyError, TypeError, ValueError):
            spent.unmetered += 1
            self._unmetered(answer)
        self._ledger.write_counts()
        reply = read_reply(answer, logprobs=self._config.score_from == "yes_no")
        return reply, read(reply)

    def _unmetered(self, answer: Any) -> None:
        """Raises RewardSetupError for a whole completion without usage where the budget depends on it."""
        if self._config.budget.counts_tokens and isinstance(answer, Mapping) and "choices" in answer:
            self._broken = RewardSetupError(
                f"{self._where}.budget: {self.url} does not say how many tokens it used (`usage`), so max_tokens and max_cost "
                "cannot hold; set max_requests instead"
            )
            raise self._broken

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()


def pause(digest: str, number: int) -> float:
    """Seconds before try number 1, 2, ... of a request: half to all of a doubling pause, by a counter-based number."""
    drawn = hashlib.blake2b(f"{digest}:{number}".encode(), digest_size=7).digest()
    return min(PAUSE * 2 ** (number - 1), LONGEST_PAUSE) * (0.5 + 0.5 * int.from_bytes(drawn, "big") / 2**56)


def retry_after(said: str) -> float:
    """The seconds of a Retry-After header, given as such or as a date; 0 where there is none that can be read."""
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
