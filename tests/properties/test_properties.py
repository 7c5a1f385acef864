"""The table of properties holds: on random batches where it says yes, and it fails where it says no."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.batches import BUDGET, ragged
from properties.checks import CHECKS
from properties.combined import COMBINED
from properties.table import PROPERTIES, SOFT, rows

from partita.algo.compose import compose
from partita.algo.presets import PRESETS, keys_of
from partita.algo.review import review

HOLDS = [(item.name, preset) for item in PROPERTIES for preset in item.holds]
FAILS = [(item.name, preset) for item in PROPERTIES for preset in item.fails]
COUNTEREXAMPLE = ragged([6, 2, 3, 4, 1, 5, 3], [9, 4, 9, 9, 4, 4, 9], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5], seed=3)
STRUCTURAL = ("sample_order", "micro_batches", "ranks", "finite", "credit_twice", "finite_differences")
"""What every composition has, named or not."""
HELD_WHILE_DIFFERENTIATED = ("ppo, bootstrapped, per token of a sequence", "interpolated centre")
"""The sequence's ratio under the token's, and a clip centre that follows the policy, are constants to the gradient."""
PARTS = [
    (name, algorithm) for name in STRUCTURAL for algorithm in COMBINED
    if name != "finite_differences" or algorithm not in HELD_WHILE_DIFFERENTIATED
]  # fmt: skip


@st.composite
def batches(draw, longest=BUDGET):
    """Up to three prompts of up to four samples in any order; samples may be empty."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    prompts = draw(st.permutations([7 * p for p, size in enumerate(sizes) for _ in range(size)]))
    each = {"min_size": len(prompts), "max_size": len(prompts)}
    lengths = draw(st.lists(st.integers(0, longest), **each))
    rewards = draw(st.lists(st.sampled_from([0.0, 1.0, 0.5, -1.0, 0.7]), **each))
    return ragged(lengths, prompts, rewards, seed=draw(st.integers(0, 2**16)))


@pytest.mark.parametrize(("name", "preset"), HOLDS)
@settings(max_examples=1, deadline=None)
@given(batch=batches())
def test_holds(name, preset, batch):
    CHECKS[name](keys_of(preset), batch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), HOLDS)
@settings(max_examples=20, deadline=None)
@given(batch=batches())
def test_holds_on_many_more(name, preset, batch):
    CHECKS[name](keys_of(preset), batch)


@pytest.mark.parametrize(("name", "algorithm"), PARTS)
@settings(max_examples=1, deadline=None)
@given(batch=batches())
def test_holds_for_every_part(name, algorithm, batch):
    CHECKS[name](COMBINED[algorithm], batch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algorithm"), PARTS)
@settings(max_examples=20, deadline=None)
@given(batch=batches())
def test_holds_for_every_part_on_many_more(name, algorithm, batch):
    CHECKS[name](COMBINED[algorithm], batch)


@pytest.mark.parametrize(("name", "preset"), FAILS)
def test_fails_where_the_table_says_so(name, preset):
    with pytest.raises(AssertionError):
        CHECKS[name](keys_of(preset), COUNTEREXAMPLE)


# ---- where there is nothing to hold, the key that the property is about is idle or refused

IDLE = {"dual_clip": "actor.c_clip", "wide_band": "actor.eps_clip", "soft_limit": "actor.sapo_tau_pos",
        "discounted_return": "actor.gae_lambda"}  # fmt: skip
TURNED = {"dual_clip": {"c_clip": 3.0}, "wide_band": {"eps_clip": 0.9}, "soft_limit": {"sapo_tau_pos": 0.5},
          "discounted_return": {"gae_lambda": 0.5}}  # fmt: skip


@pytest.mark.parametrize(("name", "preset"), [(i.name, p) for i in PROPERTIES for p in i.moot if i.name in IDLE])
def test_moot_because_the_key_is_idle(name, preset):
    inactive = review(replace(keys_of(preset), **TURNED[name]), n_samples=4, max_new_tokens=BUDGET).inactive
    assert any(line.startswith(IDLE[name] + " ") for line in inactive)


@pytest.mark.parametrize("preset", SOFT)
def test_moot_because_the_decoupled_loss_is_refused(preset):
    with pytest.raises(ValueError, match="use_decoupled_loss"):
        compose(replace(keys_of(preset), use_decoupled_loss=True), n_samples=4, max_new_tokens=BUDGET)


def test_padding():
    pytest.skip("batches are packed: there is no padding that could matter")


# ---- the table itself


def test_every_property_but_padding_has_a_check_and_every_reason_a_preset():
    assert {item.name for item in PROPERTIES} == set(CHECKS) | {"padding"}
    for item in PROPERTIES:
        assert set(item.fails) | set(item.moot) <= set(PRESETS)
        assert not set(item.fails) & set(item.moot)
        assert item.holds or item.name == "padding"


def test_the_table_has_a_line_for_each_preset():
    head, *lines = rows()
    assert [line[0] for line in lines] == list(PRESETS)
    assert all(len(line) == len(head) == len(PROPERTIES) + 1 for line in lines)
    assert {cell for line in lines for cell in line[1:]} == {"yes", "no", "-"}
