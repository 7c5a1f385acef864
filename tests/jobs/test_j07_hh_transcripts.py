"""hh-rlhf's two transcript columns as preferences: where the prompt ends, and what is none."""

import json

import pytest
from tiny_model import byte_tokenizer

from partita.tasks.files import DataError
from partita.tasks.offline_rows import OfflineDataConfig, load_comparisons
from partita.tasks.turns import turns_of

TILE = (
    "\n\nHuman: My drill slips on tile. My Assistant: a cheap bit. Any tips?\n\nAssistant: Which tile is it?"
    "\n\nHuman: Porcelain.\n\nAssistant:"
)
GOOD, BAD = "Sure, use a diamond bit and go slowly.", "Sure, press harder."
ROWS = [
    {"chosen": f"{TILE} {GOOD}", "rejected": f"{TILE} {BAD}"},
    {
        "chosen": "\n\nHuman: Plan a picnic.\n\nAssistant: Where?\n\nHuman: The lake.\n\nAssistant: Take a boat.",
        "rejected": "\n\nHuman: Plan a picnic.\n\nAssistant: When?\n\nHuman: Noon.\n\nAssistant: Take hats.",
    },
    {"chosen": "\n\nHuman: Name a bird.\n\nAssistant: Wren.", "rejected": "\n\nHuman: Name a bird.\n\nAssistant:"},
    {"chosen": "\n\nHuman: Say hi.\n\nAssistant: Hi.", "rejected": "\n\nHuman: Say hi.\n\nAssistant: Hi."},
]
DAHOAS = {"prompt": TILE, "response": f" {GOOD}", "chosen": f" {GOOD}", "rejected": f" {BAD}"}


@pytest.fixture
def load(tmp_path):
    def load(rows, **keys):
        (tmp_path / "hh.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        made = turns_of(byte_tokenizer(), ())
        return load_comparisons(OfflineDataConfig(path=str(tmp_path / "hh.jsonl"), **keys), made, context=999, seed=1)

    return load


def shown(row, trained):
    ids = [one for one, own in zip(row.ids, row.trained, strict=True) if own == trained]
    return byte_tokenizer().decode(ids)


@pytest.mark.parametrize("row", [ROWS[0], DAHOAS], ids=["two transcripts", "Dahoas"])
def test_the_loss_begins_at_the_answer_and_ends_with_its_end(load, row):
    (pair,) = load([row]).rows
    (chosen,), (rejected,) = pair.chosen_rows, pair.rejected_rows
    prompt = (
        "<|user|>My drill slips on tile. My Assistant: a cheap bit. Any tips?<eos><|assistant|>Which tile is it?<eos>"
        "<|user|>Porcelain.<eos><|assistant|>"
    )
    assert shown(chosen, False) == shown(rejected, False) == prompt
    assert (shown(chosen, True), shown(rejected, True)) == (f"{GOOD}<eos>", f"{BAD}<eos>")


def test_what_is_no_pair_is_reported_and_left_out(load):
    with pytest.raises(DataError, match=r"1 of 2 rows cannot be used.*\n  hh.jsonl row 2: chosen and rejected differ"):
        load(ROWS)
    found = load(ROWS, on_bad_row="skip")
    assert len(found.rows) == 1
    assert {one.first.split(":")[0]: one.reason for one in found.dropped} == {
        "hh.jsonl row 2": "chosen and rejected differ before their last messages: they answer different questions",
        "hh.jsonl row 3": "an empty answer",
        "hh.jsonl row 4": "chosen and rejected are the same",
    }
