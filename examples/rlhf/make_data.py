"""Writes the data of the RLHF example: demonstrations, preferences and prompts, from a small grammar and a seed.

usage: python examples/rlhf/make_data.py FOLDER [--seed 1]

Demonstrations keep the house style (`rule.py`) about as often as not, as those of real people do; preferences are pairs of
such responses that differ clearly, ordered by the rule. Held-out prompts are about topics that no training row names. Pairs
are balanced: as often as not the better response is the longer one, and as often as not the one of a more common length, so
length alone tells next to nothing.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rule import HEDGES, OPENERS, brief, true_reward

T = TypeVar("T")
REQUESTS = (
    "Tell me about {}.", "Say something about {}.", "What should I know about {}?", "Tell me one thing about {}.",
    "Why do people like {}?", "Can you tell me about {}?", "Give me a short fact about {}.", "What do you know about {}?",
)  # fmt: skip
# topics by kind, the last HELD_OUT of each kind held out; and what can be said of every one of a kind
HELD_OUT = 4
TOPICS: dict[str, tuple[str, ...]] = {
    "animal": ("cats", "dogs", "horses", "owls", "goats", "rabbits", "ducks", "turtles", "frogs", "bears", "cows", "eagles",
               "lions", "snakes", "pigeons", "beavers"),
    "food": ("apples", "carrots", "onions", "lemons", "pancakes", "noodles", "beans", "olives", "pears", "cookies",
             "almonds", "plums", "grapes", "muffins", "peppers", "bananas"),
    "place": ("bridges", "gardens", "museums", "castles", "markets", "harbors", "stations", "towers", "parks", "schools",
              "villages", "farms", "tunnels", "theaters", "airports", "islands"),
    "tool": ("hammers", "candles", "ladders", "baskets", "lamps", "needles", "buckets", "clocks", "pencils", "ropes",
             "kettles", "mirrors", "shovels", "drums", "umbrellas", "wheels"),
}  # fmt: skip
SAID: dict[str, tuple[str, ...]] = {
    "animal": ("need fresh water every day", "sleep more than most people expect", "learn quickly when they are treated well",
               "can hear sounds that we miss", "like a quiet place to rest", "take good care of their young",
               "find their way home over long distances"),
    "food": ("taste best when they are fresh", "keep well in a cool and dry room", "are part of many family recipes",
             "are grown or made in many countries", "go well with a cup of tea", "give you energy for the day",
             "are easy to share with friends"),
    "place": ("bring people of all ages together", "are often older than they look", "take many years to plan and build",
              "are worth a visit in spring", "have many stories to tell", "look best early in the morning",
              "need care to stay beautiful"),
    "tool": ("have been made by hand for centuries", "are found in almost every house", "last for years when they are kept dry",
             "make daily work a little easier", "come in many shapes and sizes", "are simple and hard to replace",
             "should be stored in a safe place"),
}  # fmt: skip
MORE = (
    "They have been around for a very long time.", "Many books have been written on the subject.",
    "There is a lot more to learn here if you look.", "Most people have a memory of them from childhood.",
)  # fmt: skip
SHORT = ("are nice", "are great", "are useful")
OTHER_OPENERS = ("Well", "Okay", "So", "Hmm", "Right")
QUESTIONS = (
    "Would you like to know more?", "Shall I go on?", "Is there anything else?", "Does that help?",
    "What else can I tell you?", "Do you have a favorite?",
)  # fmt: skip
OTHER_ENDS = ("Thanks for asking.", "That is all.", "Have a nice day.", "Just let me know.", "I hope that helps.")
# how often a response of the grammar keeps each part of the rule, and how often it hedges
SHARES = {"opener": 0.5, "topic": 0.75, "brief": 0.94, "question": 0.5, "hedge": 0.25}
CLEAR = 0.5  # a pair's answers differ by at least this much: where people are not sure they give no preference
COMMON = 80  # characters of a common response
SHAPES = ((True, True), (True, False), (False, True), (False, False))  # the better one is longer, is nearer to it


def chance(rng: random.Random, share: float) -> bool:
    """True with this probability."""
    return rng.random() < share


def pick(rng: random.Random, choices: Sequence[T]) -> T:
    """One of them. `random()` is the one method whose numbers Python promises to keep between versions."""
    return choices[int(rng.random() * len(choices))]


def response(rng: random.Random, kind: str, topic: str) -> str:
    """One answer to a request about `topic`: parts drawn by SHARES, then words until it is as brief, or not, as drawn."""
    kept = {part: chance(rng, share) for part, share in SHARES.items()}
    while brief(text := _words(rng, kind, topic, kept)) != kept["brief"]:
        pass
    return text


def _words(rng: random.Random, kind: str, topic: str, kept: dict[str, bool]) -> str:
    opener = pick(rng, OPENERS if kept["opener"] else ("", *OTHER_OPENERS))
    subject = topic
    if not kept["topic"]:  # nothing named, or something else of the same kind
        subject = "they" if chance(rng, 0.5) else pick(rng, _others(kind, topic))
    hedge = f"{pick(rng, HEDGES).replace('i ', 'I ')} " if kept["hedge"] else ""
    sentence = f"{hedge}{subject} {pick(rng, SAID[kind])}"
    more = [one for one in MORE if chance(rng, 0.2 if kept["brief"] else 0.6)]
    if not kept["brief"] and chance(rng, 0.5):
        sentence, more = f"{hedge}{subject} {pick(rng, SHORT)}", []
    first = f"{opener}, {sentence}." if opener else f"{sentence[0].upper()}{sentence[1:]}."
    end = pick(rng, QUESTIONS if kept["question"] else ("", *OTHER_ENDS))
    return " ".join(part for part in (first, *more, end) if part)


def topics(kind: str, held_out: bool) -> tuple[str, ...]:
    """The topics of a split."""
    return TOPICS[kind][-HELD_OUT:] if held_out else TOPICS[kind][:-HELD_OUT]


def _others(kind: str, topic: str) -> list[str]:
    """The other topics of the same kind and split."""
    return [other for other in topics(kind, topic in topics(kind, True)) if other != topic]


def requests(held_out: bool) -> list[tuple[str, str, str]]:
    """Kind, topic and words of every request of a split."""
    return [
        (kind, topic, words.format(topic)) for kind in TOPICS for topic in topics(kind, held_out) for words in REQUESTS
    ]


def demonstrations(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Conversations to imitate."""
    split, rows = requests(False), list[dict[str, Any]]()
    for _ in range(count):
        kind, topic, words = pick(rng, split)
        rows.append({"messages": [user(words), {"role": "assistant", "content": response(rng, kind, topic)}]})
    return rows


