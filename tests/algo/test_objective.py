"""Objectives as formulas: their lines, and that the formulas compute what the parts compute."""

import math
import re
import statistics
from dataclasses import fields, replace

import pytest
import torch

from partita.algo.compose import compose, controllers
from partita.algo.control import Bounds
from partita.algo.controllers import EmaStatistics
from partita.algo.gate import GATES, BandClip, Cispo, MinClip, Open, Soft
from partita.algo.keep import MixedRewards
from partita.algo.keys import (
    AlgorithmKeys,
    ClipRuleConfig,
    CorrectionConfig,
    DynamicSampling,
    KlControllerConfig,
    NormConfig,
)
from partita.algo.kl_control import KlCoefficient, Trend
from partita.algo.norm import Units
from partita.algo.objective import Letter, in_symbols, objective, rule_line
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Tokens


def lines(keys: AlgorithmKeys) -> dict[str, str]:
    """The objective's rows by their labels."""
    return dict(objective(compose(keys, n_samples=8, max_new_tokens=1024), controllers(keys)))


def test_the_objective_of_grpo():
    assert lines(keys_of("grpo")) == {
        "maximise": "1/N Σ_i 1/|o_i| Σ_t [ min(ρ_it A_i, clip(ρ_it, 1-0.2, 1+0.2) A_i) - 0.04 k3(π ‖ π_ref) ]",
        "ratio": "ρ_it = π(o_it) / π_old(o_it)",
        "clip centre": "π_old: the trainer's weights before the step",
        "advantage": "A_i = (r_i - mean(group)) / (std(group) + 1e-06)",
    }


def test_without_a_ratio_the_score_function_stands_in_the_formula():
    found = lines(keys_of("rloo"))
    assert found["maximise"] == "1/N Σ_i Σ_t log π(o_it) A_i"
    assert "ratio" not in found and "clip centre" not in found
    assert found["credit"] == "R_i = r_i + Σ_t r_t"
    assert found["reward"] == "r_t ← r_t - 0.03 · k1(π_old ‖ π_ref)"
    assert found["advantage"].startswith("A_i = R_i - mean(")


def test_credit_that_varies_by_token_has_an_advantage_for_each():
    found = lines(keys_of("ppo"))
    assert found["maximise"] == "1/Σ_i|o_i| Σ_i Σ_t min(ρ_it A_it, clip(ρ_it, 1-0.2, 1+0.2) A_it)"
    assert found["advantage"].startswith("A_it = (Â_it - mean(batch)) / sqrt(")
    assert found["advantage"].endswith("statistics over tokens")
    assert found["credit"].startswith("Â_it = Σ_l")
    assert found["critic"].startswith("minimises ½ max(")
    alone = lines(AlgorithmKeys(credit="reward_to_go", discount=0.9))
    assert alone["advantage"] == "A_it = Σ_(k≥t) 0.9^(k-t) r_k"


def test_one_ratio_for_a_response_averages_the_advantages_of_its_tokens():
    found = lines(AlgorithmKeys(credit="reward_to_go", importance_sampling_level="sequence"))
    assert "mean over the response's tokens" in found["one ratio"]
    assert "one ratio" not in lines(keys_of("gspo"))


def test_a_gate_with_cases_has_a_line_of_its_own():
    found = lines(AlgorithmKeys(c_clip=3.0, entropy_coef=0.01))
    assert found["maximise"] == "1/Σ_i|o_i| Σ_i Σ_t [ g_it + 0.01 H(π) ]"
    assert found["gate"].startswith("g_it = max(min(ρ_it A_i")


def test_one_correction_is_a_weight_and_two_are_a_product():
    one = lines(AlgorithmKeys(use_decoupled_loss=True))
    assert one["maximise"].startswith("1/Σ_i|o_i| Σ_i Σ_t w_it · min(")
    assert one["weight"] == "w_it = π_old(o_it)/μ(o_it), 0 above 5"
    keys = AlgorithmKeys(use_decoupled_loss=True, correction=CorrectionConfig(kind="m2po"))
    rows = objective(compose(keys, n_samples=8, max_new_tokens=64))
    assert dict(rows)["maximise"].startswith("1/Σ_i|o_i| Σ_i Σ_t w1_it · w2_it · min(")
    assert [line.partition(" = ")[0] for name, line in rows if name == "weight"] == ["w1_it", "w2_it"]


