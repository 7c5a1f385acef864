"""The words about an algorithm."""

from dataclasses import fields, replace

import pytest

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.explain import (
    SLOTS,
    Subject,
    described,
    difference,
    explain,
    parts_difference,
    subject,
    value_at,
    yaml,
)
from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig
from partita.algo.presets import PRESETS, keys_of
from partita.algo.sources import SOURCES


def under(lines: list[str], heading: str) -> list[str]:
    """The lines below a Markdown heading."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f"## {heading}"))
    rest = lines[start + 1 :]
    return rest[: next((i for i, line in enumerate(rest) if line.startswith("## ")), len(rest))]


@pytest.mark.parametrize("name", PRESETS)
def test_an_explanation_has_objective_source_keys_and_parts(name):
    lines = explain(name)
    assert lines[0] == f"# {name}"
    assert any(line.startswith("maximise  ") for line in under(lines, "Objective"))
    assert SOURCES[name].title in "\n".join(under(lines, "Source"))
    assert all(line in under(lines, "The source's formula") for line in SOURCES[name].formula)
    listed = "\n".join(under(lines, "Keys"))
    assert all(f"`{key if '.' in key else 'actor.' + key}`: " in listed for key in PRESETS[name])
    assert all(any(f"- `{slot}`: " in line for line in under(lines, "Parts")) for slot in ("keep", "reduce", "gate"))
    assert ("## Difference to grpo: parts" in lines) is (name != "grpo")


@pytest.mark.parametrize("name", ["grpo", "dapo", "areal_sapo"])
def test_plain_text_has_the_same_lines_without_marks(name):
    marked, plain = explain(name), explain(name, markdown=False)
    assert plain[:2] == [name, "=" * len(name)]
    assert not any(line.startswith(("#", "```", "- ")) for line in plain)
    heads = [line.removeprefix("## ") for line in marked if line.startswith("## ")]
    assert [line for line in plain[3:] if line and not line.startswith(" ")] == heads
    assert "  maximise " in "\n".join(plain)


def test_plain_rows_are_aligned():
    lines = explain("rloo", markdown=False)
    start = lines.index("Keys") + 1
    rows = lines[start : lines.index("", start)]
    assert {len(row) - len(row.split("  ", 2)[2].lstrip()) for row in rows} == {
        len("  actor.importance_sampling_level  ")
    }


def test_values_are_printed_as_yaml():
    lines = explain("dapo")
    assert "- `actor.adv_norm`: {mean_level: group, std_level: group, eps: 1e-06}" in lines
    assert "- `eps_clip_higher`: 0.28 (null)" in under(lines, "Difference to grpo: keys")
    assert any(line.startswith("- actor.overlong_tokens 204: a fifth") for line in under(lines, "Filled in"))
    assert [yaml(value) for value in (None, True, 0.5, "k3")] == ["null", "true", "0.5", "k3"]
    assert yaml(NormConfig(std_level=None)) == "{std_level: null}"


def test_a_departure_from_the_source_shows_both_values():
    values = under(explain("dapo"), "The source's values")
    assert "- `actor.overlong_penalty_factor`: 1.0 (equation 13); here 0.5" in values
    assert "- `actor.eps_clip`: 0.2 (section 4.1)" in values


def test_slots_are_all_there_in_the_order_in_which_they_act():
    assert set(SLOTS) == {item.name for item in fields(Algorithm)}
    assert SLOTS.index("shape") < SLOTS.index("norm") < SLOTS.index("correct") < SLOTS.index("gate")


def test_parts_show_the_values_that_are_not_defaults():
    algorithm = compose(AlgorithmKeys(kl_loss_coef=0.1, c_clip=3.0), n_samples=4, max_new_tokens=64)
    rows = dict(described(algorithm))
    assert rows["gate"].startswith("MinClip(low=0.2, high=0.2, dual=3.0): min(ρA")
    assert rows["penalties"].startswith("KlLoss(coef=0.1, estimator=k3): + β · KL(")
    assert rows["keep"] == "KeepAll(): Every group is trained on."


def test_a_config_lists_what_is_not_at_its_default():
    keys = AlgorithmKeys(eps_clip=0.1, dynamic_sampling=DynamicSampling(max_batches=3), sapo_tau_pos=2.0)
    lines = explain(Subject("mine.yaml", keys, n_samples=4, max_new_tokens=32), against="dapo")
    assert lines[0] == "# mine.yaml"
    assert [line for line in under(lines, "Keys") if line] == [
        "- `actor.eps_clip`: 0.1", "- `actor.sapo_tau_pos`: 2.0", "- `actor.dynamic_sampling`: {max_batches: 3}",
    ]  # fmt: skip
    assert "## Parts (n_samples 4, max_new_tokens 32)" in lines
    assert "## Source" not in lines
    assert any("needs actor.use_sapo_loss" in line for line in under(lines, "Without effect"))
    assert "- `eps_clip`: 0.1 (0.2)" in under(lines, "Difference to dapo: keys")
    assert "- `dynamic_sampling.max_batches`: 3 (10)" in under(lines, "Difference to dapo: keys")


def test_reward_functions_stand_with_their_weights():
    keys = AlgorithmKeys(reward_norm=NormConfig("group", "group"), reward_norm_per_part=True)
    lines = explain(Subject("mine", keys, part_weights=(1.0, 0.5)))
    assert any(line.startswith("reward  ") and line.endswith("c = 1, 0.5") for line in lines)


def test_both_sides_of_a_comparison_have_the_same_length_limit():
    told = Subject("mine", keys_of("dapo"), max_new_tokens=100)
    assert not any("Difference" in line for line in explain(told, against="dapo"))


def test_a_config_with_one_sample_a_prompt_can_be_compared_with_grpo():
    lines = explain(Subject("mine", keys_of("reinforce"), n_samples=1))
    assert "## Difference to grpo: parts" in lines


def test_keys_outside_the_actor_and_retries_are_part_of_the_objective():
    assert any(
        "gconfig.adaptive_n: {score: entropy}" in line for line in under(explain("sapo_selfadaptive"), "Objective")
    )
    told = Subject("mine", AlgorithmKeys(mixed_group_retry=2), beside={"gconfig.adaptive_n": {"max": 32}})
    assert "- `gconfig.adaptive_n`: {max: 32}" in under(explain(told), "Keys")
    assert any(line.startswith("sampling  ") and "2x" in line for line in under(explain(told), "Objective"))


def test_differences_go_into_sections_and_leave_out_what_is_equal():
    mine = AlgorithmKeys(adv_norm=NormConfig(std_level=None))
    assert difference(mine, AlgorithmKeys(adv_norm=NormConfig())) == [("adv_norm.std_level", "null (batch)")]
    assert difference(mine, AlgorithmKeys()) == [("adv_norm", "{std_level: null} (null)")]
    assert difference(mine, mine) == []
    assert list(parts_difference(subject("dapo"), subject("dapo"))) == []


def test_a_difference_of_parts_says_what_each_is_for():
    rows = dict(parts_difference(subject("dapo"), subject("grpo")))
    assert set(rows) == {"keep", "shape", "reduce", "gate", "penalties"}
    assert rows["reduce"] == (
        "1/Σ_i|o_i| Σ_i Σ_t (every token of the step counts the same); grpo: 1/N Σ_i 1/|o_i| Σ_t (every sequence counts "
        "the same, a token of a long one less)"
    )
    assert rows["gate"] == (
        "min(ρ_it A_i, clip(ρ_it, 1-0.2, 1+0.28) A_i); grpo: min(ρ_it A_i, clip(ρ_it, 1-0.2, 1+0.2) A_i)"
    )
    assert rows["penalties"] == "nothing; grpo: - 0.04 k3(π ‖ π_ref)"


def test_a_coefficient_that_moves_differs_from_a_fixed_one():
    told = Subject("mine", keys_of("ppo_penalty"))
    fixed = Subject("fixed", replace(told.keys, kl_controller=None))
    assert dict(parts_difference(told, fixed)) == {"penalties": "- β k3(π_old ‖ π); fixed: - 1 k3(π_old ‖ π)"}


def test_values_are_found_by_path():
    keys = keys_of("gspo_smoothed")
    assert value_at(keys, "actor.adv_norm.ema.beta") == 0.9
    assert value_at(keys, "actor.dynamic_sampling.filter") is None
    with pytest.raises(ValueError, match="not a key of `actor`"):
        value_at(keys, "gconfig.n_samples")


def test_unknown_names_and_conflicts_are_refused():
    with pytest.raises(ValueError, match="Choices"):
        explain("ppo3")
    with pytest.raises(ValueError, match="Choices"):
        explain("grpo", against="ppo3")
    with pytest.raises(ValueError, match="use_decoupled_loss"):
        explain(Subject("mine", AlgorithmKeys(use_sapo_loss=True, use_decoupled_loss=True)))
