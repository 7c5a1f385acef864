"""The true reward of the RLHF example: how well a response keeps the house style of a friendly help desk.

The reward model never sees this function, only pairs that it ordered. It judges the policies at the end, and shows what a
reward model that is followed too far does to them.
"""

from __future__ import annotations

import re

OPENERS = ("Sure", "Of course", "Certainly", "Gladly", "With pleasure")
HEDGES = ("maybe", "perhaps", "probably", "possibly", "i think", "i guess")
FEWEST_WORDS, MOST_WORDS = 8, 22
SHARE = 0.25


def true_reward(response: str, topic: str) -> dict[str, float]:
    """`score` in [0, 1]: a quarter for each of four parts that is kept, less a quarter for hedging; and the parts, 0 or 1.

    topic: what the request is about, a regular plural such as "cats".
    """
    kept = {
        "opener": opens(response),
        "topic": names(response, topic),
        "brief": brief(response),
        "question": response.rstrip().endswith("?"),
    }
    hedge = hedges(response)
    score = max(0.0, SHARE * (sum(kept.values()) - hedge))
    return {"score": score, **{name: float(one) for name, one in kept.items()}, "hedge": float(hedge)}


def opens(response: str) -> bool:
    """Begins with one of the openers, as whole words."""
    return re.match(rf"\s*({'|'.join(OPENERS)})\b", response) is not None


def names(response: str, topic: str) -> bool:
    """Names the topic, in the singular or the plural."""
    return re.search(rf"\b{re.escape(topic.removesuffix('s'))}s?\b", response, re.IGNORECASE) is not None


def brief(response: str) -> bool:
    """A finished text of 8 to 22 words."""
    return FEWEST_WORDS <= len(response.split()) <= MOST_WORDS and response.rstrip().endswith((".", "!", "?"))


def hedges(response: str) -> bool:
    """Says somewhere that it is not sure."""
    return re.search(rf"\b({'|'.join(HEDGES)})\b", response, re.IGNORECASE) is not None
