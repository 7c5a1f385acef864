"""Cases over steps of a run: controllers, running statistics, phases and the room for new rollouts.

Left out: maths. A rule is made of configuration keys, sees the metrics that the case has, and its value is read from the
algorithm that it was applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from conforming.case import Case, Unknown
from conforming.keys import algorithm_of
from conforming.variants import variant_of

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.controllers import EmaStatistics
from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    ClipRuleConfig,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)  # fmt: skip
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.records import Batch
from partita.rollout.budget import capacity
from partita.stages import StageConfig, UntilConfig, stage_at

INF = float("inf")
LENGTH = "gconfig.max_new_tokens"
ENTROPY_RULES: dict[str, dict[str, Any]] = {
    "seed_blog_never_decreases": {"decrease": False, "strict": True, "update_first": True},
    "report_style_up_down_same_step": {},
    "skywork_released_code_prev_step_gate": {"gate": "previous_step", "strict": True, "delta": 1e-4, "max": 5e-3},
    "trl_prev_step_gate": {"gate": "previous_step"},
}
"""Rules by the names that cases give them; what a case's configuration says goes before."""


def follow(
    keys: AlgorithmKeys, steps: Sequence[Mapping[str, float]], read: Callable[[Algorithm], float], after: bool
) -> list[float]:
    """The value that each step has (or leaves, `after`), read from the algorithm after the rules were applied to it."""
    start = compose(keys, n_samples=2, max_new_tokens=1)
    controls = Controls(controllers(keys))
    found: list[float] = []
    for metrics in steps:
        controls.observe("before_credit", metrics)
        controls.observe("after_credit", metrics)
        used = read(controls.apply(start))
        controls.observe("after_epochs", metrics)
        found.append(read(controls.apply(start)) if after else used)
    return found


def coefficient(kind: type[EntropyBonus | KlLoss | StepKl]) -> Callable[[Algorithm], float]:
    return lambda parts: next(part.coef for part in parts.penalties if isinstance(part, kind))


def entropy_rule(case: Case, name: str) -> list[float]:
    if name not in ENTROPY_RULES:
        raise Unknown(f"expected.{name}: choices are {', '.join(ENTROPY_RULES)}")
    given = ENTROPY_RULES[name]
    names = {"target": "target", "delta": "delta", "c0": "start", "start": "start", "c_min": "min", "c_max": "max"}
    own = {ours: case.config.get(theirs) for theirs, ours in names.items() if theirs in case.config}
    if name.startswith("skywork"):  # the released scripts have a step and a cap of their own
        own = {key: value for key, value in own.items() if key not in ("delta", "max")}
    keys = AlgorithmKeys(adaptive_entropy=AdaptiveEntropyConfig(**(given | own)))
    steps = [{"old_entropy": entropy, "entropy": entropy} for entropy in case.inputs["entropy"]]
    return follow(keys, steps, coefficient(EntropyBonus), after=False)


def kl_rule(case: Case) -> list[float]:
    """Ziegler's proportional rule, PPO's halving and doubling, or the trend rule: known by their settings."""
    config, kl = case.config, case.inputs["kl"]
    bounds = {"min": config.get("beta_min", 1e-300), "max": config.get("beta_max", INF)}
    if "horizon" in config:
        rule = KlControllerConfig("ziegler", target=config["target"], horizon=config["horizon"], **bounds)
        samples = case.inputs.get("n_steps", config.get("n_steps", 1))
        counts = samples if isinstance(samples, list) else [samples] * len(kl)
        steps = [{"kl_ref/sequence": value, "samples": count} for value, count in zip(kl, counts, strict=True)]
        keys = AlgorithmKeys(kl_loss_coef=config["beta0"], kl_controller=rule)
        return follow(keys, steps, coefficient(KlLoss), after=True)
    if "d_targ" in config:
        rule = KlControllerConfig("penalty", target=config["d_targ"], **bounds)
        keys = AlgorithmKeys(gate="open", kl_penalty_coef=config["beta0"], kl_controller=rule)
        return follow(keys, [{"kl_after/k3": value} for value in kl], coefficient(StepKl), after=True)
    rule = KlControllerConfig(
        "trend", window=config["window"], kl_slope=config["kl_slope_hi"], reward_slope=config["reward_slope_lo"],
        factor=config["factor"], **bounds,
    )  # fmt: skip
    rewards = case.inputs["reward"]
    steps = [{"kl_ref/k3": value, "reward/mean": reward} for value, reward in zip(kl, rewards, strict=True)]
    keys = AlgorithmKeys(kl_loss_coef=config["beta0"], kl_controller=rule)
    return follow(keys, steps, coefficient(KlLoss), after=True)


def room_below(parts: Algorithm) -> float:
    return parts.gate.low  # pyright: ignore[reportAttributeAccessIssue]


def clip_fraction_rule(case: Case) -> list[float]:
    config = case.config
    low, high = config.get("eps_min", 0.1), config.get("eps_max", 0.4)
    rule = ClipRuleConfig("clip_fraction", low, high, config["up"], config["down"], config["factor"])
    steps = [{"clip_fraction": value} for value in case.inputs["clip_fraction"]]
    return follow(AlgorithmKeys(eps_clip=config["eps0"], eps_clip_rule=rule), steps, room_below, after=True)


