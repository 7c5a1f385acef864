import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_model import byte_tokenizer

from partita.tasks.files import DataError
from partita.tasks.offline_rows import (
    Dropped,
    OfflineDataConfig,
    load_comparisons,
    load_conversations,
    load_judgements,
)
from partita.tasks.turns import turns_of

TRANSCRIPTS = [
    ("\n\nHuman: Any tips?\n\nAssistant: Sure, go slowly.", "\n\nHuman: Any tips?\n\nAssistant: Sure, press harder."),
    (
        "\n\nHuman: Plan a picnic.\n\nAssistant: Where?\n\nHuman: The lake.\n\nAssistant: Take a boat.",
        "\n\nHuman: Plan a picnic.\n\nAssistant: When?\n\nHuman: Noon.\n\nAssistant: Take hats.",
    ),
    ("\n\nHuman: Name a bird.\n\nAssistant: Wren.", "\n\nHuman: Name a bird.\n\nAssistant:"),
    ("\n\nHuman: Say hi.\n\nAssistant: Hi.", "\n\nHuman: Say hi.\n\nAssistant: Hi."),
]
PAIRS = [{"chosen": chosen, "rejected": rejected} for chosen, rejected in TRANSCRIPTS]
SEVERAL = [
    {"instruction": "Translate to French.", "input": "cat", "output": "chat"},
    {"conversations": [{"from": "bing", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]},
    {"messages": [{"role": "user", "content": "Anyone there?"}]},
    {"prompt": "2+2?", "completion": "4"},
    {"prompt": "2+2?", "completion": ""},
    {"text": "plain", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"messages": [{"role": "user", "content": "Anyone?"}]},
]


def turns():
    tokenizer = byte_tokenizer()  # one token per byte, pad and end are one
    return turns_of(tokenizer, (tokenizer.eos_token_id,))


@pytest.fixture
def load(tmp_path):
    def load(loader, rows, context=512, **keys):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return loader(OfflineDataConfig(path=str(file), **keys), turns(), context=context, seed=1)

    return load


def shown(row, trained=None):
    return turns().tokenizer.decode(
        [one for one, own in zip(row.ids, row.trained, strict=True) if trained in (None, own)]
    )


def asking(count):
    return [{"prompt": f"What is {i}?", "completion": str(i)} for i in range(count)]


def test_a_row_that_cannot_be_read_stops_with_its_place(load):
    with pytest.raises(DataError) as told:
        load(load_conversations, SEVERAL)
    assert "train_dataset: 2 of 4 rows cannot be used; on_bad_row=skip leaves them out" in str(told.value)
    assert "rows.jsonl row 2: conversations[0] is said by 'bing'; known roles" in str(told.value)
    assert "rows.jsonl row 6: messages and text could all be the conversation" in str(told.value)


def test_what_is_left_out_is_counted_by_its_reason_with_the_first_row_of_each(load):
    found = load(load_conversations, SEVERAL, on_bad_row="skip")
    assert [shown(row, trained=True) for one in found.rows for row in one.rows] == ["chat<eos>", "4<eos>"]
    assert [one.uid.split("-")[0] for one in found.rows] == ["1", "4"]
    reasons = {one.reason: (one.rows, one.first.split(":")[0]) for one in found.dropped}
    assert reasons == {
        "an unknown role 'bing'": (1, "rows.jsonl row 2"),
        "no answer of the assistant to learn from": (3, "rows.jsonl row 3"),
        "two layouts": (1, "rows.jsonl row 6"),
    }
    assert found.notes[0].endswith("rows.jsonl: 2 rows, 40 tokens on average, 51 at most, 3.5 learned")
    assert found.notes[1].startswith("5 of 7 rows left out: 1 an unknown role 'bing' (first: rows.jsonl row 2: ")
    roles = load(load_conversations, SEVERAL, on_bad_row="skip", roles={"bing": "user"}, layout="auto")
    assert len(roles.rows) == 3


def test_pairs_without_anything_to_learn_are_left_out_and_wrong_ones_stop(load):
    with pytest.raises(
        DataError, match=r"1 of 2 rows cannot be used.*\n  rows.jsonl row 2: chosen and rejected differ"
    ):
        load(load_comparisons, PAIRS)
    found = load(load_comparisons, PAIRS, on_bad_row="skip")
    assert [(one.rows, one.first.split(":")[0]) for one in found.dropped] == [
        (1, "rows.jsonl row 2"),
        (1, "rows.jsonl row 3"),
        (1, "rows.jsonl row 4"),
    ]
    (pair,) = found.rows
    (chosen,), (rejected,) = pair.chosen_rows, pair.rejected_rows
    assert shown(chosen) == "<|user|>Any tips?<eos><|assistant|>Sure, go slowly.<eos>"
    assert shown(chosen, trained=True) == "Sure, go slowly.<eos>"
    assert shown(rejected, trained=True) == "Sure, press harder.<eos>"
    assert shown(chosen, trained=False) == shown(rejected, trained=False)


def test_answers_that_the_template_makes_equal_are_the_same(tmp_path):
    template = "{% for m in messages %}{{ m.content | trim }}<eos>{% endfor %}"
    (tmp_path / "own.jinja").write_text(template)
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"prompt": "a", "chosen": "b", "rejected": " b"})
        + "\n"
        + json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
    )
    tokenizer = byte_tokenizer()
    made = turns_of(tokenizer, (), str(tmp_path / "own.jinja"))
    config = OfflineDataConfig(path=str(tmp_path / "rows.jsonl"))
    found = load_comparisons(config, made, context=99, seed=1)
    assert len(found.rows) == 1
    assert found.dropped == (Dropped("chosen and rejected are the same", 1, "rows.jsonl row 1"),)


