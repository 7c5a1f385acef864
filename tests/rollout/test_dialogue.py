"""Conversations as token rows: sampled ids stay as they were, the engine and the row agree, and what ends a conversation."""

import pytest
from talking import CHATML, LLAMA, NO_END, NO_THOUGHTS, Speaker, asked, chat_with, played, shown
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from partita.engine.api import Sampling
from partita.records import Group, Sample
from partita.rollout.dialogue import Dialogue
from partita.rollout.summary import summarise
from partita.rollout.workflow import Episode, SingleTurn
from partita.tasks.chat import chat_of
from partita.tasks.reward import Scored
from partita.tasks.settings import DatasetConfig


class Talks:
    """Says what it is to say between the turns, and scores nothing."""

    def __init__(self, *told: str, rows="one", most: int | None = None, stop=()) -> None:
        self.told, self.rows, self.asking = told, rows, {"max_new_tokens": most, "stop": stop}

    async def run(self, episode: Episode) -> Sample:
        self.talk = Dialogue(episode, rows=self.rows)
        await self.talk.ask(**self.asking)
        for told in self.told:
            self.talk.tell(told)
            await self.talk.ask(**self.asking)
        return self.talk.sample(Scored(1.0))


TEMPLATES = {"chatml": (CHATML, "<|im_end|>"), "llama": (LLAMA, "<|eot|>"), "no end": (NO_END, "</s>")}


@pytest.mark.parametrize(("template", "end"), TEMPLATES.values(), ids=list(TEMPLATES))
def test_one_row_grows_and_the_engine_is_sent_exactly_its_ids(template, end) -> None:
    chat = chat_with(template, end)
    engine, workflow = Speaker(chat, end, "one", "two", "three"), Talks("no", "still no")
    prompt = asked(chat, "typed: " + end)  # a user may write the token
    [sample] = played(engine, workflow, prompt)
    [row] = sample.rows
    sent = [list(request.prompt_ids) for request in engine.requests]
    assert sent[0] == list(prompt.ids)
    assert all(row.ids[: len(ids)] == ids for ids in sent)
    trained = [one for one, own in zip(row.ids, row.trained, strict=True) if own]
    assert trained == [
        *chat.encode("one"),
        engine.end,
        *chat.encode("two"),
        engine.end,
        *chat.encode("three"),
        engine.end,
    ]
    assert (sample.text, sample.stop_reason) == ("one\n\ntwo\n\nthree", "stop")
    assert workflow.talk.transcript == "one\n\nno\n\ntwo\n\nstill no\n\nthree"
    # log-probs and versions are the sampler's, in their places
    own = [(p, v) for p, v, mine in zip(row.behaviour_logprobs, row.versions, row.trained, strict=True) if mine]
    assert own[:4] == [(-1.0, 0), (-1.01, 0), (-1.02, 0), (-1.03, 0)] and own[4] == (-2.0, 1)
    assert {v for v, mine in zip(row.versions, row.trained, strict=True) if not mine} == {-1}


