"""SFT rows as OpenAI messages, Alpaca and ShareGPT in one file: exactly the right turns are learned, the rest is reported."""

import json

import pytest
from tiny_model import byte_tokenizer

from partita.tasks.files import DataError
from partita.tasks.offline_rows import OfflineDataConfig, load_conversations
from partita.tasks.turns import turns_of


def said(role, content, **more):
    return {"role": role, "content": content, **more}


ROWS = [
    {
        "messages": [
            said("system", "One word."), said("user", "Colour of grass?"), said("assistant", "Blue.", weight=0),
            said("user", "Sure?"), said("assistant", "Green.", weight=1),
        ]
    },
    {"instruction": "Translate to French.", "input": "cat", "output": "chat"},
    {"instruction": "Say hi.", "input": "", "output": "Hi!"},
    {
        "conversations": [
            {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"},
            {"from": "human", "value": "And doubled?"}, {"from": "gpt", "value": "8"},
        ],
        "system": "Be brief.",
    },
    {"conversations": [{"from": "bing", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]},
    {"messages": [said("user", "Anyone there?")]},
    {"text": "plain text", "messages": [said("user", "a"), said("assistant", "b")]},
]  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer():
    made = byte_tokenizer()
    made.chat_template = CHATML  # no generation markers
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return made


@pytest.fixture
def load(tmp_path, tokenizer):
    def load(rows, **keys):
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        made = turns_of(tokenizer, (tokenizer.convert_tokens_to_ids("<|im_end|>"),))
        return load_conversations(
            OfflineDataConfig(path=str(tmp_path / "rows.jsonl"), **keys), made, context=999, seed=1
        )

    return load


def test_exactly_the_right_turns_are_learned_each_with_its_end(load, tokenizer):
    found = load(ROWS[:4]).rows
    learned = []
    for one in found:
        (row,) = one.rows
        learned.append(tokenizer.decode([i for i, own in zip(row.ids, row.trained, strict=True) if own]))
    assert learned == ["Green.<|im_end|>", "chat<|im_end|>", "Hi!<|im_end|>", "4<|im_end|>8<|im_end|>"]


def test_the_tokens_are_those_of_the_rendered_conversation(load, tokenizer):
    found = load(ROWS[:4]).rows
    told = [
        ROWS[0]["messages"],
        [said("user", "Translate to French.\ncat"), said("assistant", "chat")],
        [said("user", "Say hi."), said("assistant", "Hi!")],
        [said("system", "Be brief."), said("user", "2+2?"), said("assistant", "4"), said("user", "And doubled?"),
         said("assistant", "8")],
    ]  # fmt: skip
    for one, messages in zip(found, told, strict=True):
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        end = max(at for at, i in enumerate(whole) if i == tokenizer.convert_tokens_to_ids("<|im_end|>"))
        assert one.rows[0].ids == whole[: end + 1]  # no token lost or doubled where turns meet


def test_what_cannot_be_read_stops_and_what_has_nothing_to_learn_is_reported(load):
    with pytest.raises(DataError) as told:
        load(ROWS)
    assert "rows.jsonl row 5: conversations[0] is said by 'bing'; known roles: assistant, chatgpt" in str(told.value)
    assert "rows.jsonl row 7: messages and text could all be the conversation; set layout to one of" in str(told.value)
    found = load(ROWS[:6], roles={"bing": "user"})
    assert len(found.rows) == 5
    assert [(one.reason, one.first) for one in found.dropped] == [
        ("no answer of the assistant to learn from", "rows.jsonl row 6")
    ]
