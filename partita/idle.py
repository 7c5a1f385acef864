"""Which keys of a run's config do nothing beside the others, and which stages never begin.

Left out: the algorithm's own keys, which `algo.review` judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.algo.keys import AlgorithmKeys
from partita.evals.config import EvaluatorConfig
from partita.run import REFERENCE, RunConfig
from partita.tasks.paths import is_hub_name, task_of
from partita.train.config import CriticConfig, RefConfig


def without_effect(config: RunConfig, *, needs: frozenset[str], filtered: bool, held_out: bool) -> tuple[str, ...]:
    """Keys beside the algorithm's that were changed from their default and do nothing, each with what is missing.

    config: the whole run's, or a stage's. needs: the streams that its algorithm needs. filtered: groups are filtered, by
    the algorithm or by Python. held_out: there are rows to evaluate on.
    """
    actor, found = config.actor, list[tuple[str, Any, Any, str]]()
    if config.total_train_steps is not None:
        found.append(("total_train_epochs", config.total_train_epochs, None, "total_train_steps is set and wins"))
    if not filtered:
        found.append(("dynamic_bs", config.dynamic_bs, False, "needs actor.dynamic_sampling or a filter from Python"))
    if not needs & REFERENCE and config.ref is not None:
        reason = "needs a KL term: actor.kl_loss_coef or actor.kl_ctl above 0"
        found += _changed("ref", config.ref, RefConfig(), reason)
    if actor.optimizer.lr_scheduler_type == "constant":
        reason = "needs actor.optimizer.lr_scheduler_type: linear or cosine"
        found.append(("actor.optimizer.min_lr_ratio", actor.optimizer.min_lr_ratio, 0.0, reason))
    if actor.ppo_n_minibatches == 1:
        found.append(
            ("actor.minibatch_split", actor.minibatch_split, "groups", "needs actor.ppo_n_minibatches above 1")
        )
    if config.rollout.policy == "newest" and not _mixes_versions(config):
        found.append(("actor.max_staleness", actor.max_staleness, None, "every sample is from the newest weights"))
    for name, section in (("train_dataset", config.train_dataset), ("valid_dataset", config.valid_dataset)):
        path = section.path if section is not None else None
        if section is not None and path is not None and (task_of(path) is not None or not is_hub_name(path)):
            found.append((f"{name}.subset", section.subset, None, "only data sets of the hub have one"))
        if section is not None and not section.streaming:
            found.append((f"{name}.buffer_rows", section.buffer_rows, 1000, "needs streaming=true"))
    found += _idle_evaluation(config.evaluator, held_out)
    lines = [f"{path} {value}: no effect, {why}" for path, value, default, why in found if value != default]
    lines += [*_idle_in_step(config), *_idle_sampling(config)]
    if config.critic is not None and "values" not in needs:
        lines.append("critic: no effect, needs actor.credit: gae")
    elif config.critic is not None:
        lines += _idle_critic(config.critic)
    return tuple(lines)


def _mixes_versions(config: RunConfig) -> bool:
    """Whether groups of an earlier step may be in a batch."""
    sampling = config.actor.dynamic_sampling
    return sampling is not None and sampling.keeps_surplus


def _idle_sampling(config: RunConfig) -> list[str]:
    """What of dynamic sampling does nothing."""
    sampling, found = config.actor.dynamic_sampling, list[tuple[str, Any, Any, str]]()
    if sampling is None:
        return []
    if sampling.oversample == 1 and sampling.on_limit != "skip":
        why = "nothing passes beyond a batch: needs oversample above 1, or on_limit: skip"
        found.append(("surplus_steps", sampling.surplus_steps, 1, why))
    if config.dynamic_bs:
        why = "with dynamic_bs a step takes one round, and trains on what passed"
        found += [("on_limit", sampling.on_limit, "error", why), ("max_batches", sampling.max_batches, 10, why)]
    return [
        f"actor.dynamic_sampling.{name} {value}: no effect, {why}"
        for name, value, usual, why in found
        if value != usual
    ]


def _idle_critic(critic: CriticConfig) -> list[str]:
    """What only a critic of its own has, or only one on the policy's weights."""
    own = ("dtype", "gradient_checkpointing", "optimizer", "ppo_n_minibatches", "ppo_epochs", "minibatch_split")
    names, why = (
        (own, "shared=true: it learns with the policy") if critic.shared else (("vf_coef",), "needs critic.shared=true")
    )
    default = CriticConfig()
    return [f"critic.{name}: no effect, {why}" for name in names if getattr(critic, name) != getattr(default, name)]


def _idle_in_step(config: RunConfig) -> list[str]:
    """What synchronous training, or a single optimizer step per rollout batch, leaves without effect."""
    actor = config.actor
    if actor.importance_sampling_level == "none":
        return []
    newest = config.rollout.policy == "newest" and not _mixes_versions(config)
    if actor.prox_logp_method == "loglinear" and actor.recompute_logprob and newest:
        why = "every sample is from the newest weights, so the clip centre is the sampler and corrections weigh 1"
        return [f"actor.prox_logp_method loglinear: no effect of its own, {why}"]
    default = AlgorithmKeys()
    held = ("gate", "use_sapo_loss", "eps_clip", "eps_clip_higher", "c_clip", "eps_clip_rule", "kl_penalty_coef")
    changed = [name for name in held if getattr(actor, name) != getattr(default, name)]
    if not changed or not actor.recompute_logprob or actor.ppo_epochs * actor.ppo_n_minibatches > 1:
        return []
    names = ", ".join(f"actor.{name}" for name in changed)
    return [
        f"{names}: no effect, one optimizer step per batch (ppo_epochs 1, ppo_n_minibatches 1) has ratios of exactly 1"
    ]


def _idle_evaluation(evaluator: EvaluatorConfig, held_out: bool) -> list[tuple[str, Any, Any, str]]:
    if evaluator.freq_steps is None:
        return _changed("evaluator", evaluator, EvaluatorConfig(), "needs evaluator.freq_steps")
    if not held_out:
        return [("evaluator.freq_steps", evaluator.freq_steps, None, "no held-out rows: needs valid_dataset")]
    return []


def _changed(path: str, section: Any, default: Any, why: str) -> list[tuple[str, Any, Any, str]]:
    before = vars(default)
    return [(f"{path}.{name}", value, before[name], why) for name, value in vars(section).items()]


def never_begun(config: RunConfig) -> Iterator[str]:
    """A line where the run ends before its last stages."""
    total = config.total_train_steps
    for index, stage in enumerate(config.stages):
        step = None if stage.until is None else stage.until.step
        if total is not None and step is not None and step >= total and stage.until and stage.until.plateau is None:
            yield f"stages[{index + 1}]: never begins, stages[{index}].until.step {step} and total_train_steps {total}"
            return
