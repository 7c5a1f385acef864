import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from partita.models.load import find_stop_ids, load_tokenizer
from partita.tasks.conversations import Conversation, NothingToLearn, RowReader
from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import PromptError, carrying, render_prompts
from partita.tasks.settings import DatasetConfig
from partita.tasks.turns import NEVER, Turns, turns_of

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABHIQU0123456789 .,:?!#+▁", "\n"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_BOS = (
    "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LINES = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ 'U: ' if m.role == 'user' else 'A: ' }}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
NO_THOUGHTS = (  # shows the thinking of the last message only
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKS = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>{% endif")
CLOSES = CHATML + "{% if not add_generation_prompt %}</s>{% endif %}"
TEMPLATES = {"chatml": CHATML, "bos": WITH_BOS, "no end": NO_END, "no thoughts": NO_THOUGHTS, "closes": CLOSES}


def tokenizer(template=None, pad="</s>", end="</s>", bos="<s>", metaspace=None):
    """One token per letter; adds a BOS of its own where it has one."""
    words = [*SPECIAL, *LETTERS]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="#"))
    letters = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    space = pre_tokenizers.Metaspace(prepend_scheme=metaspace or "never", split=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([space, letters]) if metaspace else letters
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIAL)
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, pad_token=pad, bos_token=bos)
    made.chat_template = template
    made.name_or_path = "some/base-model"
    return made


def merging():
    """Merges a blank and a number sign; no BOS and no special token but its end."""
    vocabulary = {word: i for i, word in enumerate([*"code: 12#", " #", "</s>"])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[(" ", "#")]))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="</s>")


def turns(template=CHATML, **keys) -> Turns:
    made = tokenizer(template, **keys)
    return turns_of(made, find_stop_ids(made, ()))


