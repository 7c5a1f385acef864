"""Types are strict, bounds and choices hold, and cross-checks carry the path of their section."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from partita.config import ConfigError, key, key_factory, load_config, required


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Stage:
    name: str = required("Name.")
    weight: float = key(1.0, "Weight.", ge=0, lt=10)


@dataclass(frozen=True)
class Overlong:
    enable: bool = key(False, "Switch.")
    tokens: int | None = key(None, "Tokens.")

    def __post_init__(self) -> None:
        if self.enable and self.tokens is None:
            raise ValueError("enable needs tokens: set tokens, or enable=false")


@dataclass(frozen=True)
class Config:
    rate: float = key(0.1, "Rate.", gt=0, le=1)
    limit: float | None = key(None, "Limit.")
    count: int = key(1, "Count.", ge=1)
    flag: bool = key(False, "Flag.")
    text: str = key("", "Text.")
    auto: float | Literal["auto"] = key("auto", "Number or auto.")
    pair: tuple[float, float] = key((0.9, 0.95), "Pair.")
    sizes: list[int] = key_factory(list, "Sizes.", ge=1)
    weights: dict[str, float] = key_factory(dict, "Weights.")
    folder: Path = key(Path("runs"), "Folder.")
    colour: Colour = key(Colour.RED, "Colour.")
    kind: str = key("slow", "Kind.", choices=("fast", "slow"))
    stages: list[Stage] = key_factory(list, "Stages.")
    suites: dict[str, Stage] | None = key(None, "Suites.")
    overlong: Overlong | None = key(None, "Overlong.")
    free: Any = key(None, "Anything.")


def load(**tree: Any) -> Config:
    return load_config(Config, base_tree=tree).value


def problem(**tree: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**tree)
    assert len(caught.value.problems) == 1
    return str(caught.value.problems[0]).removesuffix(" [given in code]")


def test_numbers_given_as_text_become_floats_only_where_floats_are_wanted() -> None:
    assert load(rate="1e-6").rate == 1e-6
    assert load(limit="5").limit == 5.0
    assert load(auto="0.5").auto == 0.5 and load(auto="auto").auto == "auto"
    assert load(pair=["0.5", 1]).pair == (0.5, 1.0)
    assert load(weights={"a": "1e-3"}).weights == {"a": 1e-3}
    assert load(text="1e-6").text == "1e-6"
    assert load(limit=math.inf).limit == math.inf


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"rate": "abc"}, 'rate: expected float, got "abc"'),
        ({"rate": True}, "rate: expected float, got true"),
        ({"rate": None}, "rate: expected float, got null"),
        ({"rate": {"x": 1}}, 'rate: expected float, got {"x": 1}'),
        ({"limit": math.nan}, "limit: expected float or null, got nan"),
        ({"count": 8.0}, "count: expected int, got 8.0"),
        ({"count": "8"}, 'count: expected int, got "8"'),
        ({"count": True}, "count: expected int, got true"),
        ({"flag": 1}, "flag: expected bool, got 1"),
        ({"flag": "true"}, 'flag: expected bool, got "true"'),
        ({"text": 7}, "text: expected str, got 7. Put text that looks like something else in quotes."),
        ({"auto": "aut"}, 'auto: expected float or auto, got "aut". Near: auto.'),
        ({"pair": [1]}, "pair: expected list [float, float], got [1] (item 1)"),
        ({"sizes": [1, "x"]}, 'sizes: expected list of int, got [1, "x"] (item 1)'),
        ({"colour": "blue"}, 'colour: expected one of red, got "blue"'),
        ({"kind": "fsat"}, 'kind: expected one of fast, slow, got "fsat". Near: fast.'),
        ({"stages": {"name": "a"}}, 'stages: expected list of section, got {"name": "a"}'),
        ({"stages": [3]}, "stages.0: expected a section, got 3. Its keys: name, weight"),
        ({"overlong": 3}, "overlong: expected a section, got 3. Its keys: enable, tokens"),
    ],
)
def test_wrong_types(tree: dict[str, Any], message: str) -> None:
    assert problem(**tree) == message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"rate": 0}, "rate: must be > 0, <= 1, got 0.0"),
        ({"rate": 1.5}, "rate: must be > 0, <= 1, got 1.5"),
        ({"count": 0}, "count: must be >= 1, got 0"),
        ({"sizes": [4, 0]}, "sizes: must be >= 1, got 0"),
        ({"stages": [{"name": "a", "weight": 10}]}, "stages.0.weight: must be >= 0, < 10, got 10.0"),
    ],
)
def test_bounds(tree: dict[str, Any], message: str) -> None:
    assert problem(**tree) == message


def test_plain_values_fill_paths_enums_lists_and_maps_of_sections() -> None:
    config = load(folder="out", colour="red", stages=[{"name": "a"}], suites={"x": {"name": "b", "weight": 2}})
    assert (config.folder, config.colour) == (Path("out"), Colour.RED)
    assert config.stages == [Stage("a", 1.0)] and config.suites == {"x": Stage("b", 2.0)}
    assert load(free={"a": [1, None]}).free == {"a": [1, None]}


def test_problems_inside_lists_and_maps_are_all_found_with_their_paths() -> None:
    with pytest.raises(ConfigError) as caught:
        load(stages=[{"nam": "a"}, {"name": "b", "weight": -1}], suites={"x": {"name": 1}})
    assert [one.path for one in caught.value.problems] == [
        "stages.0.nam",
        "stages.0.name",
        "stages.1.weight",
        "suites.x.name",
    ]
    assert caught.value.problems[0].message == "unknown key. Near: name (str, required)."


def test_a_cross_check_carries_the_path_of_its_section() -> None:
    message = "overlong: enable needs tokens: set tokens, or enable=false"
    assert problem(overlong={"enable": True}) == message
    # With an invalid key in the section, only that is reported: the check would speak about values that are not there.
    assert problem(overlong={"enable": True, "tokens": "x"}) == 'overlong.tokens: expected int or null, got "x"'


def test_a_switched_off_feature_needs_no_settings() -> None:
    off = load(overlong={"enable": False})
    assert off.overlong == Overlong() and load(overlong=None) == load()
