"""What a user may write on the command line, and what it does to known keys, open sections and absent sections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from partita.config import ConfigError, key, key_factory, load_config
from partita.config.overrides import read_override


@dataclass(frozen=True)
class Norm:
    level: Literal["batch", "group"] | None = key("batch", "Level.")
    eps: float = key(1e-5, "Added to the deviation.", gt=0)


@dataclass(frozen=True)
class Until:
    step: int = key(1, "Step.", ge=1)


@dataclass(frozen=True)
class Config:
    name: str = key("run", "Name.")
    folder: Path | None = key(None, "Folder.")
    mode: Literal["off", "on"] = key("on", "Mode.")
    lr: float = key(1e-5, "Step size.")
    norm: Norm | None = key(None, "Normalisation.")
    fixed: Norm = key(Norm(eps=0.5), "A section with a default of its own.")
    sizes: list[int] = key_factory(lambda: [1, 2], "Sizes.")
    stages: tuple[Until, ...] = key((), "Stages.")
    suites: dict[str, Norm] = key_factory(dict, "Named sections.")
    extra: dict[str, Any] = key_factory(lambda: {"a": 1}, "Free keys.")


def load(*overrides: str) -> Config:
    return load_config(Config, overrides=overrides).value


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert len(caught.value.problems) == 1
    return str(caught.value.problems[0])


@pytest.mark.parametrize(
    ("text", "action", "parts", "value"),
    [
        ("a.b=c=d", "set", ("a", "b"), "c=d"),
        ("+a=[1, 2]", "add", ("a",), "[1, 2]"),
        ("~a.b", "drop", ("a", "b"), ""),
    ],
)
def test_forms(text: str, action: str, parts: tuple[str, ...], value: str) -> None:
    override = read_override(text)
    assert (override.action, override.parts, override.value) == (action, parts, value)


@pytest.mark.parametrize("text", ["a", "+a", "=1", "a..b=1", "~a=1", "a=", ".a=1", "a b=1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        read_override(text)


def test_a_key_below_an_absent_section_creates_it_with_its_defaults() -> None:
    assert load("norm.level=group").norm == Norm("group", 1e-5)
    assert load("norm={}").norm == Norm()
    assert load("norm={eps: 2}", "norm.level=null").norm == Norm(None, 2.0)
    assert load("norm.level=group", "norm=null").norm is None


def test_a_mapping_is_merged_into_a_section_and_a_list_replaces_a_list() -> None:
    assert load("fixed={level: group}").fixed == Norm("group", 0.5)
    assert load("sizes=[3]").sizes == [3]
    assert load("stages=[{step: 5}, {}]").stages == (Until(5), Until(1))


def test_text_keys_take_what_is_written() -> None:
    config = load("name=007", "folder=2020", "mode=off")
    assert (config.name, config.folder, config.mode) == ("007", Path("2020"), "off")
    assert load("name=a: b: c").name == "a: b: c"
    assert load("name='quoted: 1'").name == "quoted: 1"
    assert load("folder=x", "folder=null").folder is None


def test_plus_is_allowed_for_known_keys_and_needed_for_new_ones_in_open_sections() -> None:
    assert load("+lr=1e-6").lr == 1e-6
    assert load("+extra.b.c=[1]").extra == {"a": 1, "b": {"c": [1]}}
    assert load("extra.a=2").extra == {"a": 2}
    assert problem("extra.b=2") == "extra.b: there is no extra.b; write +extra.b=2 to add it [command line]"
    assert problem("+lrr=1") == "lrr: unknown key. Near: lr (float, default 1e-05). [command line]"
    assert load("+suites.x.level=group", "suites.x.eps=2").suites == {"x": Norm("group", 2.0)}
    assert "there is no suites.x; write +suites.x.eps=2" in problem("suites.x.eps=2")


def test_a_mapping_given_for_an_open_section_replaces_its_default() -> None:
    assert load("extra={b: 1}").extra == {"b": 1}
    assert load("extra={b: 1}", "extra={c: 2}").extra == {"b": 1, "c": 2}
    assert load("extra={}").extra == {}


def test_tilde_goes_back_to_the_default_of_the_enclosing_section() -> None:
    assert load("fixed.eps=9", "~fixed.eps").fixed == Norm(eps=0.5)
    assert load("norm.eps=9", "norm.level=group", "~norm.eps").norm == Norm("group")
    assert load("norm.eps=9", "~norm").norm is None
    assert load("~extra.a").extra == {}
    assert load("extra={b: 1}", "~extra").extra == {"a": 1}
    assert load("+suites.x={}", "~suites.x").suites == {}
    assert load("~norm.eps").norm is None  # already at its default


def test_tilde_of_what_does_not_exist_is_an_error() -> None:
    assert problem("~lrr") == "lrr: unknown key. Near: lr (float, default 1e-05). [command line]"
    assert problem("~fixed.epss").startswith("fixed.epss: unknown key. Near: eps (float")
    assert problem("~extra.b") == "extra.b: there is no extra.b [command line]"


def test_keys_below_values_and_lists_are_errors() -> None:
    assert problem("lr.x=1") == "lr.x: unknown key: lr is float, not a section [command line]"
    assert problem("stages.0.step=1") == "stages.0.step: stages is a list; give it whole: stages=[...] [command line]"


def test_a_value_that_is_no_yaml_names_the_key() -> None:
    assert problem("lr=[1").startswith("lr: not valid YAML: ")
    assert problem("extra={x: 1, x: 2}").startswith("extra: duplicate key x")


def test_a_link_to_a_section_can_be_changed_key_by_key() -> None:
    config = load("norm=${fixed}", "norm.level=group", "fixed.eps=3")
    assert config.norm == Norm("group", 3.0)
    assert load("norm=${fixed}").norm == Norm(eps=0.5)
    assert load("norm=${fixed}", "norm.eps=3", "~norm.eps").norm == Norm(eps=1e-5)
    assert "cannot be set, because it is the interpolation ${norm}" in problem("extra=${norm}", "+extra.b=1")
