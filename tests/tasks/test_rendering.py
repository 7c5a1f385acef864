"""What of a prompt belongs to whom: prefills, thinking, ends of turns, and texts that bring their own template along."""

import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import PromptError, render_prompts
from partita.tasks.settings import DatasetConfig

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<｜User｜>"
    "{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% if thinking %}<think>\n{% endif %}{% endif %}"
)
ROPE = "<｜User｜>A rope of 36 m.\nUse \\boxed{}.<｜Assistant｜><think>\n"


def tokenizer_of(template, *special, bos=None):
    made = byte_tokenizer()
    made.chat_template = template
    made.add_special_tokens({"additional_special_tokens": list(special)})
    if bos:
        made.add_special_tokens({"bos_token": bos})
    return made


CHAT = tokenizer_of(CHATML, "<|im_start|>", "<|im_end|>")
DEEP = tokenizer_of(DEEPSEEK, "<｜User｜>", "<｜Assistant｜>", "<｜end｜>", bos="<｜begin｜>")


def said(role, content):
    return {"role": role, "content": content}


def row(*messages, **more):
    return TaskRow("1-x", messages or (said("user", "Hi"),), None, {}, **more)


def brought(text):
    return row(said("user", text), templated=True)


def render(some, tokenizer, **keys):
    found = render_prompts(some, tokenizer, DatasetConfig(**keys), context=4096)
    for prompt in found.prompts:
        alone = tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        assert list(prompt.ids) == alone  # the ids are those of the text that is shown
    return found


def text(some, tokenizer, **keys):
    return render([some], tokenizer, **keys).prompts[0].text


def test_a_prefill_is_the_end_of_the_prompt():
    asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text(row(), CHAT) == asked
    assert text(row(), CHAT, prefill="Let me see.\n<think>") == f"{asked}Let me see.\n<think>"
    both = render([row(), row(said("user", "Ho"))], CHAT, prefill="So:").prompts
    assert [prompt.text[-3:] for prompt in both] == ["So:", "So:"] and "Ho" in both[1].text
    assert text(row(), CHAT, prefill=" So:", chat_template="none") == "Hi So:"


def test_a_prefill_may_not_open_thinking_a_second_time():
    assert text(row(), DEEP, prefill="<think>") == "<｜begin｜><｜User｜>Hi<｜Assistant｜><think>"
    with pytest.raises(PromptError, match=r"train_dataset: prefill='<think>' opens <think>, and the chat template has"):
        render([row()], DEEP, prefill="<think>", chat_template_kwargs={"thinking": True})


def test_a_templated_prompt_of_this_models_template_is_used_as_it_is():
    found = render([brought(ROPE), row()], DEEP)
    assert found.prompts[0].text == f"<｜begin｜>{ROPE}" and found.prompts[0].text.count("<｜User｜>") == 1
    assert found.prompts[1].text == "<｜begin｜><｜User｜>Hi<｜Assistant｜>"
    assert found.notes[1] == "1 prompts are in this model's chat template already: used as they are"
    assert text(brought(f"<｜begin｜>{ROPE}"), DEEP) == f"<｜begin｜>{ROPE}"
    several = "<｜User｜>a<｜Assistant｜>b<｜end｜><｜User｜>c<｜Assistant｜>"
    assert text(brought(several), DEEP) == f"<｜begin｜>{several}"


def test_a_templated_prompt_of_another_model_is_taken_apart_and_shown_once():
    found = render([brought(ROPE)], CHAT)
    shown = "<|im_start|>user\nA rope of 36 m.\nUse \\boxed{}.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert found.prompts[0].text == shown
    assert found.notes[1] == "1 prompts are in another chat template: shown in this model's, once"
    with_system = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text(brought(with_system), DEEP) == "<｜begin｜>Be brief.<｜User｜>Hi<｜Assistant｜>"
    # thinking is on already: it is not opened twice
    assert text(brought(f"{with_system}<think>\n"), DEEP, chat_template_kwargs={"thinking": True}).count("<think>") == 1


