"""The ids between what was sampled and the next turn: the template's own, each end of turn once, nothing encoded twice."""

import pytest
from talking import BLANK, CHATML, LLAMA, MARKS, NO_END, NO_THOUGHTS, chat_with, shown, tokenizer_of
from tiny_model import byte_tokenizer

from partita.models.load import load_tokenizer
from partita.tasks.chat import NO_CHAT, chat_of
from partita.tasks.dataset import TaskRow
from partita.tasks.rendering import PromptError, rendering_of
from partita.tasks.settings import DatasetConfig

USER = [{"role": "user", "content": "no"}]
TOOLS = [{"role": "tool", "content": "3"}, {"role": "tool", "content": "4"}]
CASES = {
    "chatml": (CHATML, "<|im_end|>", "\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n"),
    "llama": (LLAMA, "<|eot|>", "<|start|>user<|end|>\n\nno<|eot|><|start|>assistant<|end|>\n\n"),
    "no end": (NO_END, "</s>", "\nU: no\nA: "),
    "blank": (BLANK, "</s>", "<s>[I] no [/I]"),
    "marks": (MARKS, "<|user|>", "\nno<|assistant|>\n"),
}


def said(chat, text, *more):
    return [*chat.encode(text), *(chat.rendering.tokenizer.convert_tokens_to_ids(one) for one in more)]


@pytest.mark.parametrize(("template", "end", "between"), CASES.values(), ids=list(CASES))
def test_what_follows_an_answer_is_what_the_template_puts_there_with_each_end_once(template, end, between) -> None:
    chat = chat_with(template, end)
    answer = said(chat, "7", end)
    assert shown(chat, chat.reply(answer, USER)) == between
    # only the last id matters
    assert chat.reply(answer[-1:], USER) == chat.reply(answer, USER)


@pytest.mark.parametrize(("template", "end", "between"), CASES.values(), ids=list(CASES))
def test_a_whole_conversation_of_replies_is_the_template_s_own_rendering(template, end, between) -> None:
    chat = chat_with(template, end)
    first = [{"role": "user", "content": "Hi"}]
    answer = said(chat, "7") if template is NO_END else said(chat, "7", end)
    grown = [*chat.opening(first), *answer, *chat.reply(answer, USER)]
    whole = chat.opening([*first, {"role": "assistant", "content": "7"}, *USER])
    text, wanted = shown(chat, grown), shown(chat, whole)
    # Llama 2's blanks around an answer are the template's, and were not sampled
    assert text.replace("] 7 <", "]7<") == wanted.replace("] 7 <", "]7<") if template is BLANK else text == wanted


def test_an_answer_that_a_stop_string_ended_gets_the_end_of_its_turn() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    assert shown(chat, chat.reply(said(chat, "7"), USER)) == "<|im_end|>" + CASES["chatml"][2]
    assert shown(chat, chat.reply((), USER)) == "<|im_end|>" + CASES["chatml"][2]
    blank = chat_with(BLANK, "</s>")
    assert shown(blank, blank.reply(said(blank, "7"), USER)) == " </s><s>[I] no [/I]"


def test_an_answer_that_another_end_token_ended_is_not_ended_twice() -> None:
    chat = chat_with(CHATML, "<|im_end|>", "<eos>")
    assert shown(chat, chat.reply(said(chat, "7", "<eos>"), USER)) == CASES["chatml"][2]
    # where the next turn's mark is the end, another end cannot stand for it
    marks = chat_with(MARKS, "<|user|>", "<|tool|>", "<eos>")
    assert shown(marks, marks.reply(said(marks, "7", "<eos>"), USER)) == "<|user|>\nno<|assistant|>\n"
    assert shown(marks, marks.reply(said(marks, "7", "<|tool|>"), TOOLS[:1])) == "\n3<|assistant|>\n"


def test_several_messages_are_told_at_once_and_tools_are_shown_where_the_template_can() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    told = shown(chat, chat.reply(said(chat, "7", "<|im_end|>"), TOOLS))
    assert told == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    with_tools = "{% if tools %}T: {{ tools[0].name }}\n{% endif %}" + NO_END
    made = byte_tokenizer()
    made.chat_template = with_tools
    chat = chat_of(made, DatasetConfig(), [])
    assert shown(chat, chat.with_tools([{"name": "add"}]).opening(USER)) == "T: add\nU: no\nA: "
    assert shown(chat, chat.with_tools([{"name": "add"}]).reply(chat.encode("7"), USER)) == "\nU: no\nA: "


def test_the_opening_is_the_prompt_of_these_messages_prefill_included() -> None:
    for keys in ({}, {"prefill": "So"}, {"chat_template": "none"}):
        section = DatasetConfig(**keys)
        made = tokenizer_of(CHATML)
        [ids] = rendering_of(made, section).ids([TaskRow("1", tuple(USER), None, {})])
        chat = chat_of(made, section, [])
        assert chat.opening(USER) == ids
    assert shown(chat_with(CHATML, prefill="So"), chat_with(CHATML, prefill="So").reply((), USER)).endswith(
        "assistant\nSo"
    )


def test_without_a_template_an_end_token_stands_between_the_texts() -> None:
    chat = chat_with(None, "<eos>", chat_template="none")
    assert shown(chat, chat.reply(said(chat, "7", "<eos>"), USER)) == "no"
    assert shown(chat, chat.reply(said(chat, "7"), USER)) == "<eos>no"
    with pytest.raises(PromptError, match="chat_template=none shows no tools"):
        chat.with_tools([{"name": "add"}])


def test_a_template_that_leaves_thinking_out_cannot_reach_what_was_sampled() -> None:
    chat = chat_with(NO_THOUGHTS, "<|im_end|>")
    first = [{"role": "user", "content": "Hi"}]
    answer = said(chat, "<think>a</think>7", "<|im_end|>")
    grown = [*chat.opening(first), *answer, *chat.reply(answer, USER)]
    assert "<think>a</think>7" in shown(chat, grown)
    anew = [*first, {"role": "assistant", "content": "<think>a</think>7"}, *USER]
    assert "<think>" not in shown(chat, chat.opening(anew))


def test_templates_that_cannot_go_on_say_so() -> None:
    refusing = "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    made = byte_tokenizer()
    made.chat_template = "{% for m in messages %}" + refusing + "{{ m.content }}{% endfor %}"
    with pytest.raises(PromptError, match=r"refuses what follows an answer \(roles: tool, tool\): no tools here"):
        chat_of(made, DatasetConfig(), []).reply((), TOOLS)
    made.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(PromptError, match="leaves earlier answers out"):
        chat_of(made, DatasetConfig(), []).reply((), USER)
    with pytest.raises(PromptError, match="needs the model's tokenizer"):
        NO_CHAT.opening(USER)


@pytest.mark.slow
def test_with_the_embedded_model_s_template_replies_are_its_own_rendering() -> None:
    tokenizer = load_tokenizer("smollm2-135m")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = chat_of(tokenizer, DatasetConfig(), [end])
    first, told = [{"role": "user", "content": "Guess."}], [{"role": "user", "content": "Higher than that."}]
    answer = [*chat.encode("Is it 7?"), end]
    grown = [*chat.opening(first), *answer, *chat.reply(answer, told)]
    assert grown == chat.opening([*first, {"role": "assistant", "content": "Is it 7?"}, *told])
    assert chat.decode(answer) == "Is it 7?"
