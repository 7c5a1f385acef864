"""The arrows task: its rule, its reward, its taught answers, and the model folder that teaching leaves."""

import random

import pytest
import tiny_task
import torch
from tiny_model import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.parametrize(
    ("question", "end"), [("AcBbCb:a", "b"), ("AcBbCb:b", "b"), ("AaBcCdDd:b", "d"), ("AaBcCdDd:a", "a")]
)
def test_arrows_are_followed_to_their_end(question, end):
    assert tiny_task.end_of(question) == end


@pytest.mark.parametrize(
    ("response", "score"),
    [("cbb=b", 1.0), ("=b", 1.0), ("a=a=b", 1.0), ("cb=bb", 0.0), ("b", 0.0), ("=", 0.0), ("", 0.0)],
)
def test_the_reward_is_for_what_follows_the_last_equals_sign(response, score):
    assert tiny_task.right_end(response, "b") == score


def test_questions_have_three_ends_and_start_away_from_them():
    rng = random.Random(0)
    for _ in range(200):
        question = tiny_task.draw(rng)
        to = tiny_task.arrows(question)
        assert "".join(to) == tiny_task.LETTERS
        assert sum(letter == target for letter, target in to.items()) == tiny_task.ENDS
        assert to[question[-1]] != question[-1]
        assert to[tiny_task.end_of(question)] == tiny_task.end_of(question)


def test_an_example_without_mistakes_follows_the_arrows(monkeypatch):
    for chance in ("STOP", "SLIP", "MISREAD"):
        monkeypatch.setattr(tiny_task, chance, 0.0)
    monkeypatch.setattr(tiny_task, "MOST_STEPS", 4)
    assert tiny_task.example("AcBbCb:a", random.Random(0)) == "cbbb=b"


def test_taught_answers_are_mostly_wrong_and_longer_ones_less_often():
    rng = random.Random(0)
    questions = [tiny_task.draw(rng) for _ in range(3000)]
    answers = [(tiny_task.example(question, rng), tiny_task.end_of(question)) for question in questions]
    scores = {
        long: [tiny_task.right_end(given, end) for given, end in answers if (len(given) > 10) == long]
        for long in (False, True)
    }
    share = {long: sum(found) / len(found) for long, found in scores.items()}
    assert 0.1 < share[False] < 0.2 < 0.35 < share[True] < 0.5


def test_rows_are_the_same_every_time_and_the_splits_are_disjoint():
    task = tiny_task.task()
    train, test = task.rows("train", 300, 1), task.rows("test", 100, 1)
    assert (len(train), len(test)) == (300, 100)
    assert task.rows("train", 300, 1) == train
    assert task.rows("train", 300, 2) != train
    assert {row["question"] for row in train}.isdisjoint(row["question"] for row in test)
    assert all(row["answer"] == tiny_task.end_of(row["question"]) for row in train)


def test_targets_are_the_answer_and_the_end_of_sequence():
    tokenizer = byte_tokenizer()
    ids_BN, targets_BN = tiny_task.batch_of(tokenizer, random.Random(0))
    assert ids_BN.shape == targets_BN.shape == (tiny_task.BATCH, ids_BN.shape[1])
    for ids_N, targets_N in zip(ids_BN, targets_BN, strict=True):
        taught_N = targets_N != tiny_task.IGNORED
        assert torch.equal(ids_N[taught_N], targets_N[taught_N])
        answer = tokenizer.decode(targets_N[taught_N])
        assert answer.endswith("<eos>") and answer.count("=") == 1
        whole = tokenizer.decode(ids_N[: int(taught_N.nonzero()[-1]) + 1])
        question = whole.removesuffix(answer)
        assert len(question) == 2 * len(tiny_task.LETTERS) + 2 and question[-2] == ":"


def test_teaching_lowers_the_loss_and_leaves_a_folder_with_the_bare_template(tmp_path):
    first, later = tiny_task.teach(tmp_path / "first", steps=1), tiny_task.teach(tmp_path / "later", steps=12)
    assert first > 5 > later  # ln 257 is 5.5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "later")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "AaBa:b"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "AaBa:b"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "later").config.num_hidden_layers == 2
