"""What goes over HTTP to the built-in engine's server and back: rounds of requests, and what was sampled for them, as JSON.

Numbers survive it bit for bit: JSON writes a float with as many digits as it takes to read the same float again.
Left out: text. A completion's text is decoded where it is used, from the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from partita.engine.api import Completion, Draw, Request, Sampling
from partita.engine.servers.api import Answer, Ask


class WireError(ValueError):
    """A body that is not what the wire carries; the message says what of it."""


def round_body(asks: Sequence[Ask], weights: str) -> dict[str, Any]:
    """The requests that a server computes together, in order, and the name of the weights that it must hold."""
    requests = [
        {"prompt_ids": ask.prompt_ids, "sampling": asdict(ask.sampling), "draw": astuple(ask.draw)} for ask in asks
    ]
    return {"weights": weights, "requests": requests}


def read_round(body: Mapping[str, Any]) -> tuple[str, list[Request]]:
    """The opposite of `round_body`. Raises WireError."""
    try:
        return str(body["weights"]), [_request(one) for one in body["requests"]]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"not a round of requests ({type(error).__name__}: {error})") from error


def answers_body(answers: Iterable[tuple[int, Completion | ValueError]]) -> list[dict[str, Any]]:
    """Some of a round's answers with their places in it: what was sampled, or why it could not be."""
    return [{"at": at, **_answer(one)} for at, one in answers]


def read_answers(body: Sequence[Mapping[str, Any]]) -> list[tuple[int, Answer | ValueError]]:
    """The opposite of `answers_body`. Raises WireError."""
    try:
        return [(int(one["at"]), _sampled(one)) for one in body]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"not answers to a round ({type(error).__name__}: {error})") from error


def _request(one: Mapping[str, Any]) -> Request:
    known = {field.name for field in fields(Sampling)}
    given = dict(one["sampling"])
    if given.keys() != known:
        raise ValueError(f"sampling has the keys {sorted(given)}; this version of Partita knows {sorted(known)}")
    ids, strings = tuple(map(int, given.pop("stop_ids"))), tuple(map(str, given.pop("stop_strings")))
    sampling = Sampling(**given, stop_ids=ids, stop_strings=strings)
    return Request(tuple(map(int, one["prompt_ids"])), sampling, Draw(*map(int, one["draw"])))


def _answer(one: Completion | ValueError) -> dict[str, Any]:
    if isinstance(one, ValueError):
        return {"error": str(one)}
    return {"ids": one.ids, "logprobs": one.logprobs, "versions": one.versions, "stop_reason": one.stop_reason}


def _sampled(one: Mapping[str, Any]) -> Answer | ValueError:
    if "error" in one:
        return ValueError(one["error"])
    ids, logprobs, versions = tuple(one["ids"]), tuple(one["logprobs"]), tuple(one["versions"])
    if not len(ids) == len(logprobs) == len(versions):
        raise ValueError(f"{len(ids)} ids, {len(logprobs)} log-probs and {len(versions)} versions of one completion")
    return Answer(ids, logprobs, versions, one["stop_reason"])
