"""Which questions are held out."""

import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import DataError
from partita.tasks.offline_rows import OfflineDataConfig, load_conversations
from partita.tasks.turns import turns_of


def test_the_same_questions_are_held_out_whatever_is_around_them(load):
    rows = [{"prompt": f"What is {i}?", "answer": str(i)} for i in range(400)]

    def sides(some, **keys):
        return [{row.answer for row in load(some, held_out=0.25, side=side, **keys).rows} for side in (False, True)]

    train, held = sides(rows)
    assert not train & held and len(train | held) == 400 and 70 <= len(held) <= 130
    assert sides(rows[:60])[1] == {answer for answer in held if int(answer) < 60}
    assert sides(rows, system="Be brief.", instruction="Think.")[1] == held
    assert any(
        note == f"{len(held)} of 400 rows held out, by their questions" for note in load(rows, held_out=0.25).notes
    )
    twice = [*rows[:40], *({**row, "answer": "x"} for row in rows[:40])]
    assert len(load(twice, held_out=0.25, side=True).rows) % 2 == 0
    with pytest.raises(DataError, match=r"train_dataset: held_out=0.5 holds out (all|none) of 1 rows; change it"):
        load(rows[:1], held_out=0.5)


def test_prompts_and_rows_to_learn_from_hold_out_the_same_questions(load, tmp_path):
    rows = [{"prompt": f"What is {i}?", "answer": str(i), "completion": str(i)} for i in range(60)]
    held = {row.answer for row in load(rows, held_out=0.25, side=True).rows}
    tokenizer = byte_tokenizer()
    config = OfflineDataConfig(path=str(tmp_path / "rows.jsonl"), held_out=0.25)
    made = load_conversations(config, turns_of(tokenizer, ()), context=512, seed=1).held_out
    assert {str(int(one.uid.split("-")[0]) - 1) for one in made} == held