def test_rows_groups_and_balance_are_named():
    keys = AlgorithmKeys(truncation="mask_loss", max_staleness=4, dynamic_sampling=DynamicSampling("mixed_rewards"))
    rows = objective(compose(keys, n_samples=8, max_new_tokens=64))
    assert len([line for name, line in rows if name == "samples"]) == 2
    assert ("kept", "groups with max r > min r") in rows
    assert lines(keys_of("decoupled_clip"))["balance"].endswith("= 0.5 : 0.5")
    alone = lines(replace(keys_of("decoupled_clip"), adv_norm=None))
    assert (alone["advantage"], alone["balance"][-9:]) == ("A_i = r_i", "0.5 : 0.5")
    assert lines(keys_of("dapo"))["reward"] == "r ← r + 0.5 · clip((820 - |o|)/204, -1, 0)"


def test_what_a_rule_moves_is_a_letter_and_the_rule_has_the_numbers():
    entropy = lines(keys_of("skywork_or1"))
    assert entropy["maximise"].endswith("A_i) + c H(π) ]")
    assert entropy["rule"].startswith("c ← c + 0.005 where H ≤ 0.2, else c - 0.005, H before this step")
    spread = lines(replace(keys_of("sapo_selfadaptive"), eps_clip_higher=0.3))
    assert "clip(ρ_it, 1-ε, 1+1.5ε)" in spread["maximise"]
    assert spread["rule"].startswith("ε = clip(0.1 + 0.2 · IQR(A)/IQR_ref, 0.1, 0.3)")
    penalty = lines(keys_of("ppo_penalty"))
    assert "- β k3(π_old ‖ π)" in penalty["maximise"]
    assert penalty["rule"].startswith("β ← 2β where KL > 1.5 · 0.01, β/2 where KL < 0.01/1.5")


@pytest.mark.parametrize(
    ("keys", "where", "says"),
    [
        (AlgorithmKeys(kl_ctl=0.1, kl_controller=KlControllerConfig()), "reward", "clip(KL/6 - 1, -0.2, 0.2) n/10000"),
        (AlgorithmKeys(kl_loss_coef=0.1, kl_controller=KlControllerConfig()), "maximise", "from 0.1, not below 0"),
        (AlgorithmKeys(kl_loss_coef=0.1, kl_controller=KlControllerConfig("trend")), "maximise", "over 4 steps"),
        (AlgorithmKeys(eps_clip_rule=ClipRuleConfig("clip_fraction")), "maximise", "ε ← 1.1 ε where more than 10 %"),
    ],
)
def test_every_rule_moves_its_letter(keys, where, says):
    found = lines(keys)
    assert says in found["rule"]
    assert ("ε" if keys.eps_clip_rule else "β") in found[where]


def test_rules_say_how_they_begin():
    later = EmaStatistics("adv_norm", beta=0.99, update_first=False, bias_corrected=True)
    assert rule_line(later).startswith("μ ← 0.99 μ + 0.01 mean")
    assert rule_line(later).endswith("after it is used; from 0, divided by 1 - β^n")
    kept = KlCoefficient("loss", 0.1, Trend(), Bounds(0.01, 1.0))
    assert rule_line(kept).endswith("from 0.1, within 0.01 to 1")


def test_a_letter_counts_as_its_number():
    moved = Letter(0.2, "ε")
    assert (f"{moved:g}", moved + 1, MinClip(moved, moved)) == ("ε", 1.2, MinClip(0.2, 0.2))


def test_a_part_without_a_formula_is_told_by_its_docstring():
    class Mine:
        """Doubles every advantage. And nothing else.

        More.
        """

    assert in_symbols(Mine()) == "Doubles every advantage."
    assert in_symbols(MixedRewards(3)) == "groups with max r > min r"


