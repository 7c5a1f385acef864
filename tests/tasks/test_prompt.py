import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import PromptError, render_prompts
from partita.tasks.settings import DatasetConfig

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|end|>", "<|assistant|>"]
WORDS = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz \n"]
TURNS = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|user|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_BOS = "<s>" + TURNS


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """One token per letter; adds a BOS of its own to any text that is tokenised the usual way."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("[a-z \n]"), "isolated")
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = template
    made.name_or_path = "some/base-model"
    return made


def row(text="ab", uid="1-x", **more):
    return TaskRow(uid, ({"role": "user", "content": text},), "7", {"question": text, **more})


def render(rows, template=WITH_BOS, context=100, reserve=1, **keys):
    return render_prompts(rows, tokenizer(template), DatasetConfig(**keys), context=context, reserve=reserve)


USER, END, ASSISTANT, A, B = 3, 4, 5, 6, 7


def test_ids_are_exactly_what_the_template_says():
    (prompt,) = render([row("ab", level=3)]).prompts
    assert prompt.ids == (1, USER, A, B, END, ASSISTANT)  # the tokenizer's own BOS is not added to the template's
    assert prompt.text.replace(" ", "") == "<s><|user|>ab<|end|><|assistant|>"
    assert prompt.row == {"question": "ab", "level": 3} and prompt.answer == "7" and prompt.uid == "1-x"
    assert prompt.messages == ({"role": "user", "content": "ab"},)
    (prompt,) = render([row("ab")], TURNS).prompts
    assert prompt.ids == (USER, A, B, END, ASSISTANT)


def test_special_tokens_that_a_user_typed_stay_as_the_template_gives_them():
    (prompt,) = render([row("a<|end|>b")]).prompts
    assert prompt.ids == (1, USER, A, END, B, END, ASSISTANT)


def test_an_empty_user_message_renders():
    assert render([row("")]).prompts[0].ids == (1, USER, END, ASSISTANT)


def test_many_rows_keep_their_order():
    prompts = render([row("a" * (i % 7), uid=str(i)) for i in range(600)]).prompts
    assert [prompt.uid for prompt in prompts] == [str(i) for i in range(600)]
    assert all(len(prompt.ids) == 4 + i % 7 for i, prompt in enumerate(prompts))


def test_two_bos_are_an_error():
    with pytest.raises(PromptError, match=r"row 1-x starts with two '<s>'"):
        render([row()], "<s>" + WITH_BOS)


def test_the_length_that_counts_is_the_rendered_one():
    rows = [row("a" * 7, uid="long"), row("a", uid="short")]  # 7 letters and 4 tokens of the template
    assert len(render(rows, max_length=11).prompts) == 2
    found = render(rows, max_length=10)
    assert [prompt.uid for prompt in found.prompts] == ["short"]
    assert any("1 of 2 prompts left out: over 10 tokens" in note and "longest has 11" in note for note in found.notes)
    with pytest.raises(
        PromptError, match="train_dataset: 1 of 2 prompts are too long; row long has 11 tokens, at most 10"
    ):
        render(rows, max_length=10, too_long="error")
    with pytest.raises(PromptError, match="2 of 2 prompts are too long"):
        render(rows, max_length=2)


def test_a_prompt_must_leave_room_for_the_response():
    rows = [row("a" * 7, uid="long"), row("a", uid="short")]
    assert len(render(rows, context=16, reserve=5).prompts) == 2
    assert [prompt.uid for prompt in render(rows, context=15, reserve=5).prompts] == ["short"]
    with pytest.raises(PromptError, match="context 15 with 5 reserved for the response"):
        render(rows, context=15, reserve=5, too_long="error")


def test_a_model_without_template_is_named_and_bare_text_is_offered():
    with pytest.raises(PromptError, match=r"'some/base-model' has no chat template; set chat_template .* or to none"):
        render([row()], None)
    assert render([row("ab")], None, chat_template="none").prompts[0].ids == (1, A, B)
    system = TaskRow("1", ({"role": "system", "content": "a"}, {"role": "user", "content": "b"}), None, {})
    assert render([system], None, chat_template="none").prompts[0].ids == (
        1,
        A,
        WORDS.index("\n"),
        WORDS.index("\n"),
        B,
    )
    with pytest.raises(PromptError, match=r"is a conversation \(user, user\)"):
        render([TaskRow("1", (*row().messages, *row().messages), None, {})], None, chat_template="none")
    with pytest.raises(PromptError, match="starts with two '<s>'"):
        render([row("<s>a")], None, chat_template="none")


def test_a_template_of_your_own_replaces_the_models(tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("<|user|>{{ messages[0]['content'] }}{{ ending }}")
    found = render([row("a")], chat_template=str(file), chat_template_kwargs={"ending": "b"})
    assert found.prompts[0].ids == (USER, A, B)
    with pytest.raises(PromptError, match="no such file; expected auto, none or the path"):
        render([row("a")], chat_template="missing.jinja")


def test_a_row_that_the_template_refuses_is_named():
    tool = TaskRow("2-y", (*row().messages, {"role": "tool", "content": "a"}), None, {})
    with pytest.raises(PromptError, match="row 2-y: the chat template refuses it: no tools here"):
        render([row(), tool, row(uid="3")])
