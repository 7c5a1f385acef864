"""Every preset has a source, and the values that a source gives are the preset's unless it says otherwise."""

from dataclasses import fields

import pytest

from partita.algo.explain import value_at
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import PRESETS, keys_of
from partita.algo.sources import SOURCES
from partita.config.schema import all_keys
from partita.run import RunConfig

OWN_IDEAS = {"decoupled_clip", "gspo_smoothed", "sapo_selfadaptive"}
NAMES = {item.name for item in fields(AlgorithmKeys)}
VALUES = [(name, item) for name, source in SOURCES.items() for item in source.values]


def test_every_preset_has_a_source():
    assert set(SOURCES) == set(PRESETS)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_can_be_found(name):
    source = SOURCES[name]
    assert source.title and source.section and source.formula
    if name in OWN_IDEAS:
        assert (source.url, source.year) == ("", None)
    else:
        assert source.url.startswith("https://")
        assert source.year is not None and 1992 <= source.year <= 2026


def test_the_matrix_points_to_its_documentation():
    rows = [source for name, source in SOURCES.items() if name.startswith("areal_")]
    assert len(rows) == 8
    assert {source.url for source in rows} == {"https://inclusionai.github.io/AReaL/"}
    assert all("PPO, GRPO and related algorithms" in source.title and "2505.24298" in source.title for source in rows)


@pytest.mark.parametrize(("name", "item"), VALUES, ids=[f"{name} {item.key}" for name, item in VALUES])
def test_published_values_are_those_of_the_preset_unless_it_departs(name, item):
    assert item.key in all_keys(RunConfig)
    root, first = item.key.split(".")[:2]
    if root == "actor" and first in NAMES:
        assert (value_at(keys_of(name), item.key) == item.value) is not item.differs
    else:
        assert not item.differs  # a matter of model and data, which presets leave alone
