"""The vocabulary of the built-in tasks: words to count letters in, and one-step subtraction stories.

Left out: how they become rows; see `tasks.catalog`.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = """
apple banana cherry lemon orange papaya pepper carrot potato tomato onion garlic butter cheese coffee cookie muffin
noodle pancake pizza salad kitten puppy rabbit turtle parrot penguin gorilla giraffe hamster lizard otter raccoon
squirrel zebra balloon bottle button candle carpet curtain drawer kettle ladder mirror pillow puzzle ribbon scissors
summer winter autumn weather thunder rainbow meadow valley mountain island harbor village castle garden forest river
teacher doctor farmer sailor painter singer dancer letter pencil paper school lesson history question answer umbrella
bicycle wagon tunnel bridge station ticket journey holiday festival drum violin trumpet
"""
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True)
class Story:
    """A question with the places {who}, {what}, {more} and {fewer}; its answer is more - fewer."""

    text: str
    people: tuple[str, ...]
    things: tuple[str, ...]


_NAMES = ("Amir", "Bella", "Carlos", "Dana", "Emeka", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lena")
_SMALL = ("marbles", "stickers", "shells", "beads", "coins", "stamps", "buttons", "acorns")
_FOOD = ("apples", "cookies", "plums", "muffins", "oranges", "pears", "rolls", "peaches")
_SHOP = ("pencils", "notebooks", "candles", "lamps", "mugs", "scarves", "kites", "baskets")
_TREES = ("roses", "tulips", "bushes", "pumpkins", "melons", "sunflowers")

STORIES = (
    Story(
        "{who} has {more} {what} and gives {fewer} of them to a friend. How many {what} does {who} have left?",
        _NAMES,
        _SMALL,
    ),
    Story("There are {more} {what} on the table. {who} eats {fewer} of them. How many {what} remain?", _NAMES, _FOOD),
    Story(
        "A shop starts the day with {more} {what} and sells {fewer} to {who}. How many {what} are still in the shop?",
        _NAMES,
        _SHOP,
    ),
    Story("{who} wants to collect {more} {what} and has found {fewer} so far. How many are missing?", _NAMES, _SMALL),
    Story("{who} baked {more} {what}, but {fewer} were burnt. How many {what} turned out well?", _NAMES, _FOOD),
    Story(
        "In {who}'s garden stood {more} {what}. A storm broke {fewer} of them. How many are still standing?",
        _NAMES,
        _TREES,
    ),
    Story("{who} needs {more} {what} for a fair and already has {fewer}. How many more must {who} get?", _NAMES, _SHOP),
    Story(
        "A box held {more} {what}. After {who} took some out, {fewer} were left. How many did {who} take?",
        _NAMES,
        _SMALL,
    ),
    Story("{who} picked {more} {what} and a neighbour picked {fewer}. How many more did {who} pick?", _NAMES, _FOOD),
    Story(
        "{who} carried {more} {what} to the market and brought {fewer} back home. How many were sold?", _NAMES, _TREES
    ),
)