def test_a_side_that_is_too_long_takes_its_pair_with_it(load):
    rows = [{"prompt": f"q{i}", "chosen": f"good {i}", "rejected": "bad" * (9 if i == 2 else 1)} for i in range(1, 6)]
    rows[3]["margin"] = 2
    found = load(load_comparisons, rows, max_length=45)
    assert len(found.rows) == 4 and found.dropped == (Dropped("over 45 tokens", 1, "rows.jsonl row 2: 52 tokens"),)
    for number, pair in zip((1, 3, 4, 5), found.rows, strict=True):
        assert shown(pair.chosen_rows[0]).endswith(f"q{number}<eos><|assistant|>good {number}<eos>")
        assert shown(pair.rejected_rows[0]).endswith(f"q{number}<eos><|assistant|>bad<eos>")
    assert [pair.margin for pair in found.rows] == [None, None, 2.0, None]
    assert all(type(one) is int for pair in found.rows for one in pair.chosen_rows[0].ids)


def test_the_length_that_counts_is_that_of_the_tokens_and_nothing_is_cut(load):
    rows = [{"prompt": "a", "completion": "b" * size} for size in (1, 2, 3)]
    size = len("<|user|>a<|assistant|>bb") + 2
    for keys in ({"max_length": size}, {"context": size}, {"context": size, "max_length": 99}):
        found = load(load_conversations, rows, **keys)
        assert [len(one.rows[0].ids) for one in found.rows] == [size - 1, size]
        assert found.dropped == (Dropped(f"over {size} tokens", 1, f"rows.jsonl row 3: {size + 1} tokens"),)
    with pytest.raises(
        DataError, match=r"no row to learn from: 3 over 9 tokens \(first: rows.jsonl row 1: 25 tokens\)"
    ):
        load(load_conversations, rows, max_length=9)


def test_judged_answers_are_grouped_by_their_question(load):
    rows = [
        {"prompt": "a", "completion": "b", "label": True},
        {"prompt": "c", "completion": "d", "label": True},
        {"prompt": "a", "completion": "e", "label": False},
    ]
    found = load(load_judgements, rows).rows
    assert [one.good for one in found] == [True, True, False]
    assert found[0].group == found[2].group != found[1].group
    assert shown(found[2].rows[0], trained=True) == "e<eos>"
    with pytest.raises(DataError, match=r"row 4: label is None, not true or false"):
        load(load_judgements, [*rows, {"prompt": "a", "completion": "b"}])


def test_the_same_records_from_every_kind_of_file(tmp_path):
    rows = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "c", "completion": "d", "label": False}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.csv").write_text("prompt,completion,label\na,b,True\nc,d,false\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    places = ["a.jsonl", "b.json", "c.csv", "d.parquet", "folder", "saved"]
    found = [
        load_judgements(OfflineDataConfig(path=str(tmp_path / place)), turns(), context=99, seed=1).rows
        for place in places
    ]
    assert len(found[0]) == 2 and all(rows == found[0] for rows in found)
    with pytest.raises(DataError, match=r"valid_dataset: .*no such file"):
        load_judgements(
            OfflineDataConfig(path=str(tmp_path / "x.jsonl")), turns(), context=9, seed=1, section="valid_dataset"
        )
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"\n')
    with pytest.raises(DataError, match=r"a.jsonl:1: broken JSON"):
        load_judgements(OfflineDataConfig(path=str(tmp_path / "a.jsonl")), turns(), context=9, seed=1)


