"""What a composition maximises: one formula with its values in place, and a line for every name that stands in it.

Left out: the parts' own formulas, which each part says of itself, and headings (`explain`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from partita.algo.algorithm import Algorithm
from partita.algo.control import Bounds, Controller
from partita.algo.controllers import AdaptiveEntropy, Band, ClipFraction, EmaStatistics, IqrClip
from partita.algo.credit import Outcome
from partita.algo.keep import KeepAll, MixedOutcomes, MixedRewards
from partita.algo.kl_control import KlCoefficient, PpoPenalty, Trend, Ziegler
from partita.algo.norm import Norm
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.ratio import NoRatio
from partita.algo.shape import KlInReward

Row = tuple[str, str]
"""What a line is about, and the line."""

PartT = TypeVar("PartT")


@runtime_checkable
class Formulated(Protocol):
    """A part that says in one line what it computes."""

    def formula(self) -> str:
        """The line, with values in place."""
        ...


class Letter(float):
    """A number that a rule moves during the run: it prints as its letter, so that no formula shows a stale value."""

    letter: str

    def __new__(cls, value: float, letter: str) -> Letter:
        made = super().__new__(cls, value)
        made.letter = letter
        return made

    def __format__(self, spec: str) -> str:
        return self.letter


def in_symbols(part: object) -> str:
    """A part's formula; for a filter of groups, its condition; else the first sentence of its docstring."""
    if isinstance(part, KeepAll):
        return "all groups"
    if isinstance(part, MixedOutcomes):
        return f"groups with 0 < #right < K, right: reward ≥ {part.correct_threshold:g}"
    if isinstance(part, MixedRewards):
        return "groups with max r > min r"
    if isinstance(part, Norm):
        return part.formula("r_i")
    return part.formula() if isinstance(part, Formulated) else first_sentence(part)


