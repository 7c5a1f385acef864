"""Which names are offered for a wrong one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from partita.config.errors import ConfigError, Names, Problem, near_value
from partita.config.schema import all_keys


@dataclass(frozen=True)
class Optimizer:
    lr: float = 1e-5
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Train:
    learning_rate_scale: float = 1.0
    optimizer: Optimizer = field(default_factory=Optimizer)


@dataclass(frozen=True)
class Config:
    train: Train = field(default_factory=Train)
    stages: tuple[Optimizer, ...] = ()


def near(path: str, **hints: str) -> list[str]:
    return re.findall(r"([\w.*]+) \(", Names(all_keys(Config), hints).near(path))


def test_the_same_section_first_then_the_same_name_elsewhere() -> None:
    assert near("train.optimizer.weigth-decay") == ["weight_decay"]
    assert near("weight_decay") == ["train.optimizer.weight_decay", "stages.*.weight_decay"]
    assert near("train.lr2") == ["train.optimizer.lr", "stages.*.lr"]
    assert near("stages.0.lrr")[0] == "lr"
    assert near("trian") == ["train"]
    assert near("completely_different") == []


def test_hints_come_first_and_may_be_advice() -> None:
    assert near("learning_rate", learning_rate="train.optimizer.lr")[0] == "train.optimizer.lr"
    assert near("Learning-rates", learning_rate="train.optimizer.lr")[0] == "train.optimizer.lr"
    names = Names(all_keys(Config), {"beta": "KL coefficients are kl_ctl and kl_loss_coef."})
    assert names.near("train.beta") == " KL coefficients are kl_ctl and kl_loss_coef."


def test_near_value() -> None:
    assert near_value("token-mean", ["token_mean", "seq_mean"]) == " Near: token_mean."
    assert near_value("x", ["token_mean"]) == "" and near_value("x", []) == ""


def test_the_error_has_one_line_for_each_different_problem() -> None:
    error = ConfigError([Problem("a", "bad", "f:1"), Problem("b", "worse"), Problem("a", "bad", "f:1")])
    assert str(error) == "2 problems in the configuration:\n  a: bad [f:1]\n  b: worse"
    assert isinstance(error, ValueError)


def test_an_endless_value_does_not_hide_what_is_wrong_with_it() -> None:
    told = str(Problem("x" * 5000, "there is no x; write +x=" + "9" * 200_000 + " to add it", "command line"))
    assert len(told) < 3100 and "x: there is no x; write +x=999" in told and told.endswith("9 to add it [command line]")
