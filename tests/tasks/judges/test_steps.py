"""Steps of a response and the tokens at which they end, also where characters and steps lie across tokens."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from partita.tasks.judges.steps import Step, characters, places, split


def byte_decoder():
    """Ids are bytes, 256 is the end of a text."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<eos>": 256}
    backend = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("between", "response", "steps"),
    [
        ("lines", "a\nb\n\nc", [Step("a", 2), Step("b", 5), Step("c", 6)]),
        ("lines", "\n a \n \nb\n", [Step("a", 7), Step("b", 9)]),
        ("paragraphs", "a\nb\n \nc", [Step("a\nb", 6), Step("c", 7)]),
        (r"(?=Step \d+:)", "Step 1: a Step 2: b", [Step("Step 1: a", 10), Step("Step 2: b", 19)]),
        ("lines", "one", [Step("one", 3)]),
        ("lines", " \n ", []),
        ("lines", "", []),
    ],
)
def test_a_step_reaches_to_where_the_next_begins(between, response, steps):
    assert split(response, between) == steps


def test_characters_are_complete_with_their_last_token():
    ids = [*"aé€😀.".encode(), 256]
    assert characters(ids, byte_decoder()) == [1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 5]


def test_what_never_becomes_a_character_holds_nothing_up():
    ids = [0x61, 0xC3, 0x41, 0xFF]
    assert characters(ids, lambda some: bytes(some).decode(errors="replace")) == [1, 1, 3, 3]


def test_a_step_ends_at_a_token_and_the_last_one_with_the_response():
    decode = byte_decoder()
    ids = [*"é1\n2\n😀".encode(), 256]
    assert places(split(decode(ids), "lines"), ids, decode) == [3, 5, len(ids) - 1]


def test_a_token_across_two_steps_belongs_to_the_first():
    words = ["one", ".\ntwo", "\n", "three", "\nfour\nfive"]

    def decode(ids):
        return "".join(words[i] for i in ids)

    ids = [0, 1, 2, 3, 4]
    assert places(split(decode(ids), "lines"), ids, decode) == [1, 2, 4, 4, 4]


def test_places_are_those_of_decoding_every_prefix():
    decode, draw = byte_decoder(), random.Random(0)
    for _ in range(50):
        text = "".join(draw.choice("ab é€😀\n") for _ in range(60))
        ids = [*text.encode(), 256]
        steps = split(text, "lines")
        slow = [
            next(n for n in range(len(ids)) if decode(ids[: n + 1]).startswith(text[: one.end])) for one in steps[:-1]
        ]
        assert places(steps, ids, decode) == [*slow, *[len(ids) - 1] * bool(steps)]
