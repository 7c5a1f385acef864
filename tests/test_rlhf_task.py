"""The RLHF example: its rule by hand, its pairs against the rule and against length, and what the generator promises."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.offline.build import load_data
from partita.offline.config import load_offline_config
from partita.offline.models import load_model
from partita.run import composed, load_run_config
from partita.tasks.binding import bind_all
from partita.tasks.conversations import RowReader
from partita.tasks.dataset import load_rows
from partita.tasks.settings import ColumnsConfig, DatasetConfig

sys.path.append(str(Path(__file__).parent.parent / "examples" / "rlhf"))  # scripts that are run, not a package
import make_data
import rule
import run as road

FOLDER = Path(rule.__file__).parent


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlhf")
    make_data.make(folder)
    return folder


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def answers(row: dict[str, Any]) -> tuple[str, str]:
    return row["chosen"][0]["content"], row["rejected"][0]["content"]


@pytest.mark.parametrize(
    "response, score, kept",
    [
        ("Sure, cats sleep more than most people expect. Shall I go on?", 1.0, "opener topic brief question"),
        ("Of course! A cat can hear sounds that we miss. Does that help?", 1.0, "opener topic brief question"),
        ("Cats sleep more than most people expect.", 0.25, "topic"),  # seven words
        ("Cats sleep a lot more than most people expect.", 0.5, "topic brief"),
        ("Sure, they sleep more than most people expect.", 0.5, "opener brief"),
        ("Surely cats sleep more than most people expect. Why?", 0.75, "topic brief question"),
        ("Sure, I think cats sleep more than most people expect.", 0.5, "opener topic brief hedge"),
        ("Perhaps.", 0.0, "hedge"),  # not below 0
        ("Sure, cats?", 0.75, "opener topic question"),
        ("Sure, catalogues list more than most people ever need. Why?", 0.75, "opener brief question"),
        ("Sure, cats sleep more than most people expect and then", 0.5, "opener topic"),  # cut off
        (f"Sure, cats {'purr ' * 30}?", 0.75, "opener topic question"),
        ("", 0.0, ""),
    ],
)
def test_the_rule_on_responses_by_hand(response, score, kept):
    parts = rule.true_reward(response, "cats")
    assert parts.pop("score") == score
    assert {name for name, value in parts.items() if value} == set(kept.split())


def test_the_rule_is_a_reward_function_of_the_rows(data):
    (bound,) = bind_all([f"{FOLDER / 'rule.py'}:true_reward"])
    assert bound.missing(["response", "topic"]) == []
    config = DatasetConfig(path=str(data / "prompts_test.jsonl"), columns=ColumnsConfig(answer=None))
    loaded = load_rows(config, seed=1).rows
    assert len(loaded) == 128 and all(row.row["topic"] in row.messages[0]["content"] for row in loaded)


@pytest.mark.parametrize("split, count", [("train", 1200), ("test", 300)])
def test_the_rule_orders_every_pair_and_length_does_not(data, split, count):
    pairs = rows(data, f"preferences_{split}")
    assert len(pairs) == count
    for row in pairs:
        better, worse = (make_data.score(text, row["topic"]) for text in answers(row))
        assert better - worse >= make_data.CLEAR
        assert RowReader().comparison(row).chosen.messages[0]["content"] == row["prompt"][0]["content"]
    for length in (len, lambda text: len(text.split())):
        assert 0.4 <= accuracy(pairs, length) <= 0.6  # the longer one, and its opposite the shorter one


def test_no_length_is_the_right_one(data):
    """Also not "the one that is nearest to n words": the best n of the training pairs, on the others."""
    train, test = rows(data, "preferences_train"), rows(data, "preferences_test")

    def near(n: int) -> Callable[[str], float]:
        return lambda text: -abs(len(text.split()) - n)

    best = max(range(4, 40), key=lambda n: accuracy(train, near(n)))
    assert accuracy(train, near(best)) <= 0.6 and accuracy(test, near(best)) <= 0.6


def accuracy(pairs: list[dict[str, Any]], measure: Callable[[str], float]) -> float:
    """The share of pairs in which the chosen answer measures more; equal ones count half."""
    both = [tuple(map(measure, answers(row))) for row in pairs]
    return sum((better > worse) + 0.5 * (better == worse) for better, worse in both) / len(both)


def test_no_single_part_of_the_rule_orders_the_pairs(data):
    pairs = rows(data, "preferences_test")
    for part, sign in (("opener", 1), ("topic", 1), ("brief", 1), ("question", 1), ("hedge", -1)):
        kept = [tuple(sign * rule.true_reward(text, row["topic"])[part] for text in answers(row)) for row in pairs]
        alone = sum((better > worse) + 0.5 * (better == worse) for better, worse in kept) / len(kept)
        assert 0.5 < alone < 0.85, part


def test_held_out_prompts_are_about_topics_that_no_training_row_names(data):
    held = {row["topic"] for name in ("prompts_test", "preferences_test") for row in rows(data, name)}
    trained = {row["topic"] for name in ("prompts_train", "preferences_train") for row in rows(data, name)}
    assert len(held) == 16 and len(trained) == 48 and not held & trained
    asked = {json.dumps(row["prompt"]) for row in rows(data, "prompts_train")}
    assert not asked & {json.dumps(row["prompt"]) for row in rows(data, "prompts_test")}
    for row in rows(data, "preferences_train"):
        assert not any(rule.names(text, topic) for text in answers(row) for topic in held)
    for row in rows(data, "sft"):
        assert not any(rule.names(message["content"], topic) for message in row["messages"] for topic in held)


def test_demonstrations_keep_the_rule_about_as_often_as_not(data):
    every = [RowReader().conversation(row) for row in rows(data, "sft")]
    topics = [topic for kind in make_data.TOPICS.values() for topic in kind]
    told = [(one.messages[0]["content"], one.messages[1]["content"]) for one in every]
    scores = [make_data.score(answer, next(t for t in topics if f" {t}" in question)) for question, answer in told]
    assert 0.5 < sum(scores) / len(scores) < 0.7 and {0.25, 0.5, 0.75, 1.0} <= set(scores)


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path, data):
    make_data.make(tmp_path / "again")
    make_data.make(tmp_path / "other", seed=2)
    for file in sorted(data.iterdir()):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "other" / "sft.jsonl").read_bytes() != (data / "sft.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["sft", "rm", "dpo"])
def test_configs_of_data_load(name, data):
    config = load_offline_config(name, FOLDER / f"{name}.yaml").value
    assert config.experiment_name == "rlhf" and config.trial_name == name
    assert (data / Path(config.train_dataset.path).name).is_file()


@pytest.mark.parametrize("name", ["sft", "rm", "dpo"])
def test_the_quick_road_has_rows_to_learn_and_rows_held_out(name, data, model_folder):
    file = data / ("sft.jsonl" if name == "sft" else "preferences_train.jsonl")
    places = [f"actor.path={model_folder}", f"train_dataset.path={file}"]
    if name != "sft":
        places.append(f"valid_dataset.path={data / 'preferences_test.jsonl'}")
    config = load_offline_config(name, FOLDER / f"{name}.yaml", [*places, *road.QUICK[name]]).value
    found = load_data(config, load_model(config, torch.device("cpu")))
    assert len(found.items) >= config.train_dataset.batch_size and found.held_out


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_configs_of_rl_compose_and_do_not_learn_from_the_rule(name):
    config = load_run_config([FOLDER / f"{name}.yaml"], []).value
    composed(config)
    assert config.reward.weights == [0.0] and config.reward.model == "runs/rlhf/rm/export"
    assert config.actor.path == "runs/rlhf/sft/export" and config.algorithm == name


def test_the_table_is_read_from_what_eval_prints():
    printed = "runs/x: 0.188 (95 % interval 0.172 to 0.204) on 128 held-out prompts, 2 samples each, temperature 1\n"
    assert road.read_worth(printed) == road.Worth(0.188, 0.172, 0.204)
    rows = {"base": road.Worth(0.188, 0.172, 0.204), "ppo": road.Worth(0.9, 0.8, 1.0)}
    base, ppo = road.table(rows, {"ppo": (24, 425.9)}).splitlines()[-2:]
    assert base == "| base | 0.188 | 0.172 to 0.204 | | |"
    assert ppo == "| ppo | 0.900 | 0.800 to 1.000 | 24 | 7 min 05 s |"
    with pytest.raises(ValueError, match="no interval"):
        road.read_worth("error")