def test_columns_that_a_file_fills_with_null_are_not_there(tmp_path):
    asked, unlearned = (
        {"role": "user", "content": "a", "weight": None},
        {"role": "assistant", "content": "b", "weight": 0},
    )
    rows = [
        {"messages": [asked, unlearned], "text": None},
        {"messages": [asked, {"role": "assistant", "content": "b"}]},
        {"text": "c", "messages": None},
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    found = load_conversations(OfflineDataConfig(path=str(tmp_path / "saved")), turns(), context=99, seed=1)
    assert [shown(one.rows[0]) for one in found.rows] == ["<|user|>a<eos><|assistant|>b<eos>", "c<eos>"]
    assert found.dropped == (
        Dropped("no answer of the assistant to learn from", 1, f"{tmp_path / 'saved'} [train] row 1"),
    )


def test_a_task_is_learned_from_its_answers():
    columns = {"prompt": "question", "completion": "answer"}
    config = OfflineDataConfig(path="addition", columns=columns, size=20, system="Add.")
    found = load_conversations(config, turns(), context=512, seed=3)
    assert len(found.rows) == 20
    assert shown(found.rows[0].rows[0]).startswith("<|system|>Add.<eos><|user|>What is ")
    assert found.rows != load_conversations(config, turns(), context=512, seed=4).rows


def test_equal_rows_are_two_unless_they_are_to_be_merged(load):
    rows = [*asking(2), *asking(1)]
    assert len({one.uid for one in load(load_conversations, rows).rows}) == 3
    found = load(load_conversations, rows, dedup=True)
    assert len(found.rows) == 2 and found.dropped == (Dropped("equal to a row before", 1, "rows.jsonl row 3"),)
    assert load(load_conversations, rows) == load(load_conversations, rows)


def test_size_takes_the_first_rows_that_can_be_used(load):
    rows = [{"prompt": "a", "completion": ""}, *asking(3)]
    assert [one.uid[0] for one in load(load_conversations, rows, size=2).rows] == ["2", "3"]
    with pytest.raises(DataError, match=r"size=4: .* has only 3 usable rows"):
        load(load_conversations, rows, size=4)
    with pytest.raises(DataError, match="no rows"):
        load(load_conversations, [])


def test_the_same_rows_are_held_out_whatever_else_is_there(load):
    few, many = (load(load_conversations, asking(count), held_out=0.25) for count in (60, 400))
    assert 70 <= len(many.held_out) <= 130 and len(many.rows) + len(many.held_out) == 400
    held = {one.uid for one in few.held_out}
    assert held and held == {one.uid for one in many.held_out if int(one.uid.split("-")[0]) <= 60}
    assert any(f"{len(many.held_out)} of 400 rows held out" in note for note in many.notes)
    assert {one.question for one in many.rows}.isdisjoint(one.question for one in many.held_out)


def test_rows_with_one_question_are_held_out_together(load):
    rows = [{**row, "chosen": f"{i}", "rejected": "no"} for row in asking(40) for i in range(3)]
    found = load(load_comparisons, rows, held_out=0.3)
    assert len(found.held_out) % 3 == 0
    assert {one.question for one in found.rows}.isdisjoint(one.question for one in found.held_out)
    with pytest.raises(DataError, match=r"held_out=0.5 holds out (all|none) of 3 rows; change it"):
        load(load_comparisons, rows[:3], held_out=0.5)


def test_a_template_that_changes_earlier_turns_is_told(tmp_path):
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content if loop.last else m.content[-1] }}<eos>{% endfor %}"
    template += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    (tmp_path / "own.jinja").write_text(template)
    roles = ["user", "assistant", "user", "assistant"]
    messages = [{"role": role, "content": content} for role, content in zip(roles, ["a", "xb", "c", "d"], strict=True)]
    (tmp_path / "rows.json").write_text(json.dumps([{"messages": messages}]))
    made = turns_of(byte_tokenizer(), (), str(tmp_path / "own.jinja"))
    found = load_conversations(OfflineDataConfig(path=str(tmp_path / "rows.json")), made, context=99, seed=1)
    assert [shown(row, trained=True) for row in found.rows[0].rows] == ["xb<eos>", "d<eos>"]
    assert any(note.startswith("1 rows in several parts: the chat template shows") for note in found.notes)


def test_an_answer_that_ends_in_its_middle_is_a_bad_row(load):
    rows = [*asking(1), {"prompt": "a", "completion": "b<eos>c"}]
    with pytest.raises(DataError, match=r"row 2: an answer goes on after '<eos>'"):
        load(load_conversations, rows)
    assert [one.reason for one in load(load_conversations, rows, on_bad_row="skip").dropped] == ["unusable"]


def test_keys_that_name_nothing_are_refused():
    with pytest.raises(ValueError, match="columns: propmt is not read; known are messages"):
        OfflineDataConfig(columns={"propmt": "question"})
    with pytest.raises(ValueError, match="roles: bot: gpt: a role must be one of assistant, system, tool, user"):
        OfflineDataConfig(roles={"bot": "gpt"})
