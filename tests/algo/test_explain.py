"""The words about an algorithm."""

import pytest

from partita.algo.compose import compose
from partita.algo.explain import describe, difference, explain, keys_of
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.presets import PRESETS, SOURCES


@pytest.mark.parametrize("name", PRESETS)
def test_an_explanation_has_keys_parts_formula_and_paper(name):
    lines = explain(name, n_samples=8, max_new_tokens=64)
    text = "\n".join(lines)
    assert lines[0] == f"# {name}"
    assert SOURCES[name].url in text
    assert all(f"- {line}" in lines for line in SOURCES[name].formula)
    assert all(f"`actor.{key}: " in text for key in PRESETS[name])
    assert all(f"\n- {slot}: " in text for slot in ("keep", "assign", "norm", "reduce", "ratio", "gate"))
    assert ("## Difference to grpo" in lines) is (name != "grpo")


def test_values_are_printed_as_yaml():
    text = "\n".join(explain("dapo", max_new_tokens=100))
    assert "- `actor.adv_norm: {mean_level: group, std_level: group, eps: 1e-06}`" in text
    assert "- `eps_clip_higher`: 0.28 (null)" in text
    assert "- actor.overlong_tokens 20: a fifth of gconfig.max_new_tokens 100" in text


def test_parts_show_their_values():
    lines = describe(compose(AlgorithmKeys(kl_loss_coef=0.1, c_clip=3.0), n_samples=4, max_new_tokens=64))
    assert any(line.startswith("gate: MinClip(low=0.2, high=0.2, dual=3.0): min(ρA") for line in lines)
    assert any(line.startswith("penalties: KlLoss(coef=0.1, estimator=k3): ") for line in lines)


def test_difference_goes_into_sections():
    mine = AlgorithmKeys(adv_norm=NormConfig(std_level=None))
    assert difference(mine, AlgorithmKeys(adv_norm=NormConfig())) == ["`adv_norm.std_level`: null (batch)"]
    assert difference(mine, mine) == []


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="Choices"):
        keys_of("ppo3")