def gate_by_formula(formula: str, ratio: float, advantage: float) -> float:
    """The printed formula as arithmetic: juxtaposed factors are products."""
    expression, _, cases = formula.partition(", τ = ")
    if cases:
        up, down = re.fullmatch(r"(\S+) for A_i > 0, else (\S+)", cases).groups()
        expression = expression.replace("τ", f"({up if advantage > 0 else down})")
    if cut := re.fullmatch(r"max\((.*), (\S+) A_i\) for A_i < 0, else (.*)", expression):
        expression = f"max({cut[1]}, {cut[2]} * A_i)" if advantage < 0 else cut[3]
    expression = expression.replace("sg[", "(").replace("]", ")").replace("log π(o_it)", "log(ρ_it)")
    expression = re.sub(r"(?<=[\w)]) (?=[A-Zσlρ(])", " * ", expression)
    names = {
        "ρ_it": ratio,
        "A_i": advantage,
        "log": math.log,
        "min": min,
        "max": max,
        "σ": lambda x: 1 / (1 + math.exp(-x)),
    }
    names["clip"] = lambda value, low, high: min(max(value, low), high)
    return eval(expression, {"__builtins__": {}}, names)


@pytest.mark.parametrize(
    "gate", [MinClip(0.2, 0.28), MinClip(0.2, 0.2, 3.0), BandClip(0.2, 0.28), Soft(1.0, 1.05), Cispo(1.0, 0.28), Open()]
)
def test_a_gates_formula_computes_what_the_gate_computes(gate):
    ratio_T = torch.tensor([0.5, 0.9, 1.0, 1.25, 1.5, 4.0], dtype=torch.float64).repeat(2)
    advantages_T = torch.tensor([0.7, -1.3], dtype=torch.float64).repeat_interleave(6)
    zero_T = torch.zeros_like(ratio_T)
    live_T = zero_T == 0
    tokens = Tokens(
        seq_T=torch.arange(12), samples=12, weight_T=zero_T + 1, weighted_T=live_T, live_T=live_T,
        logprobs_T=torch.log(ratio_T), prox_T=zero_T, advantages_T=advantages_T, correction_T=zero_T + 1, scale_T=zero_T + 1,
    )  # fmt: skip
    expected = [gate_by_formula(gate.formula(), float(r), float(a)) for r, a in zip(ratio_T, advantages_T, strict=True)]
    assert gate(ratio_T, tokens).objective_T.tolist() == pytest.approx(expected)


def test_every_gate_of_single_tokens_is_among_those_above():
    """One that reads a whole response has no value for a ratio alone."""
    made = {kind: kind(**{item.name: 0.5 for item in fields(kind)}).formula() for kind in GATES.values()}
    assert {kind for kind, said in made.items() if "|o_i|" not in said} == {MinClip, BandClip, Soft, Cispo, Open}


def norm_by_formula(formula: str, group: list[float], batch: list[float], index: int) -> float:
    """The printed formula as arithmetic, for one value of a group."""
    others = [value for i, value in enumerate(group) if i != index]
    expression = formula.replace("the group's others", "others").replace("batch of raw rewards", "raw")
    centred = [value - statistics.fmean(group) for value in group]
    names = {"group": group, "batch": batch, "others": others, "raw": batch, "r_i": group[index]}
    names |= {"mean": statistics.fmean, "std": statistics.stdev, "var": statistics.variance, "sqrt": math.sqrt}
    assert centred  # groups are never empty here
    return eval(expression, {"__builtins__": {}}, names)


@pytest.mark.parametrize(
    "norm",
    [
        NormConfig("batch", None), NormConfig("group", None), NormConfig("group", "group", eps=0.25),
        NormConfig("batch", "batch", eps=0.25, eps_mode="inside_sqrt"), NormConfig("group", None, mean_leave1out=True),
        NormConfig("group", "batch", std_of="raw", eps=1e-4), NormConfig(None, "batch"),
    ],
)  # fmt: skip
def test_a_norms_formula_computes_what_the_norm_computes(norm):
    made = compose(AlgorithmKeys(adv_norm=norm), n_samples=3, max_new_tokens=8).norm
    groups = [[1.0, 0.0, 0.25], [0.5, 2.0, -1.0]]
    batch = [value for group in groups for value in group]
    expected = [norm_by_formula(made.formula("r_i"), group, batch, i) for group in groups for i in range(3)]
    units = Units(torch.tensor([0, 0, 0, 1, 1, 1]), 2, torch.ones(6, dtype=torch.bool))
    assert made(torch.tensor(batch), units).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_an_objective_without_stale_values(name):
    found = lines(keys_of(name))
    assert found["maximise"].count("[") == found["maximise"].count("]")
    assert found["advantage"].startswith("A_i")
    assert ("rule" in found) is bool(controllers(keys_of(name)))
