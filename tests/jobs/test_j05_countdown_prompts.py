"""Countdown: a question made out of columns, and a prefilled `<think>` that is part of the prompt."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import ColumnsConfig, DatasetConfig, load_rows
from partita.tasks.prompt import render_prompts

ROWS = [
    {"target": 33, "nums": [3, 7, 12]},
    {"target": 12, "nums": [20, 4, 2, 6]},
    {"target": 24, "nums": [5, 5, 5, 1]},
]
PREFILL = "Let me see.\n<think>"
ASK = "Using the numbers {nums}, make an equation that equals {target}. Answer in <answer> </answer> tags."


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_prompt_ends_in_the_opened_thinking(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    config = DatasetConfig(path=str(file), template=ASK, prefill=PREFILL, columns=ColumnsConfig(answer=None))
    loaded, tokenizer = load_rows(config, seed=1), byte_tokenizer()
    prompts = render_prompts(loaded.rows, tokenizer, config, context=512).prompts
    asked = "Using the numbers [3, 7, 12], make an equation that equals 33. Answer in <answer> </answer> tags."
    assert prompts[0].text == f"<|user|>{asked}<eos><|assistant|>{PREFILL}"
    assert list(prompts[0].ids) == tokenizer(prompts[0].text, add_special_tokens=False)["input_ids"]
    for prompt, row in zip(prompts, ROWS, strict=True):
        # what a reward gets by the names of the columns: plain ints, in a list
        assert prompt.row == row and all(type(number) is int for number in prompt.row["nums"])
        assert prompt.answer is None and prompt.text.endswith(PREFILL)