def rows_alone(values: Sequence[float], **streams: Any) -> Batch:
    """Samples of one token each, all of one prompt."""
    rows = torch.arange(len(values))
    no = torch.zeros(len(values), dtype=torch.bool)
    reward_S = torch.tensor(values, dtype=torch.float64)
    return Batch(rows, torch.zeros_like(rows), reward_S, no, ~no, **streams)


def iqr_rule(case: Case, name: str) -> list[float]:
    config = case.config
    rule = ClipRuleConfig("iqr", config["eps_min"], config["eps_max"])
    keys = AlgorithmKeys(eps_clip=config["eps_max"], eps_clip_rule=rule)
    parts = compose(keys, n_samples=2, max_new_tokens=1)
    spread: list[float] = []
    for batch in case.inputs["advantage_batches"]:
        advantages = torch.tensor(batch, dtype=torch.float64)
        stat = parts.credit_stats(rows_alone(batch, score_S=advantages, advantages_T=advantages))["advantage/iqr"]
        spread.append(float(stat.sum / stat.count))
    if name == "iqr":
        return spread
    if name != "eps":
        raise Unknown(f"expected.{name}: choices are iqr, eps")
    return follow(keys, [{"advantage/iqr": value} for value in spread], room_below, after=False)


def running_statistics(case: Case, name: str) -> dict[str, Any]:
    """Batches normalised by running statistics; a variant names the order and the start."""
    config = case.but(**variant_of(name)[0]).config
    if config.get("var_ddof", 0) != 0:
        raise Unknown("config.var_ddof: the running variance divides by n")
    mode = config.choice("eps_mode", {"inside_sqrt": "inside_sqrt", "add_to_std": "add", "add": "add"}, "inside_sqrt")
    ema = EmaConfig(config.get("beta", 0.9), config.get("order", "update_then_use"), config.get("init", "first_batch"))
    keys = AlgorithmKeys(adv_norm=NormConfig("ema", "ema", eps=config.get("eps", 1e-6), eps_mode=mode, ema=ema))
    parts = compose(keys, n_samples=2, max_new_tokens=1)
    controls = Controls(controllers(keys))
    found: dict[str, Any] = {"advantages": [], "state_after": []}
    for rewards in case.inputs["reward_batches"]:
        batch = rows_alone(rewards)
        controls.observe("before_credit", parts.statistics(batch))
        found["advantages"].append(controls.apply(parts).credit(batch).advantages_T)
        state = controls.state_dict()["ema_adv_norm"]
        found["state_after"].append([state["mean"], state["variance"]])
    return found


def frozen_statistics(case: Case) -> torch.Tensor:
    """Group means over a running variance that is given."""
    rewards, variance = case.inputs["rewards"], case.inputs["ema_var"]
    parts = algorithm_of(case, len(rewards), 1)
    rule = EmaStatistics("adv_norm")
    mean = case.inputs.get("ema_mean", 0.0)
    seen = {"batches": 1.0, "mean": mean, "variance": variance, "used_mean": mean, "used_variance": variance}
    rule.load_state_dict(seen)
    groups = {group: index for index, group in enumerate(dict.fromkeys(case.inputs["group_ids"]))}
    prompt_S = torch.tensor([groups[group] for group in case.inputs["group_ids"]])
    advantages_T = rule.apply(parts).credit(rows_alone(rewards).with_(prompt_S=prompt_S)).advantages_T
    assert advantages_T is not None
    return advantages_T


def length_stages(case: Case) -> list[int]:
    """Phases of a run that set the longest response; each but the last ends at a boundary."""
    ends = [*case.config["boundaries"], None]
    stages = tuple(
        StageConfig(None if end is None else UntilConfig(step=end), {LENGTH: length})
        for end, length in zip(ends, case.config["lengths"], strict=True)
    )
    return [stages[stage_at(stages, step)].set[LENGTH] for step in case.inputs["steps"]]


def room(case: Case) -> list[int]:
    columns = case.inputs.get("columns", ["version", "eta", "accepted", "running"])
    fixed = {"batch": case.config["batch"], "max_concurrent": case.config["max_concurrent"]}
    return [capacity(**dict(zip(columns, row, strict=True)), **fixed) for row in case.inputs["cases"]]


def answer(case: Case, name: str, expected: Any) -> Any:
    """What a rule leaves at each step."""
    inputs = case.inputs
    if "entropy" in inputs:
        return entropy_rule(case, name)
    if "advantage_batches" in inputs:
        return iqr_rule(case, name)
    if "reward_batches" in inputs:
        return running_statistics(case, name)
    single: dict[str, tuple[bool, Callable[[Case], Any]]] = {
        "beta_after": ("kl" in inputs, kl_rule),
        "eps_after": ("clip_fraction" in inputs, clip_fraction_rule),
        "advantages": ("ema_var" in inputs, frozen_statistics),
        "max_len": ("steps" in inputs, length_stages),
        "capacity": ("cases" in inputs, room),
    }
    if name not in single or not single[name][0]:
        raise Unknown(f"expected.{name} does not belong to a rule over {', '.join(inputs.values)}")
    return single[name][1](case)