def test_a_templated_prompt_that_cannot_be_used_says_what_can_be_done():
    for given, words in [
        (
            "<｜User｜>a<｜Assistant｜>b<｜User｜>c<｜Assistant｜>",
            "with more than one turn of the user; write it as messages, or",
        ),
        ("<｜User｜>a", r"does not end where the assistant is to speak \(<｜Assistant｜>\); .* templated=ignore"),
        ("[INST] <<SYS>>a<</SYS>> b [/INST]", "another model's chat template"),
    ]:
        with pytest.raises(PromptError, match=f"row 1-x is written in .*{words}"):
            render([brought(given)], CHAT)
    with pytest.raises(PromptError, match=r"row 1-x begins the answer itself, .* set prefill to null"):
        render([brought(ROPE)], CHAT, prefill="So")
    assert text(brought(ROPE), CHAT, chat_template="none") == ROPE  # bare text is what it is


def test_what_a_template_does_to_thinking_and_ends_is_told():
    thought = [said("user", "a"), said("assistant", "<think>long\nwork</think>b"), said("user", "c")]
    found = render([row(*thought), row()], DEEP)
    assert "long" not in found.prompts[0].text
    assert "the chat template leaves the thinking of earlier answers out of 1 prompts" in found.notes
    assert not any("thinking" in note for note in render([row(*thought)], CHAT).notes)
    opened = render([row()], DEEP, chat_template_kwargs={"thinking": True}).notes
    assert "the chat template opens <think> itself: responses begin inside it" in opened
    closing = CHATML.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")
    closed = render([row()], tokenizer_of(closing)).notes
    assert "the chat template closes <think> itself: responses begin after it" in closed
    endless = tokenizer_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ")
    assert not any("no end" in note for note in render([row()], CHAT).notes)
    endless.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert (
        "the chat template puts no end after an answer: earlier turns run into later ones"
        in render([row()], endless).notes
    )


def test_a_system_message_that_the_template_puts_by_itself_is_told():
    default = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Smol.<|im_end|>\n{% endif %}" + CHATML
    note = "the chat template puts a system message of its own: 'You are Smol.'"
    assert note in render([row()], tokenizer_of(default)).notes
    told = row(said("system", "Brief."), said("user", "Hi"))
    assert note not in render([told], tokenizer_of(default)).notes
    for other in (
        CHATML,
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}a{% endfor %}",
    ):
        assert not any("system" in line for line in render([row()], tokenizer_of(other)).notes)


def test_examples_without_a_template_are_texts_with_their_answers_behind_them():
    shots = (said("user", "Q: 1+1\nA:"), said("assistant", "2"), said("user", "Q: 2+2\nA:\n"), said("assistant", "4"))
    one = row(said("system", "Add."), *shots, said("user", "Q: 3+3\nA:"), shots=4)
    assert text(one, CHAT, chat_template="none") == "Add.\n\nQ: 1+1\nA: 2\n\nQ: 2+2\nA:\n4\n\nQ: 3+3\nA:"
    assert text(one, CHAT).count("<|im_start|>assistant\n") == 3
    with pytest.raises(PromptError, match=r"is a conversation \(user, assistant, user\); without a chat template"):
        render([row(*shots[:3])], CHAT, chat_template="none")


def test_short_prompts_are_left_out_and_counted():
    some = [row(said("user", "a" * n)) for n in (1, 5, 9)]
    found = render(some, CHAT, chat_template="none", min_length=5, max_length=8)
    assert [len(prompt.ids) for prompt in found.prompts] == [5]
    assert found.notes[0] == "prompts: 1, 5 tokens on average, 5 at most"
    assert found.notes[1].startswith("1 of 3 prompts left out: over 8 tokens")
    assert found.notes[2] == "1 of 3 prompts left out: under 5 tokens"
    with pytest.raises(PromptError, match=r"no prompt has min_length=10 tokens; the longest has 9"):
        render(some, CHAT, chat_template="none", min_length=10)
