"""DAPO-Math-17k as it lies on the hub, in verl's layout: nested gold answers, repeated rows, and its other form."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import DatasetConfig, load_rows
from partita.tasks.graders.sources import by_data_source
from partita.tasks.order import in_order
from partita.tasks.prompt import render_prompts

ASK = "Solve step by step. The last line must be Answer: $Answer.\n\n"
MISSING = object()


def row(question, gold, index, prompt=MISSING):
    asked = [{"role": "user", "content": ASK + question}] if prompt is MISSING else prompt
    return {
        "data_source": "math_dapo", "prompt": asked, "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"0d5c9f1e-77aa-4b1e-9c55-00000000000{index}"},
    }  # fmt: skip


LISTED = [
    row("What is $5+4^2$?", "21", 1),
    row("What is $5+4^2$?", "21", 1),
    row("How many sides has a nonagon?", "9", 2),
]
STRUCT = row("", "49", 3, {"role": ["user"], "content": [f"{ASK}What is $7^2$?"]})


@pytest.fixture
def load(tmp_path):
    def load(rows, **keys):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
        return load_rows(DatasetConfig(path=str(tmp_path / "train.parquet"), **keys), seed=1)

    return load


def test_messages_and_gold_answers_are_found_without_a_key(load):
    loaded = load(LISTED)
    assert [one.answer for one in loaded.rows] == ["21", "21", "9"]
    assert [one.messages for one in loaded.rows] == [
        tuple(given["prompt"]) for given in LISTED
    ]  # no second instruction
    assert loaded.rows[0].row["data_source"] == "math_dapo"
    assert loaded.rows[0].row["extra_info"]["index"] == "0d5c9f1e-77aa-4b1e-9c55-000000000001"
    assert loaded.functions == (by_data_source,)  # which judges math_dapo as DAPO does
    assert loaded.notes == (
        "prompts from 'prompt', gold answers from 'reward_model.ground_truth'",
        f"{loaded.notes[1].split(':')[0]}: 3 rows, 2 distinct prompts",
    )


def test_a_struct_of_lists_is_the_one_message_it_means(load):
    (found,) = load([STRUCT]).rows
    assert found.messages == ({"role": "user", "content": f"{ASK}What is $7^2$?"},) and found.answer == "49"


def test_equal_rows_are_two_prompts_and_one_where_that_is_wanted(load):
    config = DatasetConfig(path="here", shuffle=False)
    prompts = render_prompts(load(LISTED).rows, byte_tokenizer(), config, context=512).prompts
    source = in_order(prompts, config, 1)
    drawn = [source.next() for _ in range(3)]
    assert drawn[0].ids == drawn[1].ids and len({prompt.uid for prompt in drawn}) == 3  # groups are joined by uid
    assert [one.answer for one in load(LISTED, dedup=True).rows] == ["21", "9"]