def joining():
    """A tokenizer that joins ab and cd into one token where it sees both."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*alphabet, "ab", "cd", "abcd"])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("c", "d"), ("ab", "cd")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>", chat_template=CHATML)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return made


def test_what_was_sampled_apart_is_never_joined() -> None:
    made = joining()
    ab, cd, abcd, end = (made.convert_tokens_to_ids(one) for one in ("ab", "cd", "abcd", "<|im_end|>"))
    chat = chat_of(made, DatasetConfig(), [end])
    assert chat.encode("abcd") == [abcd]
    engine = Speaker(chat, "<|im_end|>", [ab, cd, end], [ab, cd, end])
    [sample] = played(engine, Talks("tool: abcd"), asked(chat))
    [row] = sample.rows
    trained = [i for i, own in zip(row.ids, row.trained, strict=True) if own]
    assert trained == [ab, cd, end, ab, cd, end] and sample.text == "abcd\n\nabcd"
    logprobs = [p for p, own in zip(row.behaviour_logprobs, row.trained, strict=True) if own]
    assert logprobs == [-1.0, -1.01, -1.02, -2.0, -2.01, -2.02]
    assert engine.requests[1].prompt_ids == tuple(row.ids[: len(engine.requests[1].prompt_ids)])


def test_a_template_that_strips_thinking_makes_a_row_of_each_turn_where_that_is_asked_for() -> None:
    chat = chat_with(NO_THOUGHTS, "<|im_end|>")
    lines = ("<think>x</think>1", "<think>y</think>2", "<think>z</think>3")
    engine = Speaker(chat, "<|im_end|>", *lines)
    [one] = played(engine, Talks("no", "no"), asked(chat))
    assert len(one.rows) == 1 and "<think>x</think>1" in shown(chat, one.rows[0].ids)
    [many] = played(engine, Talks("no", "no", rows="rerendered"), asked(chat))
    assert [shown(chat, row.ids).count("<think>") for row in many.rows] == [1, 1, 1]
    assert many.length == one.length and many.text == one.text
    for turn, row in enumerate(many.rows):
        own = [i for i, mine in zip(row.ids, row.trained, strict=True) if mine]
        assert own == [*chat.encode(lines[turn]), engine.end]  # each token once, in the row it was sampled in
        assert {v for v, mine in zip(row.versions, row.trained, strict=True) if mine} == {turn}
    metrics = summarise([Group(0, asked(chat), [one, many])])
    assert metrics["turns/mean"].mean == 3 and metrics["rows_per_sample/mean"].mean == 2


def test_a_template_that_strips_nothing_keeps_one_row_also_when_rendered_anew() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    engine = Speaker(chat, "<|im_end|>", "1", "2", "3")
    [anew] = played(engine, Talks("no", "no", rows="rerendered"), asked(chat))
    [one] = played(engine, Talks("no", "no"), asked(chat))
    assert anew.rows == one.rows


def test_a_cut_turn_ends_a_conversation() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    engine = Speaker(chat, "<|im_end|>", "a very long line", "never said")
    workflow = Talks("no", most=4)
    [sample] = played(engine, workflow, asked(chat))
    assert (sample.text, sample.stop_reason, workflow.talk.turns) == ("a ve", "length", 1)
    assert workflow.talk.transcript == "a ve" and len(engine.requests) == 1


def test_a_full_context_ends_a_conversation_before_what_has_no_answer_is_told() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    engine, prompt = Speaker(chat, "<|im_end|>", "one", "two"), asked(chat)
    told = len(chat.reply([engine.end], [{"role": "user", "content": "no"}]))
    whole = len(prompt.ids) + 4 + told
    [full] = played(engine, Talks("no"), prompt, context=whole)
    assert (full.stop_reason, len(full.rows[0].ids), full.rows[0].trained[-1]) == ("length", len(prompt.ids) + 4, True)
    [fits] = played(engine, Talks("no"), prompt, context=whole + 1)
    assert (fits.stop_reason, fits.text) == ("stop", "one\n\ntwo")


def test_a_stop_string_of_one_call_ends_a_turn_and_the_conversation_goes_on() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    engine = Speaker(chat, "<|im_end|>", chat.encode("one;"), "two")
    [sample] = played(engine, Talks("no", stop=[";"]), asked(chat), sampling=Sampling(64, stop_strings=("?",)))
    assert engine.requests[0].sampling.stop_strings == ("?", ";")
    assert sample.text == "one\n\ntwo"
    assert "one;<|im_end|>\n<|im_start|>user\nno<|im_end|>\n" in shown(chat, sample.rows[0].ids)


def test_a_single_turn_tells_of_no_turns() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    samples = played(Speaker(chat, "<|im_end|>", "one"), SingleTurn(), asked(chat), lambda response: 1.0)
    metrics = summarise([Group(0, asked(chat), samples)])
    assert "turns/mean" not in metrics.tallies and "rows_per_sample/mean" not in metrics.tallies


class Numbered:
    """Two calls that it numbers itself, and one that follows."""

    async def run(self, episode: Episode) -> Sample:
        talk = Dialogue(episode)
        for call in (2, 0, None):
            await episode.generate(episode.prompt.ids, call=call)
        return talk.sample(Scored(float(episode.sampling.max_new_tokens)))


def test_calls_may_be_numbered_where_time_decides_their_order() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    engine = Speaker(chat, "<|im_end|>", "one", "two", "three", "four")
    [sample] = played(engine, Numbered(), asked(chat))
    assert [request.draw.call for request in engine.requests] == [2, 0, 3] and sample.reward == 64.0