def preferences(rng: random.Random, count: int, held_out: bool) -> list[dict[str, Any]]:
    """Pairs for one request each; of every four better responses two are longer, and two nearer to a common length."""
    split, rows = requests(held_out), list[dict[str, Any]]()
    while len(rows) < count:
        kind, topic, words = pick(rng, split)
        worse, better = sorted((response(rng, kind, topic) for _ in range(2)), key=lambda one: score(one, topic))
        far_worse, far_better = (abs(len(one) - COMMON) for one in (worse, better))
        unlike = len(better) != len(worse) and far_better != far_worse
        shape = (len(better) > len(worse), far_better < far_worse)
        clear = score(better, topic) - score(worse, topic) >= CLEAR
        if clear and unlike and shape == SHAPES[len(rows) % 4]:
            sides = {"chosen": better, "rejected": worse}
            answers = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
            rows.append({"prompt": [user(words)], **answers, "topic": topic})
    return rows


def prompts(held_out: bool) -> list[dict[str, Any]]:
    """Requests to sample responses to, with the topic that the rule asks for."""
    return [{"prompt": [user(words)], "topic": topic} for _, topic, words in requests(held_out)]


def user(words: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": words}


def score(text: str, topic: str) -> float:
    """The rule's verdict."""
    return true_reward(text, topic)["score"]


def make(folder: Path, seed: int = 1, sft: int = 800, pairs: int = 1200, held_out_pairs: int = 300) -> dict[str, int]:
    """Write all five files into `folder`; file name to number of rows. The same arguments write the same bytes."""
    files = {
        "sft.jsonl": demonstrations(random.Random(f"sft/{seed}"), sft),
        "preferences_train.jsonl": preferences(random.Random(f"train/{seed}"), pairs, False),
        "preferences_test.jsonl": preferences(random.Random(f"test/{seed}"), held_out_pairs, True),
        "prompts_train.jsonl": prompts(False),
        "prompts_test.jsonl": prompts(True),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return {name: len(rows) for name, rows in files.items()}


def main() -> None:
    """Write, and say what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, count in make(args.folder, args.seed).items():
        print(f"{args.folder / name}: {count} rows")


if __name__ == "__main__":
    main()
