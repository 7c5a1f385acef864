"""Environments that speak text: what a policy says is an action, what they say is its next message.

The five values of a step are gymnasium's (https://gymnasium.farama.org), and an environment of gymnasium with text spaces works
as it is. Calls run in threads, so that a slow environment holds nobody up; what goes wrong in one is an error of that sample.

Left out: tokens, and what rewards are added up to (`rollout.multi_turn`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from partita.records import Prompt
from partita.tasks.chat import Messages
from partita.tasks.files import DataError
from partita.tasks.functions import ReturnedError, error_text
from partita.tasks.messages import check_asks, read_chat
from partita.tasks.reward_call import finite, short
from partita.tasks.reward_threads import Threads

FIVE = "(observation, reward, terminated, truncated, info)"


class Environment(Protocol):
    """One episode of a game, a simulation, a user: made anew for each sample, called from one thread at a time.

    It may have a `close()`, which is called in the end. One whose `reset` has the parameter `options` is called as gymnasium does:
    `reset(seed=seed, options=row)`, which returns an observation and a dict.
    """

    def reset(self, row: Mapping[str, Any], seed: int) -> str | Messages | None:
        """Begin. row: the columns of the prompt's row. seed: 32 bits, the same for all samples of a group.

        Returns what is added to the prompt's last message, a whole conversation in place of the prompt, or None for nothing.
        """
        ...

    def step(self, action: str) -> tuple[str | Messages, float | None, bool, bool, Mapping[str, Any]]:
        """Take what the policy said, and return an observation, a reward, whether the episode ends here, whether it is cut here,
        and anything else.

        The observation is the next message of the user, or several messages. A reward of None is none for this step.
        """
        ...


class EnvironmentFailed(RuntimeError):
    """An environment raised, overran, or returned something else than it should; the message says which."""


@dataclass(frozen=True)
class Step:
    """What a step came to. observation: empty where the episode ends with it."""

    observation: Messages
    reward: float | None
    terminated: bool
    truncated: bool


class World:
    """One environment in the making and in use, for one sample. make: called without arguments. seconds: most of each call, waiting
    for a thread included: that all of them hang must end a run.
    """

    def __init__(self, make: Callable[[], Any], threads: Threads[Any], seconds: float) -> None:
        self._make, self._threads, self._seconds = make, threads, seconds
        self._environment: Any = None
        self.stuck = False
        """Whether a call has overrun its limit: it goes on in its thread."""

    async def reset(self, prompt: Prompt, seed: int) -> Messages | None:
        """The conversation that the environment opens; None where it leaves the prompt as it is. Raises EnvironmentFailed."""
        self._environment = await self._call(self._make, "")
        reset = self._environment.reset
        if "options" in inspect.signature(reset).parameters:
            begin = partial(reset, seed=seed, options=dict(prompt.row))
        else:
            begin = partial(reset, dict(prompt.row), seed)
        told = await self._call(begin, "reset")
        if isinstance(told, tuple) and len(told) == 2:  # with gymnasium's dict beside it
            told = told[0]
        return self._read(partial(opened, prompt, told))

    async def step(self, action: str) -> Step:
        """Raises EnvironmentFailed."""
        told = await self._call(partial(self._environment.step, action), "step")
        return self._read(partial(step_of, told))

    async def close(self) -> None:
        """End it, where it has a `close`. Raises EnvironmentFailed."""
        close = getattr(self._environment, "close", None)
        if callable(close) and not self.stuck:
            await self._call(close, "close")

    async def _call(self, call: Callable[[], Any], name: str) -> Any:
        where = f"in {name}: " if name else ""
        try:
            ended = await asyncio.wait_for(self._threads.run(partial(_caught, call)), self._seconds)
        except TimeoutError:
            self.stuck = True
            why = f"{where}no result within {self._seconds:g} seconds (rollout.workflow_kwargs.timeout_seconds)"
            raise EnvironmentFailed(why) from None
        except asyncio.CancelledError:  # the run ends, and nobody may wait for the call
            self.stuck = True
            raise
        if isinstance(ended, _Raised):
            raise EnvironmentFailed(f"{where}{error_text(ended.error)}") from ended.error
        return ended

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (ReturnedError, DataError) as error:
            raise EnvironmentFailed(str(error)) from error


def opened(prompt: Prompt, told: object) -> Messages | None:
    """The messages that an episode opens with, given what `reset` returned; None for the prompt's own. Raises DataError."""
    if told is None or told == "":
        return None
    if not isinstance(told, str):
        messages = read_chat(told, "reset's observation")
        check_asks(messages, "reset's observation")
        return messages
    *before, last = [dict(message) for message in prompt.messages] or [{"role": "user", "content": ""}]
    if last["role"] != "user":
        return [*before, last, {"role": "user", "content": told}]
    words = f"{last['content']}\n\n{told}" if last["content"] else told
    return [*before, {**last, "content": words}]


def step_of(told: object) -> Step:
    """What `step` returned, checked. Raises ReturnedError and DataError."""
    if not isinstance(told, tuple | list) or len(told) != 5:
        raise ReturnedError(f"step returned {short(told)}; expected {FIVE}")
    observation, reward, terminated, truncated, _ = told
    worth = None if reward is None else finite(reward, "step returned the reward")
    if terminated or truncated:
        return Step((), worth, bool(terminated), bool(truncated))
    if isinstance(observation, str):
        return Step(({"role": "user", "content": observation},), worth, False, False)
    return Step(read_chat(observation, "step's observation"), worth, False, False)


@dataclass(frozen=True)
class _Raised:
    """An error as a value: a StopIteration can be raised out of no future."""

    error: Exception


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return _Raised(error)