def first_sentence(part: object) -> str:
    """What the docstring of a part's class begins with, on one line."""
    summary = " ".join((type(part).__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", summary)[0]


def objective(algorithm: Algorithm, rules: Sequence[Controller] = ()) -> list[Row]:
    """The objective, then what its names stand for, from the tokens' ratio back to the task's reward, then the rules.

    Values that a rule moves are letters: β for a KL coefficient, c for the entropy bonus, ε for a clip range.
    """
    algorithm = lettered(algorithm, rules)
    varies = not isinstance(algorithm.assign, Outcome)
    rows = [*_maximised(algorithm), *_advantage(algorithm), *_rewards(algorithm)]
    rows += [("samples", in_symbols(rule)) for rule in algorithm.rows]
    if not isinstance(algorithm.keep, KeepAll):
        rows.append(("kept", in_symbols(algorithm.keep)))
    if algorithm.value is not None:
        rows.append(("critic", f"minimises {in_symbols(algorithm.value)}"))
    if varies:  # parts write A_i for the advantage of any token
        rows = [(name, re.sub(r"\bA_i\b", "A_it", line)) for name, line in rows]
        if algorithm.ratio.whole_sequence:
            rows.append(("one ratio", "a response shares one ratio, so A_it is its mean over the response's tokens"))
    return rows + [("rule", rule_line(rule)) for rule in rules]


def _maximised(algorithm: Algorithm) -> list[Row]:
    """The formula, then its weights, its gate where that has cases, its ratio and what the ratio is taken against."""
    gate, rows = in_symbols(algorithm.gate), list[Row]()
    weights = [in_symbols(part) for part in algorithm.correct]
    names = ["w_it"] if len(weights) == 1 else [f"w{k}_it" for k in range(1, len(weights) + 1)]
    rows += [("weight", line.replace("w_it", name)) for name, line in zip(names, weights, strict=True)]
    if isinstance(algorithm.ratio, NoRatio):
        gate = gate.replace("ρ_it", "log π(o_it)")
    if " for " in gate:
        rows.append(("gate", f"g_it = {gate}"))
        gate = "g_it"
    penalties = [in_symbols(part) for part in algorithm.penalties]
    inside = " ".join([" · ".join([*names, gate]), *penalties])
    rows.insert(0, ("maximise", f"{in_symbols(algorithm.reduce)} {f'[ {inside} ]' if penalties else inside}"))
    if not isinstance(algorithm.ratio, NoRatio):
        rows += [("ratio", in_symbols(algorithm.ratio)), ("clip centre", in_symbols(algorithm.center))]
    return rows


def _advantage(algorithm: Algorithm) -> list[Row]:
    outcome, norm = isinstance(algorithm.assign, Outcome), algorithm.norm
    worth, rows = in_symbols(algorithm.assign).rpartition(": ")[2], list[Row]()
    if outcome and any(isinstance(part, KlInReward) for part in algorithm.shape):
        worth, rows = "R_i", [("credit", "R_i = r_i + Σ_t r_t")]
    elif not outcome and norm is not None:
        worth, rows = "Â_it", [("credit", f"Â_it = {worth}")]
    if norm is not None:
        over = ", statistics over tokens" if norm.per_token or not outcome else ""
        worth = norm.formula(worth) + over
    if algorithm.balance is not None:
        rows.append(("balance", in_symbols(algorithm.balance)))
    return [("advantage", f"{'A_i' if outcome else 'A_it'} = {worth}"), *rows]


def _rewards(algorithm: Algorithm) -> list[Row]:
    lines = [in_symbols(part) for part in algorithm.shape]
    return [("reward", f"{'r_t' if line.startswith('r_t') else 'r'} ← {line}") for line in lines]


def lettered(algorithm: Algorithm, rules: Sequence[Controller]) -> Algorithm:
    """The algorithm with a letter in the place of each number that a rule moves; for printing only."""
    for rule in rules:
        if isinstance(rule, AdaptiveEntropy):
            algorithm = replace(algorithm, penalties=_lettered(algorithm.penalties, EntropyBonus, "c"))
        elif isinstance(rule, KlCoefficient):
            shape = _lettered(algorithm.shape, KlInReward, "β") if rule.place == "reward" else algorithm.shape
            kind = KlLoss if rule.place == "loss" else StepKl
            moved = algorithm.penalties if rule.place == "reward" else _lettered(algorithm.penalties, kind, "β")
            algorithm = replace(algorithm, shape=shape, penalties=moved)
        elif isinstance(rule, (IqrClip, ClipFraction)) and isinstance(algorithm.gate, Band):
            algorithm = replace(algorithm, gate=_lettered_band(algorithm.gate))
    return algorithm


def _lettered(
    parts: tuple[PartT, ...], kind: type[KlInReward | KlLoss | StepKl | EntropyBonus], letter: str
) -> tuple[PartT, ...]:
    return tuple(replace(part, coef=Letter(part.coef, letter)) if isinstance(part, kind) else part for part in parts)


def _lettered_band(gate: Any) -> Any:
    width = gate.high / gate.low
    return replace(gate, low=Letter(gate.low, "ε"), high=Letter(gate.high, "ε" if width == 1 else f"{width:g}ε"))


def rule_line(rule: Controller) -> str:
    """What an adaptive rule does after each step, with its constants; of an unknown one, its docstring's first sentence."""
    says: dict[type, Callable[[Any], str]] = {
        EmaStatistics: _ema, IqrClip: _iqr, ClipFraction: _clip_fraction, KlCoefficient: _kl, AdaptiveEntropy: _entropy,
    }  # fmt: skip
    known = says.get(type(rule))
    return f"{rule.name}: {first_sentence(rule)}" if known is None else known(rule)


def _ema(rule: EmaStatistics) -> str:
    new = f"{1 - rule.beta:g}"
    begin = "from 0, divided by 1 - β^n" if rule.bias_corrected else "from the first step's"
    order = "before it is used" if rule.update_first else "after it is used"
    return f"μ ← {rule.beta:g} μ + {new} mean, σ² ← {rule.beta:g} σ² + {new} variance of the step, {order}; {begin}"


def _iqr(rule: IqrClip) -> str:
    low, high = rule.bounds.low, rule.bounds.high
    return f"ε = clip({low:g} + {high - low:g} · IQR(A)/IQR_ref, {low:g}, {high:g}), IQR_ref of the first step with one"


def _clip_fraction(rule: ClipFraction) -> str:
    up, down, factor = f"{100 * rule.up:g} %", f"{100 * rule.down:g} %", f"{rule.factor:g}"
    moved = f"ε ← {factor} ε where more than {up} of the tokens are clipped, ε/{factor} where fewer than {down}"
    return f"{moved}; {_from(rule.start, rule.bounds)}"


def _kl(rule: KlCoefficient) -> str:
    how, begin = rule.rule, _from(rule.start, rule.bounds)
    if isinstance(how, Ziegler):
        return f"β ← β (1 + clip(KL/{how.target:g} - 1, -0.2, 0.2) n/{how.horizon:g}), KL per response; {begin}"
    if isinstance(how, PpoPenalty):
        return f"β ← 2β where KL > 1.5 · {how.target:g}, β/2 where KL < {how.target:g}/1.5, KL per token; {begin}"
    if isinstance(how, Trend):
        slopes = (
            f"the KL climbs by more than {how.kl_slope:g} a step, else β/{how.factor:g} where the reward climbs by no"
        )
        return f"β ← {how.factor:g} β where {slopes} more than {how.reward_slope:g}, over {how.window} steps; {begin}"
    return f"β: {first_sentence(how)} {begin}"


def _entropy(rule: AdaptiveEntropy) -> str:
    low = f"H {'<' if rule.strict else '≤'} {rule.target:g}"
    fall = f", else c - {rule.delta:g}" if rule.decrease else ""
    when = "before this step" if rule.same_step else "of the last step"
    used = "the new c" if rule.update_first or not rule.same_step else "the old c"
    acts = f"c acts while H ≤ {rule.target:g}" if rule.same_step else f"c acts while {low}"
    return f"c ← c + {rule.delta:g} where {low}{fall}, H {when}; {acts}, {used}; {_from(rule.start, rule.bounds)}"


def _from(start: float, bounds: Bounds) -> str:
    limits = f"within {bounds.low:g} to {bounds.high:g}" if bounds.high < math.inf else f"not below {bounds.low:g}"
    return f"from {start:g}, {limits}"
