"""The parts of the algorithm pages that come from code: formulas, parts, keys, worked examples, as Markdown.

Every function makes one block in the words of one language. `algorithm_pages` puts blocks where sources ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.controllers import AdaptiveEntropy
from partita.algo.explain import BASELINE, SLOTS, Subject, filling, shown, subject, value_at, yaml
from partita.algo.keys import AdaptiveEntropyConfig, AlgorithmKeys, CorrectionConfig
from partita.algo.objective import Row, in_symbols, objective
from partita.algo.presets import PRESETS
from partita.algo.sources import SOURCES
from partita.algo.tokens import Current
from partita.algo.trpo import natural_gradient_step
from partita.evals.estimators import maj_at_k, pass_at_k
from partita.ops.divergence import ESTIMATORS
from partita.records import Batch

AREAL = tuple(name for name in PRESETS if name.startswith("areal_"))
OWN = tuple(name for name in PRESETS if name not in AREAL)
AGGREGATIONS = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "prompt_token_mean",
)
REWARDS = ((1.0, 0.0, 0.0, 1.0), (0.2, 0.5, 0.9, 0.2), (0.7, 0.7, 0.7, 0.7))
ENTROPIES = (0.3, 0.19, 0.18, 0.25, 0.15, 0.2)
RATIOS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 3.5)
SYMBOLS = frozenset(
    ["clip", "mean", "sqrt", "log", "exp", "min", "max", "std", "var", "GAE", "IQR", "token", "prompt", "grpo", "GSPO", "DAPO",
     "REINFORCE", "Lite", "PPO", "TRL", "verl", "README", "SFT", "RFT", "DPO", "GRPO", "DeepSeekMath", "odds", "sign"]
)  # fmt: skip
"""What is written the same in every language."""


@dataclass(frozen=True)
class Words:
    """The words of a language: patterns that are replaced in their order; none for the language of the code."""

    phrases: Mapping[str, str] = field(default_factory=dict[str, str])

    def __call__(self, text: str) -> str:
        """The text in this language. Raises ValueError for a word that no phrase covers, so that none is forgotten."""
        if not self.phrases:
            return text
        said = text
        for english, translated in self.phrases.items():
            said = re.sub(english, translated, said)
        if left := [word for word in re.findall(r"(?<![\w_])[A-Za-z']{3,}(?![\w_])", said) if word not in SYMBOLS]:
            raise ValueError(f"no translation of {' '.join(left)} in {text!r}")
        return said


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    first = list(head)
    lines = [first, ["---"] * len(first), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Text in code quotes; nothing for nothing."""
    return f"`{text}`" if text else ""


def fenced(lines: Iterable[str]) -> str:
    """A block of lines that are set as they stand."""
    return "\n".join(["```", *lines, "```"])


def aligned(words: Words, rows: Iterable[Row]) -> list[str]:
    """Labels and lines, the lines below each other; a Chinese character is as wide as two letters."""
    said = [(words(label), words(line)) for label, line in rows]
    width = max(_width(label) for label, _ in said)
    return [label + " " * (width - _width(label) + 2) + line for label, line in said]


def _width(text: str) -> int:
    return sum(2 if "\u2e80" <= character <= "\uffef" else 1 for character in text)


def preset(words: Words, name: str) -> str:
    """Objective, source, parts and keys of a preset."""
    told, source = subject(name), SOURCES[name]
    title = f"[{source.title}]({source.url})" if source.url else source.title
    where = ", ".join(str(item) for item in (source.year, words(source.section)) if item)
    filled = fenced(aligned(words, objective(told.composed(), controllers(told.keys))))
    published = fenced(words(line) for line in source.formula)
    return "\n\n".join(
        [filled, f"{words('Source')}: {title}, {where}", published, _parts(words, told), _keys(words, told)]
    )


def _parts(words: Words, told: Subject) -> str:
    algorithm = told.in_letters()
    filled = [(slot, part) for slot in SLOTS for part in filling(algorithm, slot)]
    rows = ([slot, code(_named(part)), code(words(in_symbols(part)))] for slot, part in filled)
    return table(map(words, ("slot", "part", "formula")), rows)


def _named(part: object) -> str:
    return type(part).__name__ if is_dataclass(part) else shown(part)