def talk(*contents, learned=None):
    """A conversation of the user and the assistant, in turns; learned: which of its messages are."""
    messages = tuple({"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents))
    return Conversation(messages, tuple(at in learned if learned else at % 2 == 1 for at in range(len(contents))))


def text(turns, ids):
    return turns.tokenizer.decode(ids)


def answers(row):
    """For each run of trained ids those before it and itself."""
    starts = [at for at in range(1, len(row.ids)) if row.trained[at] and not row.trained[at - 1]]
    ends = [next((at for at in range(s, len(row.ids)) if not row.trained[at]), len(row.ids)) for s in starts]
    return [(row.ids[:start], row.ids[start:end]) for start, end in zip(starts, ends, strict=True)]


def sampled_from(turns, messages, **keys):
    """The ids of a prompt as it is rendered for sampling."""
    row = TaskRow("1", tuple(messages), None, {})
    return list(render_prompts([row], turns.tokenizer, DatasetConfig(**keys), context=10**6).prompts[0].ids)


def test_an_answer_is_trained_with_its_end_and_nothing_else():
    (row,) = turns().rows(talk("1+1?", "2", "and 3?", "6"))
    told = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
    told += "<|im_start|>user\nand 3?<|im_end|>\n<|im_start|>assistant\n6<|im_end|>"
    assert text(turns(), row.ids) == told
    assert [text(turns(), own) for _, own in answers(row)] == ["2<|im_end|>", "6<|im_end|>"]
    assert row.versions == [NEVER] * len(row.ids) and row.behaviour_logprobs == [0.0] * len(row.ids)


def test_answers_that_are_not_learned_are_context_and_what_follows_the_last_is_left_out():
    (row,) = turns().rows(talk("a", "b", "c", "d", "e", learned={3}))
    ((before, own),) = answers(row)
    assert text(turns(), own) == "d<|im_end|>" and "b<|im_end|>" in text(turns(), before)
    assert len(row.ids) == len(before) + len(own)


CONVERSATIONS = [
    talk("1+1?", "2"),
    talk("a", "\n\n b ", "c", " d"),
    talk("", "b", "", "<think>so</think>c", "d", "e"),
    talk("a", "<think>b</think>c", "d", "<think>e</think>f", "g", "h", learned={1, 5}),
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_answer_follows_the_ids_that_the_policy_is_asked_with(name, conversation):
    made = turns(TEMPLATES[name])
    found = [piece for row in made.rows(conversation) for piece in answers(row)]
    learned = [at for at, one in enumerate(conversation.learned) if one]
    assert len(found) == len(learned)
    for at, (before, own) in zip(learned, found, strict=True):
        assert before == sampled_from(made, conversation.messages[:at])
        assert own[-1] in made.stop_ids and not set(own[:-1]) & set(made.stop_ids)
        assert text(made, own[:-1]).strip() == conversation.messages[at]["content"].strip()


@pytest.mark.parametrize("metaspace", ["always", "first", "never"])
@pytest.mark.parametrize("template", [LINES, NO_END])
def test_every_answer_follows_those_ids_with_tokenizers_that_put_blanks_before_texts(metaspace, template):
    made = turns(template, metaspace=metaspace)
    conversation = talk("a", "b c", "d", " e", "", "f")
    found = [piece for row in made.rows(conversation) for piece in answers(row)]
    assert [before for before, _ in found] == [sampled_from(made, conversation.messages[:at]) for at in (1, 3, 5)]
    whole = made.tokenizer.apply_chat_template(list(conversation.messages), tokenize=True, return_dict=False)
    last = made.rows(conversation)[-1]
    assert whole[: len(last.ids)] == last.ids or template == NO_END


@pytest.mark.slow
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_answer_follows_the_ids_that_the_embedded_model_is_asked_with(conversation):
    tokenizer = load_tokenizer("smollm2-135m")
    made = turns_of(tokenizer, find_stop_ids(tokenizer, ()))
    found = [piece for row in made.rows(conversation) for piece in answers(row)]
    learned = [at for at, one in enumerate(conversation.learned) if one]
    for at, (before, own) in zip(learned, found, strict=True):
        assert before == sampled_from(made, conversation.messages[:at])
        assert text(made, own) == conversation.messages[at]["content"] + "<|im_end|>"
    whole = tokenizer.apply_chat_template(list(conversation.messages), tokenize=True, return_dict=False)
    if len(made.rows(conversation)) == 1 and conversation.learned[-1]:
        (row,) = made.rows(conversation)
        assert [*row.ids, *tokenizer("\n")["input_ids"]] == whole  # the template's line break is nobody's to write


@pytest.mark.slow
def test_the_embedded_model_gets_one_row_for_a_conversation():
    tokenizer = load_tokenizer("smollm2-135m")
    made = turns_of(tokenizer, find_stop_ids(tokenizer, ()))
    (row,) = made.rows(talk("2+2?", "4", "And doubled?", "8"))
    assert [text(made, own) for _, own in answers(row)] == ["4<|im_end|>", "8<|im_end|>"]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == row.ids[-1] and row.trained[-1]


def test_a_template_that_strips_earlier_thinking_gives_separate_rows():
    made = turns(NO_THOUGHTS)
    conversation = talk("a", "<think>b</think>c", "d", "<think>e</think>f")
    first, second = made.rows(conversation)
    assert text(made, first.ids).endswith("assistant\n<think>b</think>c<|im_end|>")
    assert "<think>b" not in text(made, second.ids)
    assert [text(made, own) for _, own in answers(second)] == ["<think>e</think>f<|im_end|>"]
    assert made.scored(conversation) == second
    assert len(turns().rows(conversation)) == 1


def test_a_template_without_an_end_gets_the_tokenizers():
    made = turns(NO_END)
    first, second = made.rows(talk("a", "b", "c", "d"))
    assert text(made, first.ids) == "U: a\nA: b</s>" and text(made, second.ids) == "U: a\nA: b\nU: c\nA: d</s>"


def test_an_end_and_a_second_one_are_one():
    (row,) = turns(CLOSES).rows(talk("a", "b"))
    assert text(turns(), row.ids).endswith("b<|im_end|>")


def test_pad_and_end_may_be_the_same_id():
    same, other = (turns(WITH_BOS, pad=pad).rows(talk("a", "b", "c", "d")) for pad in ("</s>", "#"))
    assert same == other
    assert [own[-1] for _, own in answers(same[0])] == [1, 1]


def test_a_row_starts_with_one_bos():
    (row,) = turns(WITH_BOS).rows(talk("a", "b"))
    assert row.ids.count(0) == 1 and row.ids[0] == 0
    assert turns(WITH_BOS).scored(talk("a", "b")) == row  # what a reward model reads
    with pytest.raises(PromptError, match="starts with two '<s>'"):
        turns("<s>" + WITH_BOS).rows(talk("a", "b"))
    assert turns(bos=None).rows(talk("a", "b"))[0].ids == turns().rows(talk("a", "b"))[0].ids


def test_an_answer_is_tokenised_where_it_stands():
    """A tokenizer that puts a blank before every text puts none before an answer."""
    made = turns(LINES, metaspace="always")
    (row,) = made.rows(talk("a", "bc"))
    assert made.tokenizer.convert_ids_to_tokens(row.ids) == [
        "<|user|>", "▁", "\n", "a", "</s>", "<|assistant|>", "▁", "\n", "b", "c", "</s>",
    ]  # fmt: skip


def test_a_merge_over_the_border_leaves_the_prompt_as_it_is():
    made = turns_of(merging(), (), "none")
    pair = RowReader().comparison({"prompt": "code: ", "chosen": "12", "rejected": "#12"})
    (chosen,), (rejected,) = made.rows(pair.chosen), made.rows(pair.rejected)
    assert made.tokenizer("code: #12")["input_ids"][5] == made.tokenizer.convert_tokens_to_ids(" #")  # it would merge
    assert chosen.ids[:6] == rejected.ids[:6] == [0, 1, 2, 3, 4, 5]
    assert chosen.trained == [False] * 6 + [True] * 3 and rejected.trained == [False] * 6 + [True] * 4
    assert text(made, chosen.ids) == "code: 12</s>" and text(made, rejected.ids) == "code: #12</s>"
    assert all(type(one) is int for one in [*chosen.ids, *rejected.ids])  # a tokenizer without BOS brings no None


@pytest.mark.parametrize("name", TEMPLATES)
def test_both_sides_of_a_pair_share_the_prompts_ids(name):
    made = turns(TEMPLATES[name])
    pair = RowReader().comparison({"prompt": "how?", "chosen": "so, a", "rejected": "so, b"})
    (chosen,), (rejected,) = made.rows(pair.chosen), made.rows(pair.rejected)
    start = chosen.trained.index(True)
    assert rejected.trained.index(True) == start  # "so, " is an answer, though both sides have it
    assert chosen.ids[:start] == rejected.ids[:start] == sampled_from(made, pair.chosen.messages[:1])


def test_without_a_template_texts_follow_each_other_as_in_sampling():
    made = turns_of(tokenizer(), (), "none")
    conversation = talk("ab ", "c")
    (row,) = made.rows(conversation)
    assert text(made, row.ids) == "<s>ab c</s>" and row.trained == [False] * 4 + [True, True]
    assert row.ids[:4] == sampled_from(made, conversation.messages[:1], chat_template="none")
    system = ({"role": "system", "content": "s"}, *conversation.messages)
    (row,) = made.rows(Conversation(system, (False, False, True)))
    assert text(made, row.ids) == "<s>s\n\nab c</s>"
    assert row.ids[:7] == sampled_from(made, system[:2], chat_template="none")
    with pytest.raises(PromptError, match=r"is a conversation \(user, assistant, user\); without a chat template"):
        made.rows(talk("a", "b", "c", "d"))


def test_a_bare_text_is_learned_but_for_its_first_token():
    bare = Conversation(({"role": "assistant", "content": "abc"},), (True,), bare=True)
    with_bos, without = turns(), turns(bos=None)
    (row,) = with_bos.rows(bare)
    assert text(with_bos, row.ids) == "<s>abc</s>" and row.trained == [False, True, True, True, True]
    (row,) = without.rows(bare)
    assert text(without, row.ids) == "abc</s>" and row.trained == [False, True, True, True]
    ended = Conversation(({"role": "assistant", "content": "abc</s>"},), (True,), bare=True)
    assert without.rows(ended) == (row,)
    end_alone = Conversation(({"role": "assistant", "content": "</s>"},), (True,), bare=True)
    with pytest.raises(NothingToLearn, match="a text that is its end and nothing else"):
        without.rows(end_alone)


def test_a_conversation_is_scored_at_the_end_of_its_last_answer():
    made = turns(NO_THOUGHTS)
    row = made.scored(talk("a", "<think>b</think>c", "d", "e"))
    assert row.ids[-1] in made.stop_ids and row.trained[-1]
    assert row == made.rows(talk("a", "<think>b</think>c", "d", "e", learned={3}))[0]
    with pytest.raises(NothingToLearn):
        made.scored(talk("a", "b", "c"))


def test_what_a_template_cannot_show_is_said():
    with pytest.raises(PromptError, match=r"does not show message 2 after its generation prompt .*<think>'"):
        turns(THINKS).rows(talk("a", "b"))
    assert len(turns(THINKS).rows(talk("a", "<think>b"))) == 1
    with pytest.raises(PromptError, match=r"an answer goes on after '<\|im_end\|>', which ends an answer"):
        turns().rows(talk("a", "b<|im_end|>c"))
    call = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]})
    for template in (CHATML, NO_END.replace("A: ", "A:")):
        with pytest.raises(PromptError, match="shows nothing of an answer; tool calls need one"):
            turns(template).rows(Conversation(call, (False, True)))
    with pytest.raises(PromptError, match="the chat template refuses it: no tools"):
        turns("{{ raise_exception('no tools') }}").rows(talk("a", "b"))


