"""Inside an agent's process: call the agent by the names of its parameters, and read what it returned.

The address of the served policy is also in the environment, where OpenAI's clients look for it. Left out: everything but the
standard library, as this is imported before the agent is.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from partita.tasks.functions import ReturnedError, load_object
from partita.tasks.reward_call import finite, part_name

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Caller:
    """An agent that was handed over as an object. Called with `address` (base_url, api_key) and the agent's own arguments."""

    agent: Callable[..., Any]

    def __call__(self, address: tuple[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        """What the agent returned, as JSON in the note `returned`: a worker's answer is a reward's, and its score is not used."""
        os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = address
        # a proxy cannot reach this machine's loopback
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), LOCAL]))
        returned = self.agent(**given)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        return {"score": 0.0, "returned": json.dumps(read(returned))}


def call_named(agent: str, address: tuple[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """`Caller` for an agent that a config names; it is imported already."""
    return Caller(load_object(agent))(address, given)


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


def read(returned: object) -> dict[str, Any]:
    """What an agent returned: `reward` or `text`, and `parts` and `notes` beside it. Raises ReturnedError for everything else."""
    read: dict[str, Any] = {"reward": None, "text": None, "parts": {}, "notes": {}}
    if isinstance(returned, str):
        return read | {"text": returned}
    if returned is None:
        raise ReturnedError(
            "returned None; expected the reward (a number), the answer (a text), or a dict with one of the two"
        )
    if not isinstance(returned, Mapping):
        return read | {"reward": finite(returned, "returned")}
    given = cast("Mapping[Any, Any]", returned)
    if "reward" not in given and "text" not in given:
        raise ReturnedError(
            f"returned a dict without 'reward' and 'text'; its keys: {', '.join(map(str, given)) or 'none'}"
        )
    for name, value in given.items():
        if name == "reward":
            read["reward"] = finite(value, "'reward' is")
        elif name == "text" and not isinstance(value, str):
            raise ReturnedError(f"'text' is a {type(value).__name__}")
        elif name == "text":
            read["text"] = value
        elif isinstance(value, str):
            read["notes"][str(name)] = value
        else:
            read["parts"][part_name(name)] = finite(value, f"part {name!r} is")
    return read
