"""Every option of every key changes a number: none is accepted, stored and not passed on.

A key is named by its path. Its options are tried in a context where they can act, and each must give other numbers than
every other one: advantages, weights, loss, gradient, the critic's loss, the groups that are kept, or what the rules make
of them over six steps.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from properties.batches import BUDGET, moved, random_batch, step, weighed

from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.gate import GATES
from partita.algo.keys import AlgorithmKeys
from partita.config import load_config

CENTRED = {"adv_norm.mean_level": "group", "adv_norm.std_level": None}
GAE = {"credit": "gae"}
EMA = {"adv_norm.mean_level": "ema", "adv_norm.std_level": "ema"}
REWARD = {"reward_norm.mean_level": "group", "reward_norm.std_level": "batch"}
REWARD_EMA = {"reward_norm.mean_level": "ema", "reward_norm.std_level": "ema"}
SOFT = {**CENTRED, "use_sapo_loss": True}
IN_REWARD, IN_LOSS, OF_STEP = {"kl_ctl": 0.1}, {"kl_loss_coef": 0.1}, {"kl_penalty_coef": 0.1}
SEQUENCES = {**CENTRED, "loss_agg_mode": "seq_mean_token_mean"}
FRACTION = {**CENTRED, "eps_clip_rule.type": "clip_fraction"}
TREND = {**IN_LOSS, "kl_controller.type": "trend", "kl_controller.window": 2}
BONUS = {"adaptive_entropy.start": 0.01}

# ---- keys with a list of options: the context in which all of them (or the ones named) can act
ENUMERATED: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("kl_estimator", IN_REWARD, ()),
    ("credit", {"adv_norm.mean_level": "batch"}, ()),
    ("truncation", CENTRED, ()),
    ("importance_sampling_level", GAE, ()),  # with one advantage for a sequence two of them are the same
    ("gate", CENTRED, tuple(GATES)),
    ("prox_logp_method", CENTRED, ()),
    ("loss_agg_mode", CENTRED, ()),
    ("kl_penalty_estimator", OF_STEP, ()),
    ("kl_loss_estimator", IN_LOSS, ()),
    ("adv_norm.mean_level", {"adv_norm.std_level": None}, ("batch", "group", "ema", None)),
    ("adv_norm.std_level", {"adv_norm.mean_level": None}, ("batch", "group", "ema", None)),
    ("adv_norm.unit", {}, ("sequence", "token")),
    ("adv_norm.eps_mode", {"adv_norm.eps": 0.1}, ()),
    ("adv_norm.std_of", {"adv_norm.mean_level": "group"}, ()),
    ("adv_norm.singleton", CENTRED, ()),
    ("adv_norm.ema.order", EMA, ()),
    ("adv_norm.ema.init", EMA, ()),
    ("reward_norm.mean_level", {"reward_norm.std_level": None}, ("batch", "group", "ema", None)),
    ("reward_norm.std_level", {"reward_norm.mean_level": None}, ("batch", "group", "ema", None)),
    ("reward_norm.eps_mode", {"reward_norm.eps": 0.1}, ()),
    ("reward_norm.std_of", REWARD, ()),
    ("reward_norm.singleton", REWARD, ()),
    ("reward_norm.ema.order", REWARD_EMA, ()),
    ("reward_norm.ema.init", REWARD_EMA, ()),
    ("balance.mode", CENTRED, ()),
    ("eps_clip_rule.type", CENTRED, ()),
    ("correction.kind", CENTRED, ()),
    ("correction.level", {**CENTRED, "correction.kind": "tis"}, ("token", "sequence")),
    ("correction.level", {**CENTRED, "correction.kind": "decoupled", "correction.high": 1.5}, ("token", "sequence")),
    ("correction.level", {**CENTRED, "correction.kind": "mis", "correction.low": 0.7, "correction.high": 1.4},
     ("geometric", "sequence")),
    ("correction.action", {**CENTRED, "correction.kind": "decoupled", "correction.high": 1.5}, ()),
    *[("correction.denominator", {**CENTRED, "correction.kind": kind}, ()) for kind in ("icepop", "m2po")],
    ("correction.denominator", {**CENTRED, "correction.kind": "mis", "correction.low": 0.7, "correction.high": 1.4}, ()),
    ("correction.denominator", {**CENTRED, "correction.kind": "decoupled", "correction.high": 1.5, "correction.action": "mask"},
     ()),
    ("kl_controller.type", IN_LOSS, ("fixed", "ziegler", "penalty", "trend")),
    ("kl_controller.type", OF_STEP, ("fixed", "penalty", "trend")),
    ("adaptive_entropy.gate", BONUS, ()),
    ("dynamic_sampling.filter", {}, ()),
]  # fmt: skip

# ---- keys with a number or a switch: some values, the first of them the default in that context
VALUED: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("reward_threshold", {}, [None, 1.0, 0.5]),
    ("overlong_reward_penalty", {}, [False, True]),
    ("overlong_tokens", {"overlong_reward_penalty": True}, [None, 2, 3]),
    ("overlong_penalty_factor", {"overlong_reward_penalty": True}, [1.0, 0.5]),
    ("reward_bias", {}, [0.0, 0.5]),
    ("reward_scaling", {}, [1.0, 2.0]),
    ("reward_clip", {}, [None, 0.4]),
    ("reward_norm_per_part", REWARD, [False, True]),
    ("kl_ctl", {}, [0.0, 0.1, 0.2]),
    ("discount", GAE, [1.0, 0.9]),
    ("discount", {"credit": "reward_to_go"}, [1.0, 0.9]),
    ("gae_lambda", GAE, [1.0, 0.9, 0.0]),
    ("bootstrap_truncated", GAE, [False, True]),
    ("value_eps_clip", GAE, [None, 0.1]),
    ("value_loss_half", GAE, [True, False]),
    ("max_staleness", CENTRED, [None, 1, 0]),
    ("eps_clip", CENTRED, [0.2, 0.1]),
    ("eps_clip_higher", CENTRED, [None, 0.1, 0.4]),
    ("c_clip", CENTRED, [None, 1.1]),
    ("use_sapo_loss", CENTRED, [False, True]),
    ("sapo_tau_pos", SOFT, [1.0, 2.0]),
    ("sapo_tau_neg", SOFT, [1.05, 2.0]),
    ("recompute_logprob", CENTRED, [True, False]),
    ("use_decoupled_loss", CENTRED, [False, True]),
    ("loss_agg_constant", {**CENTRED, "loss_agg_mode": "seq_mean_token_sum_norm"}, [None, 3.0]),
    ("count_empty_rows", SEQUENCES, [True, False]),
    ("kl_penalty_coef", {}, [0.0, 0.1]),
    ("kl_loss_coef", {}, [0.0, 0.1]),
    ("kl_loss_importance_corrected", IN_LOSS, [False, True]),
    ("entropy_coef", {}, [0.0, 0.1, -0.1]),
    *[(f"{place}.{name}", context, values) for place in ("adv_norm", "reward_norm") for name, context, values in (
        ("mean_leave1out", {f"{place}.mean_level": "group"}, [False, True]),
        ("std_unbiased", {}, [True, False]),
        ("eps", {}, [1e-5, 0.1]),
        ("ema.beta", {f"{place}.mean_level": "ema"}, [0.9, 0.5]),
    )],
    ("dynamic_sampling.max_batches", {}, [10, 3]),
    ("dynamic_sampling.correct_threshold", {}, [1.0, 0.5]),
    *[("balance.positive_fraction", {**CENTRED, "balance.mode": mode}, [0.5, 0.2]) for mode in ("reweight", "downsample")],
    ("eps_clip_rule.min", CENTRED, [0.1, 0.05]),
    ("eps_clip_rule.max", CENTRED, [0.3, 0.4]),
    ("eps_clip_rule.up", FRACTION, [0.1, 0.5]),
    ("eps_clip_rule.down", FRACTION, [0.01, 0.001]),
    ("eps_clip_rule.factor", FRACTION, [1.1, 1.5]),
    ("eps_clip_rule.reference", CENTRED, [None, 2.0]),
    *[(f"correction.{name}", {**CENTRED, "correction.kind": kind}, [None, value]) for kind, name, value in (
        ("decoupled", "high", 2.0), ("tis", "high", 1.2), ("icepop", "low", 0.8), ("icepop", "high", 1.2),
        ("mis", "low", 0.5), ("mis", "high", 2.0), ("opsm", "threshold", 2.0), ("m2po", "threshold", 1.0),
    )],
    ("kl_controller.target", IN_LOSS, [None, 1.0]),
    ("kl_controller.target", {**OF_STEP, "kl_controller.type": "penalty"}, [None, 0.04]),
    ("kl_controller.horizon", IN_LOSS, [10000, 100]),
    ("kl_controller.min", TREND, [1e-5, 0.09]),
    ("kl_controller.max", TREND, [100.0, 0.12]),
    ("kl_controller.window", {**TREND, "kl_controller.kl_slope": 0.05}, [4, 2, 3]),
    ("kl_controller.kl_slope", TREND, [0.002, 0.5]),
    ("kl_controller.reward_slope", TREND, [0.0, 0.5]),
    ("kl_controller.factor", TREND, [1.5, 3.0]),
    ("adaptive_entropy.target", BONUS, [0.2, 0.15]),
    ("adaptive_entropy.delta", BONUS, [0.005, 0.002]),
    ("adaptive_entropy.decrease", BONUS, [True, False]),
    ("adaptive_entropy.update_first", BONUS, [False, True]),
    ("adaptive_entropy.strict", BONUS, [False, True]),
    ("adaptive_entropy.min", BONUS, [0.0, 0.009]),
    ("adaptive_entropy.max", BONUS, [1.0, 0.012]),
    ("adaptive_entropy.start", {}, [0.0, 0.01]),
]  # fmt: skip
ELSEWHERE = {
    "mixed_group_retry": "the rollouts sample again",
    "adv_norm.group_size": "it is compared with gconfig.n_samples",
    "reward_norm.group_size": "it is compared with gconfig.n_samples",
    "reward_norm.unit": "a reward is one number per sequence: `token` is refused",
    "dynamic_sampling.oversample": "the rollouts start more groups",
    "dynamic_sampling.surplus_steps": "the rollouts keep groups for the next step",
    "dynamic_sampling.on_limit": "the rollouts end the run, or the step",
}
"""Keys that no part of an algorithm holds, or that have one option only."""

GROUPS = [torch.tensor(group) for group in ([1.0, 1.0], [0.0, 1.0], [0.2, 0.6], [0.2, 0.2], [-1.0, 2.0])]
SERIES = {
    "advantage/iqr": (1.0, 0.5, 2.0, 0.1, 0.1, 0.1),
    "old_entropy": (0.3, 0.1, 0.2, 0.18, 0.1, 0.3),
    "entropy": (0.25, 0.12, 0.2, 0.1, 0.1, 0.1),
    "clip_fraction": (0.2, 0.005, 0.3, 0.02, 0.02, 0.02),
    "kl_step/k3": (0.02, 0.5, 0.001, 0.02, 0.2, 0.2),
    "kl_after/k3": (0.03, 0.5, 0.001, 0.03, 0.2, 0.2),
    "kl_ref/k3": (0.2, 0.1, 0.1, 0.3, 0.5, 0.5),
    "kl_ref/sequence": (2.0, 9.0, 4.0, 1.0, 1.0, 1.0),
    "samples": (64.0,) * 6,
    "reward/mean": (0.1, 0.1, 0.2, 0.2, 0.5, 0.5),
}
SCRIPT = [dict(zip(SERIES, step_of, strict=True)) for step_of in zip(*SERIES.values(), strict=True)]
"""Metrics of six steps in which every rule is pushed both ways."""


def batches():
    """Two steps of other rewards; the sampler is far from the trainer, so that caps are reached."""
    for seed, rewards in ((0, [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5]), (1, [0.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0])):
        batch = random_batch(seed)
        away_T = 40 * (batch.behaviour_T - batch.prox_T)
        version_T = torch.tensor([5, 4, 3, 5, 5, 4, 5])[batch.seq_T]
        yield batch.with_(behaviour_T=batch.prox_T + away_T, reward_S=torch.tensor(rewards), version_T=version_T)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths as a tree; the path of a section that is named by a key below it switches it on."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *sections, name = path.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return tree


def keys_with(flat: dict[str, Any]) -> AlgorithmKeys:
    return load_config(AlgorithmKeys, base_tree=nested(flat)).value


def numbers(keys: AlgorithmKeys) -> tuple[float, ...]:
    """Everything that the keys have an effect on, over the steps of the script."""
    composed = compose(keys, n_samples=4, max_new_tokens=BUDGET, part_weights=(1.0, 0.5))
    controls = Controls(controllers(keys))
    found = [float(composed.keep(group)) for group in GROUPS] + [float(composed.keep.max_batches)]
    steps = SCRIPT if controls.controllers else SCRIPT[:1]
    two = list(batches())
    for index, metrics in enumerate(steps):
        batch = two[index % 2]
        controls.observe("before_credit", composed.statistics(batch))
        controls.observe("after_credit", metrics)
        algorithm = controls.apply(composed)
        batch = weighed(algorithm, batch)
        value, gradient_T = step(algorithm, batch, moved(batch, spread=0.5))
        found += [
            *batch.advantages_T.tolist(),
            *batch.weight_T.tolist(),
            float(value.value.detach()),
            *gradient_T.tolist(),
        ]
        if algorithm.value is not None:
            found.append(float(algorithm.value_loss(batch, batch.values_T + 0.3).value.detach()))
        controls.observe("after_epochs", metrics)
    return tuple(round(number, 9) for number in found)


def cases() -> Iterator[Any]:
    for path, context, named in ENUMERATED:
        yield pytest.param(path, context, named or options(path), id=f"{path} in {context}")
    for path, context, values in VALUED:
        yield pytest.param(path, context, values, id=f"{path} in {context}")


def hint_of(path: str) -> Any:
    """The type of a key."""
    section: Any = AlgorithmKeys
    for name in path.split("."):
        hint = get_type_hints(section)[name]
        section = next((kind for kind in (*get_args(hint), hint) if is_dataclass(kind)), None)
    return hint


def options(path: str) -> tuple[Any, ...]:
    """What a key's type lists, without null; nothing for a number, a switch or a name."""
    hint = hint_of(path)
    kinds = [hint] if get_origin(hint) is Literal else [kind for kind in get_args(hint) if get_origin(kind) is Literal]
    return tuple(value for kind in kinds for value in get_args(kind))


