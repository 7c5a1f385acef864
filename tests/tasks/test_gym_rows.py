"""Rows of reasoning-gym: the same for the same arguments, apart by split, and judged by the scorer of their task."""

import sys

import pytest

from partita.tasks import gym_rows
from partita.tasks.catalog import find_task
from partita.tasks.dataset import DataError, DatasetConfig, load_rows
from partita.tasks.functions import LoadError
from partita.tasks.graders.gym import reasoning_gym_score

pytest.importorskip("reasoning_gym")
GCD = "reasoning_gym/gcd"


def rows(**keys):
    return load_rows(DatasetConfig(**({"path": GCD, "size": 30} | keys)), seed=keys.pop("seed", 1))


def test_rows_depend_on_split_size_and_seed_alone():
    train, test = rows(), rows(split="test")
    assert [row.messages for row in rows().rows] == [row.messages for row in train.rows]
    assert not {row.row["question"] for row in train.rows} & {row.row["question"] for row in test.rows}
    assert [row.messages for row in rows(size=10).rows] == [row.messages for row in train.rows[:10]]
    other = load_rows(DatasetConfig(path=GCD, size=30), seed=2)
    assert len({row.row["question"] for row in train.rows} & {row.row["question"] for row in other.rows}) < 5
    assert len(load_rows(DatasetConfig(path=GCD), seed=1).rows) == 200


@pytest.mark.slow
def test_the_scorer_of_the_task_judges():
    found = rows(size=3)
    assert found.functions == (reasoning_gym_score,)
    for row in found.rows:
        assert row.answer is not None and row.answer.isdecimal()
        assert reasoning_gym_score(row.answer, row.row) == 1.0
        assert reasoning_gym_score("<answer>-7</answer>", row.row) < 1.0


def test_what_only_the_scorer_knows_has_no_gold_answer():
    found = rows(path="reasoning_gym/graph_color", size=2)
    assert [row.answer for row in found.rows] == [None, None]
    assert any("no gold answer" in note for note in found.notes)


def test_a_task_that_is_not_there_is_told_with_its_neighbours():
    with pytest.raises(
        DataError, match=r"reasoning_gym/leg_countin: reasoning-gym has no such task; near: leg_counting"
    ):
        rows(path="reasoning_gym/leg_countin")
    with pytest.raises(LoadError, match=r"has no such task; it has .* more"):
        find_task("reasoning_gym/qqq")
    with pytest.raises(DataError, match="composite: cannot be made of its name alone"):
        rows(path="reasoning_gym/composite")


def test_too_few_different_rows_are_an_error():
    with pytest.raises(ValueError, match=r"size=3: reasoning_gym/gcd gave 0 different rows of this split in 150 tries"):
        gym_rows.rows_of("gcd", lambda _: False, 3, 1)


def test_without_reasoning_gym_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(LoadError, match=r"pip install 'partita\[tasks\]'"):
        find_task(GCD)
