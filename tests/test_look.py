"""`partita data`: what a run would see, told without loading a model."""

import json

import pytest
from running import call

from partita.tasks.settings import BOXED_INSTRUCTION

GOLD = "One box holds 24.\n#### 1,080"
ROWS = [
    {"question": "24 times 45?", "answer": GOLD},
    {"question": "Half of 5?", "answer": "#### 2.5"},
    {"question": "What?", "answer": "no mark"},
]


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return file


@pytest.fixture
def look(model_folder):
    def look(*words):
        ended = call("data", *words, "--model", model_folder)
        assert ended.code == 0, ended.err
        return ended.out

    return look


@pytest.mark.slow
def test_rows_prompts_ids_gold_answers_and_rewards_are_shown(look, rows, model_folder):
    out = look(rows, "train_dataset.on_bad_row=skip", "--rows", 1)
    assert "prompts from 'question', gold answers from 'answer' after the last ####" in out
    assert "1 of 3 rows left out (on_bad_row=skip); the first: rows.jsonl row 3: 'answer' has no '#### answer'" in out
    # a token a byte, and one for the end
    short, long = (len(f"<|user|>{row['question']}\n{BOXED_INSTRUCTION}<|assistant|>") + 1 for row in ROWS[1::-1])
    assert f"tokens of a prompt: shortest {short}, 10 % {short}, half {short}, 90 % {long}, longest {long}" in out
    assert "  | <|user|>24 times 45?\n  | Please reason step by step" in out and "  | <eos>" not in out
    assert out.count("  ids: ") == 1 and "gold answer: 1080" in out
    shown = out.split("gold answer: 1080\n")[1]
    assert shown.startswith(
        "  reward of the gold answer: 1\n  reward of in \\boxed{}: 1\n  reward of its worked solution: 1\n  reward of nothing: 0\n"
    )
    assert "reward of the gold answer: mean 1.000 over 2 prompts" in out
    assert "reward of nothing: mean 0.000 over 2 prompts" in out
    assert list(model_folder.parent.glob("runs")) == []


@pytest.mark.slow
def test_the_ids_are_the_prompts_own(look, rows):
    out = look(rows, "train_dataset.on_bad_row=skip", "train_dataset.instruction=null", "--rows", 1, "--score", 0)
    [line] = [line for line in out.splitlines() if line.startswith("  ids: ")]
    ids = [int(one) for one in line.split(": ")[1].split()]
    assert len(ids) == len("<|user|>24 times 45?") + 1 + len("<|assistant|>")


@pytest.mark.slow
def test_a_reward_that_is_blind_to_the_gold_answer_is_pointed_out(look, rows, tmp_path):
    file = tmp_path / "blind.py"
    file.write_text("def blind(response):\n    return 0.5\n\n\ndef broken(response):\n    return 1 / 0\n")
    keys = [rows, "train_dataset.on_bad_row=skip", "--rows", 1]
    out = look(*keys, f"reward.functions=[{file}:blind]")
    assert "in no way of writing it does the gold answer get more than nothing: 1-" in out
    out = look(*keys, f"reward.functions=[{file}:broken]")
    assert "reward of nothing: reward_error, broken: ZeroDivisionError" in out
    assert "reward of nothing: mean none over 0 prompts, 2 without a reward" in out


@pytest.mark.slow
def test_a_config_a_task_and_held_out_rows_can_be_looked_at(look, tmp_path):
    assert "columns question, answer" in look("largest", "--rows", 1, "--score", 1)
    out = look("largest", "--held-out", "--rows", 0, "--score", 1)
    assert "[test]" not in out and "reward of nothing: mean 0.000 over 1 prompts" in out
    config = tmp_path / "own.yaml"
    config.write_text(
        "train_dataset: {path: addition, size: 5, template: 'Add: {question}', prefill: 'So'}\ntotal_train_steps: 1\n"
    )
    out = look(config, "--rows", 1)
    assert "  | <|user|>Add: What is" in out and "<|assistant|>So\n" in out


@pytest.mark.slow
def test_rows_to_learn_from_show_what_is_learned(look, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        '{"prompt": "6*7?", "chosen": "42", "rejected": "41", "margin": 2}\n{"prompt": "a", "chosen": "b", "rejected": "b"}\n'
    )
    out = look(file, "--kind", "dpo")
    assert "1 of 2 rows left out: 1 chosen and rejected are the same (first: pairs.jsonl row 2)" in out
    assert "margin 2\n  chosen: 29 tokens, 3 of them learned\n          | <|user|>6*7?<eos><|assistant|>\n" in out
    assert "  learned | 42<eos>\n" in out and "  learned | 41<eos>\n" in out
    file.write_text('{"prompt": "6*7?", "completion": "42"}\n')
    assert "tokens of a row: shortest 29," in look(file, "--kind", "sft")


@pytest.mark.slow
def test_mistakes_are_told_in_one_line(rows, model_folder):
    for words, told in [
        ((rows,), "error: train_dataset: 1 of 3 rows cannot be used"),
        ((rows, "--kind", "stf"), "'stf' is none of train, sft, rm, dpo. Near: sft"),
        ((rows.with_name("row.jsonl"),), "no such file; "),
        (
            (rows, "--held-out", "train_dataset.on_bad_row=skip"),
            "no held-out rows: set valid_dataset, or train_dataset.held_out",
        ),
    ]:
        ended = call("data", *words, "--model", model_folder)
        assert ended.code == 2 and told in ended.err, ended.err