def paths(section: Any = AlgorithmKeys, prefix: str = "") -> Iterator[str]:
    for item in fields(section):
        hint = get_type_hints(section)[item.name]
        below = next((kind for kind in (*get_args(hint), hint) if is_dataclass(kind)), None)
        if below is None:
            yield prefix + item.name
        else:
            yield from paths(below, f"{prefix}{item.name}.")


@pytest.mark.slow
@pytest.mark.parametrize(("path", "context", "values"), list(cases()))
def test_each_value_gives_other_numbers_than_every_other(path, context, values):
    found = {}
    for value in values:
        found.setdefault(numbers(keys_with({**context, path: value})), []).append(value)
    assert [alike for alike in found.values() if len(alike) > 1] == []
    assert len(values) > 1


def test_every_key_and_every_option_is_tried():
    tried: dict[str, set[Any]] = {}
    for path, _, named in ENUMERATED:
        tried.setdefault(path, set()).update(named or options(path))
    for path, _, values in VALUED:
        tried.setdefault(path, set()).update(values)
    assert set(paths()) == set(tried) | set(ELSEWHERE)
    for path in tried:
        assert set(options(path)) <= tried[path], path
        if NoneType in get_args(hint_of(path)) and not options(path):
            assert None in tried[path], path


@pytest.mark.parametrize(
    ("path", "context", "meant"),
    [
        ("adv_norm.unit", {}, "sequence"),
        ("adv_norm.unit", GAE, "token"),
        ("adv_norm.unit", {"credit": "reward_to_go"}, "token"),
        ("correction.level", {**CENTRED, "correction.kind": "tis"}, "token"),
        ("correction.level", {**CENTRED, "correction.kind": "icepop"}, "token"),
        ("correction.level", {**CENTRED, "correction.kind": "mis"}, "geometric"),
        ("correction.high", {**CENTRED, "correction.kind": "tis"}, 2.0),
        ("kl_controller.target", IN_LOSS, 6.0),
        ("kl_controller.target", {**OF_STEP, "kl_controller.type": "penalty"}, 0.01),
        ("overlong_tokens", {"overlong_reward_penalty": True}, 1),
        ("loss_agg_constant", {"loss_agg_mode": "seq_mean_token_sum_norm"}, float(BUDGET)),
        ("eps_clip_higher", {}, 0.2),
    ],
)
def test_null_means_one_of_the_others_only_where_it_says_so(path, context, meant):
    assert numbers(keys_with({**context, path: None})) == numbers(keys_with({**context, path: meant}))


def test_two_words_for_one_gate():
    assert numbers(keys_with({**CENTRED, "use_sapo_loss": True})) == numbers(keys_with({**CENTRED, "gate": "soft"}))
