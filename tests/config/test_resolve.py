"""Interpolation: of values, inside text, of whole sections; and what is said when a target is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from partita.config import ConfigError, load_config


@dataclass(frozen=True)
class Model:
    path: str
    size: int = 1


@dataclass(frozen=True)
class Config:
    actor: Model
    ref: Model | None = None
    name: str = "${actor.path}-x"
    n: int = 1
    rate: float = 0.1
    sizes: list[int] = field(default_factory=list[int])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


def load(*overrides: str) -> Config:
    return load_config(Config, overrides=["actor.path=m", *overrides]).value


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return [str(problem) for problem in caught.value.problems]


def test_values_text_lists_and_relative_targets() -> None:
    config = load("actor.size=7", "n=${actor.size}", "sizes=['${n}', 2]", "+extra.a=1", "+extra.b=${.a}")
    assert (config.n, config.sizes, config.name) == (7, [7, 2], "m-x")
    assert config.extra == {"a": 1, "b": 1}


def test_a_whole_section_is_taken_with_its_defaults_and_overrides() -> None:
    assert load("ref=${actor}", "actor.size=5").ref == Model("m", 5)
    loaded = load_config(Config, overrides=["actor.path=m", "ref=${actor}"])
    assert loaded.sources["ref.size"] == "command line" and loaded.tree["ref"] == {"path": "m", "size": 1}


def test_environment_text_is_a_number_where_a_float_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_TEST_RATE", "1e-6")
    assert load("rate=${oc.env:PARTITA_TEST_RATE}").rate == 1e-6
    assert problems("n=${oc.env:PARTITA_TEST_RATE}") == ['n: expected int, got "1e-6" [command line]']


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("n=${actor.sise}", "there is no actor.sise. Near: actor.size (int, default 1)."),
        ("n=${ref.size}", "Error trying to access ref.size: node `ref` is not a container"),
        ("n=${n}", "Recursive interpolation detected."),
        ("n=${oc.env:PARTITA_TEST_NOT_SET}", "Environment variable 'PARTITA_TEST_NOT_SET' not found."),
        ("n=${now:1}", "Unsupported interpolation type now."),
    ],
)
def test_what_cannot_be_resolved_names_key_text_and_reason(override: str, reason: str) -> None:
    text = override.partition("=")[2]
    (found,) = problems(override)
    assert found.startswith(f"n: {text} cannot be resolved: {reason}") and found.endswith("[command line]")


def test_a_required_target_that_is_not_set_is_said_to_be_so() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Config, overrides=["actor.size=2"])
    assert [str(problem) for problem in caught.value.problems] == [
        "name: ${actor.path}-x cannot be resolved: actor.path is not set. [default]",
        "actor.path: must be set (str).",
    ]


def test_an_interpolation_that_is_nested_too_deeply_is_malformed() -> None:
    (found,) = problems(f"name={'${' * 2000}n{'}' * 2000}")
    assert found.endswith("is not a well-formed interpolation [command line]")


def test_malformed_interpolation_does_not_hide_other_problems() -> None:
    assert problems("name=${", "n=x") == [
        "name: ${ is not a well-formed interpolation [command line]",
        'n: expected int, got "x" [command line]',
    ]