def _keys(words: Words, told: Subject) -> str:
    """Every key that the preset sets or its source gives: its value here, in grpo, by default, and in the source."""
    published = {item.key: item for item in SOURCES[told.title].values}
    sides, rows = (told.keys, subject(BASELINE).keys, AlgorithmKeys()), list[list[str]]()
    for path in dict.fromkeys([*_paths(told), *published]):
        item = published.get(path)
        paper = f"{code(yaml(item.value))} ({words(item.where)})" if item else ""
        known = path.startswith("actor.") and hasattr(AlgorithmKeys(), path.split(".")[1])
        here = told.beside.get(path)
        values = (
            [yaml(value_at(side, path)) for side in sides] if known else ["" if here is None else yaml(here), "", ""]
        )
        rows.append([code(path.removeprefix("actor.") if known else path), *map(code, values), paper])
    return table(map(words, ("key", "here", "in grpo", "default", "source")), rows)


def _paths(told: Subject) -> Iterator[str]:
    """The preset's keys, sections of `actor` opened."""
    yield from told.beside
    for path, value in (told.given or {}).items():
        opened = isinstance(value, Mapping)
        yield from (f"{path}.{below}" for below in _leaves(value)) if opened else (path,)


def _leaves(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield from (f"{name}.{below}" for below in _leaves(value)) if isinstance(value, Mapping) else (name,)


def example(words: Words, *names: str) -> str:
    """The same rewards as advantages, by preset."""
    head = [words("rewards"), *(code(" ".join(f"{reward:g}" for reward in group)) for group in REWARDS)]
    rows = [[code(name), *(code(numbers(group.tolist())) for group in advantages(name).view(3, 4))] for name in names]
    return table(head, rows)


def advantages(name: str) -> Tensor:
    """[S] what a preset makes of `REWARDS`, in the first step, on policy, with the reference's own log-probs."""
    algorithm, batch = subject(name).composed(), _one_token_samples(torch.tensor(REWARDS, dtype=torch.float64))
    rules = Controls(controllers(subject(name).keys))
    rules.observe("before_credit", algorithm.statistics(batch))
    advantages_T = rules.apply(algorithm).credit(batch).advantages_T
    assert advantages_T is not None
    return advantages_T


def _one_token_samples(reward_PK: Tensor) -> Batch:
    prompts, samples = reward_PK.shape
    zero_T = torch.zeros(prompts * samples, dtype=torch.float64)
    no_S = zero_T.bool()
    return Batch(
        seq_T=torch.arange(prompts * samples),
        prompt_S=torch.arange(prompts).repeat_interleave(samples),
        reward_S=reward_PK.flatten(),
        truncated_S=no_S,
        valid_S=~no_S,
        prox_T=zero_T,
        ref_T=zero_T,
        behaviour_T=zero_T,
    )


def numbers(values: Iterable[float], digits: int = 3) -> str:
    """Numbers with as many digits, a space between them."""
    rounded = (round(value, digits) + 0.0 for value in values)  # no -0
    return " ".join(f"{value:.{digits}f}" for value in rounded)


def gates(words: Words) -> str:
    """What a gate leaves of a token's push: the factor of A ∇ log π at some ratios, for both signs of the advantage."""
    rows: list[list[str]] = []
    for name in ("ppo", "dapo", "sapo", "cispo", "decoupled_clip", "reinforce"):
        for sign in (1.0, -1.0):
            left = _coefficients(subject(name).composed(), sign)
            rows.append([code(name), "A > 0" if sign > 0 else "A < 0", *(numbers([value], 2) for value in left)])
    return table([words("preset"), "", *(f"ρ = {ratio:g}" for ratio in RATIOS)], rows)


def _coefficients(algorithm: Algorithm, sign: float) -> list[float]:
    """The gradient coefficients of one-token samples at `RATIOS`, in units of the advantage."""
    alone = replace(algorithm, penalties=(), correct=(), balance=None)
    batch = _one_token_samples(torch.zeros(len(RATIOS), 1, dtype=torch.float64))
    batch = batch.with_(advantages_T=torch.full_like(batch.reward_S, sign), weight_T=torch.ones_like(batch.reward_S))
    current = Current(torch.log(torch.tensor(RATIOS, dtype=torch.float64)))
    return [value * sign for value in alone.gradient_coefficients(batch, current).tolist()]


def compare(words: Words) -> str:
    """What each preset is made of, in the parts' own formulas."""
    rows: list[list[str]] = []
    for name in OWN:
        told = subject(name)
        algorithm, lines = told.in_letters(), dict(objective(told.composed(), controllers(told.keys)))
        advantage = lines["advantage"].partition(" = ")[2].removesuffix(", statistics over tokens")
        kl = [line for line in map(in_symbols, (*algorithm.shape, *algorithm.penalties)) if "‖" in line]
        ratio = in_symbols(algorithm.ratio).removeprefix("ρ_it = ").removesuffix(": no ratio")
        made = [advantage, in_symbols(algorithm.reduce), ratio, in_symbols(algorithm.gate), "; ".join(kl)]
        rows.append([f"[{name}](algorithms/{page_of(name)}.md)", *(code(words(cell)) for cell in made)])
    return table(map(words, ("preset", "advantage", "sums", "ratio ρ", "gate", "KL")), rows)


def page_of(name: str) -> str:
    """The page on which a preset is explained."""
    return "areal" if name in AREAL else {"ppo_penalty": "ppo", "online_rft": "rft"}.get(name, name)


def all_keys(words: Words) -> str:
    """One row per algorithm key: its default, and each preset that sets it, with the value."""
    rows: list[list[str]] = []
    for item in fields(AlgorithmKeys):
        users = [f"{user} {code(yaml(given[item.name]))}" for user, given in PRESETS.items() if item.name in given]
        rows.append([code(item.name), code(yaml(getattr(AlgorithmKeys(), item.name))), ", ".join(users)])
    return table(map(words, ("key", "default", "set by")), rows)


def matrix(words: Words) -> str:
    """AReaL's matrix as presets: the columns that tell the rows apart."""
    paths = [f"actor.adv_norm.{name}" for name in ("mean_level", "std_level", "mean_leave1out")]
    paths += [f"actor.{name}" for name in ("importance_sampling_level", "use_decoupled_loss", "eps_clip_higher")]
    rows = [[code(name), *(code(yaml(value_at(subject(name).keys, path))) for path in paths)] for name in AREAL]
    return table([words("preset"), *(code(path.removeprefix("actor.")) for path in paths)], rows)


def matrix_formulas(words: Words) -> str:
    """The objective of every row of the matrix."""
    lines: list[str] = []
    for name in AREAL:
        lines += [name, *(f"  {line}" for line in aligned(words, objective(subject(name).composed()))), ""]
    return fenced(lines[:-1])


def corrections(words: Words) -> str:
    """What each kind of correction does with its defaults."""
    given: list[tuple[str, AlgorithmKeys]] = [("use_decoupled_loss: true", AlgorithmKeys(use_decoupled_loss=True))]
    for kind, level in (
        ("decoupled", None), ("tis", None), ("tis", "sequence"), ("icepop", None), ("mis", None), ("mis", "sequence"),
        ("opsm", None), ("m2po", None),
    ):  # fmt: skip
        named = f"kind: {kind}" + (f", level: {level}" if level else "")
        given.append((f"correction: {{{named}}}", AlgorithmKeys(correction=CorrectionConfig(kind=kind, level=level))))
    rows: list[list[str]] = []
    for key, keys in given:
        for part in compose(keys, n_samples=8, max_new_tokens=1024).correct:
            rows.append([code(key), code(_named(part)), code(words(in_symbols(part)))])
    return table(map(words, ("key", "part", "formula")), rows)


def aggregations(words: Words) -> str:
    """Each `loss_agg_mode`: its sums, its part, and the presets that use it."""
    rows: list[list[str]] = []
    for mode in AGGREGATIONS:
        part = compose(AlgorithmKeys(loss_agg_mode=mode), n_samples=8, max_new_tokens=1024).reduce
        users = [code(name) for name in OWN if subject(name).keys.loss_agg_mode == mode]
        rows.append([code(mode), code(in_symbols(part)), code(_named(part)), ", ".join(users)])
    return table([code("loss_agg_mode"), *map(words, ("sums", "part", "presets"))], rows)


def kl_gradients(words: Words) -> str:
    """Expected gradients of the estimators with respect to three logits, enumerated, beside the true ones."""
    rows = [
        ["KL(π ‖ π_ref)", _gradient(lambda p, d: (p * d).sum()), ""],
        ["KL(π_ref ‖ π)", _gradient(lambda p, d: -(p.detach() * torch.exp(-d.detach()) * d).sum()), ""],
    ]
    for name, of in ESTIMATORS.items():
        in_loss = _gradient(lambda p, d, of=of: (p.detach() * of(d)).sum())
        in_reward = _gradient(lambda p, d, of=of: (p * of(d).detach()).sum())
        rows.append([code(name), in_loss, "" if name == "k3_value_k2_grad" else in_reward])
    return table(["", words("in the loss"), words("in the reward")], rows)


def _gradient(of: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Of a function of the probabilities and of d = log π - log π_ref, for one small policy and reference."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([0.0, 0.4, -0.1], dtype=torch.float64), 0)
    log_p = torch.log_softmax(logits, 0)
    (grad,) = torch.autograd.grad(of(log_p.exp(), log_p - ref), logits)
    return code(numbers(grad.tolist()))


def trpo(words: Words) -> str:
    """TRPO's step for three actions."""
    logits, gains = torch.tensor([0.2, -0.1, 0.4]).double(), torch.tensor([1.0, -0.5, 0.0]).double()
    step = natural_gradient_step(logits, gains, delta=0.01)
    vectors = (("z", logits), ("A", gains), ("g", step.gradient_V), ("x", step.step_V))
    found = (
        ("½ xᵀFx", step.quadratic_kl),
        ("KL(old ‖ new)", step.exact_kl),
        ("E_new[A] - E_old[A]", step.surrogate_gain),
    )
    rows = [(name, numbers(values.tolist(), 4)) for name, values in vectors]
    return fenced(aligned(Words(), [*rows, *((name, numbers([float(value)], 6)) for name, value in found)]))


def entropy_forms(words: Words) -> str:
    """The coefficient that acts in each of six steps, by the known forms of the entropy rule."""
    code_form = AdaptiveEntropyConfig(gate="previous_step", strict=True, delta=1e-4, max=0.005)
    forms = (
        AdaptiveEntropyConfig(), AdaptiveEntropyConfig(decrease=False, update_first=True, strict=True), code_form,
        AdaptiveEntropyConfig(gate="previous_step"),
    )  # fmt: skip
    rows = [[code(f"adaptive_entropy: {_changed(form)}"), *map(code, _applied(form))] for form in forms]
    return table([words("H"), *(f"{entropy:.2f}" for entropy in ENTROPIES)], rows)


def _changed(form: AdaptiveEntropyConfig) -> str:
    default = AdaptiveEntropyConfig()
    changed = {item.name: getattr(form, item.name) for item in fields(form)}
    return yaml({name: value for name, value in changed.items() if value != getattr(default, name)})


def _applied(form: AdaptiveEntropyConfig) -> list[str]:
    """What the rule lets through in each step: its entropy is known before it, or only after it."""
    (rule,) = controllers(AlgorithmKeys(adaptive_entropy=form))
    assert isinstance(rule, AdaptiveEntropy)
    found: list[str] = []
    for entropy in ENTROPIES:
        if rule.same_step:
            rule.observe({"old_entropy": entropy})
        found.append(f"{rule.applied:g}")
        if not rule.same_step:
            rule.observe({"entropy": entropy})
    return found


def pass_at(words: Words) -> str:
    """pass@k of eight samples, by how many are right."""
    sizes = (1, 2, 4, 8)
    rows = [[f"{right}", *(numbers([pass_at_k(8, right, k)]) for k in sizes)] for right in (0, 1, 3, 8)]
    return table([words("right of 8"), *(f"pass@{k}" for k in sizes)], rows)


def maj_at(words: Words) -> str:
    """maj@k of six answers, by the answer that counts as right."""
    answers, sizes = ("7", "7", "9", "7", "3", "9"), (1, 2, 3, 4, 6)
    rows = [[code(gold), *(numbers([maj_at_k(answers, gold, k)]) for k in sizes)] for gold in ("7", "9", "3")]
    return table([words("right answer"), *(f"maj@{k}" for k in sizes)], rows)