def test_what_nobody_could_end_or_show_stops_at_once(tmp_path):
    with pytest.raises(PromptError, match="'some/base-model' has no chat template; set chat_template"):
        turns(None)
    with pytest.raises(
        PromptError, match="neither the model nor the tokenizer 'some/base-model' has an end-of-sequence"
    ):
        turns_of(tokenizer(CHATML, end=None), ())
    assert turns_of(tokenizer(CHATML, end=None), (5,)).end_id == 5
    file = tmp_path / "own.jinja"
    file.write_text(
        "{{ greeting }}{{ messages[0].content }}{% if not add_generation_prompt %}{{ messages[1].content }}{% endif %}"
    )
    made = turns_of(tokenizer(CHATML), (), str(file), {"greeting": "hi "})
    assert text(made, made.rows(talk("a", "b"))[0].ids) == "hi ab</s>"


SWITCH = CHATML.replace("{{ m.content }}", "{{ m.content }}{% if mark %}+{{ mark }}{% endif %}")


@pytest.mark.parametrize(
    ("chat_template", "options", "bos"),
    [
        ("none", {}, "<s>"),
        ("none", {}, None),
        ("file", {}, "<s>"),
        ("auto", {"mark": "1"}, "<s>"),
        ("file", {"mark": "2"}, None),
    ],
)
@pytest.mark.parametrize("roles", [("user",), ("system", "user")])
def test_a_saved_tokenizer_shows_conversations_as_training_did(tmp_path, chat_template, options, bos, roles) -> None:
    of_run = tokenizer(CHATML.replace("im_start", "user") if chat_template != "auto" else SWITCH, bos=bos)
    if chat_template == "file":
        chat_template = str(tmp_path / "own.jinja")
        (tmp_path / "own.jinja").write_text(SWITCH)
    saved = tmp_path / "saved"
    carrying(of_run, chat_template, options).save_pretrained(saved)
    loaded = load_tokenizer(str(saved))
    said = tuple({"role": role, "content": "hi" * (2 + at)} for at, role in enumerate(roles))
    row = TaskRow("0", said, None, {})
    asked = [
        render_prompts([row], one, DatasetConfig(**given), context=99).prompts[0].ids
        for one, given in (
            (of_run, {"chat_template": chat_template, "chat_template_kwargs": options}), (loaded, {}),
        )
    ]  # fmt: skip
    assert asked[0] == asked[1]
    told = Conversation((*said, {"role": "assistant", "content": "answer 1"}), (*[False] * len(said), True))
    (trained,) = turns_of(of_run, [1], chat_template, options).rows(told)
    (again,) = turns_of(loaded, [1]).rows(told)
    assert trained.ids == again.ids and trained.trained == again.trained
    assert of_run.chat_template != loaded.chat_template  # the run's own is left as it was


def test_a_saved_value_of_a_template_gives_way_to_another() -> None:
    said = [{"role": "user", "content": "hi"}]
    saved = carrying(tokenizer(SWITCH), "auto", {"mark": "1", "deep": {"on": [True, None]}})
    assert "hi+1" in saved.apply_chat_template(said, tokenize=False)
    assert "hi+2" in saved.apply_chat_template(said, tokenize=False, mark="2")
