"""Stop strings that span tokens or end inside one, found while tokens arrive."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from partita.engine.text import StopWatch, cut_at_stop, decode

A, END_DOT, EN, D, EOT = 3, 4, 5, 6, 2


def _first_hit(watch: StopWatch, ids: list[int]) -> int | None:
    """Number of tokens after which the watch strikes."""
    return next((n for n in range(1, len(ids) + 1) if watch.look(ids[:n])), None)


@pytest.mark.parametrize(
    ("ids", "tokens", "text"),
    [
        ([A, END_DOT], 2, "a"),  # ends inside a token
        ([A, EN, D], 3, "a"),  # spans tokens
        ([A, EN, EOT, D, A], 4, "a"),  # with a special token between, which has no text
        ([A, EN, A, D], None, "aENaD"),
        ([END_DOT], 1, ""),
    ],
)
def test_the_text_ends_before_a_stop_string(tokenizer, ids, tokens, text):
    assert _first_hit(StopWatch(tokenizer, ["END"]), ids) == tokens
    whole = decode(tokenizer, ids)
    before = cut_at_stop(whole, ["END"])
    assert (whole if before is None else before) == text


def test_a_long_text_is_watched_as_closely_as_a_short_one(tokenizer):
    ids = [A, EN] * 50 + [D]
    assert _first_hit(StopWatch(tokenizer, ["xyz", "ENaEND"]), ids) == len(ids)


def test_the_earliest_stop_string_cuts():
    assert cut_at_stop("one two three", ["three", "two"]) == "one "
    assert cut_at_stop("one", ["two"]) is None


def test_a_stop_string_around_a_character_of_several_tokens_is_found():
    vocabulary = {f"<0x{byte:02X}>": i for i, byte in enumerate("aé.b".encode())} | {"<unk>": 9}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    ids = [0, 1, 2, 3, 4]  # a, two bytes of é, a dot, b
    assert decode(bytes_, ids[:2]).endswith("\ufffd")
    assert _first_hit(StopWatch(bytes_, ["é."]), ids) == 4
