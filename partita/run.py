"""The config of a whole run: it only composes the sections that the components declare, and becomes a plan of stages.

Left out: what the keys mean (each section's own docstring) and how a plan becomes objects (`build`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import expand_preset
from partita.algo.review import of_starting_samples
from partita.config import ConfigError, Loaded, key, key_factory, load_config
from partita.config.document import escape
from partita.config.errors import Problem
from partita.config.schema import plain
from partita.engine.config import GenerationConfig, RolloutConfig
from partita.evals.config import EvaluatorConfig
from partita.report.config import ReportConfig
from partita.stages import StageConfig, check_order, flat
from partita.tasks.dataset import is_hub_name, task_of
from partita.tasks.reward import RewardConfig
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, CriticConfig, RefConfig

# Names that other tools use, or that belong to another section here.
HINTS = {
    "max_prompt_length": "train_dataset.max_length",
    "max_completion_length": "gconfig.max_new_tokens",
    "num_generations": "gconfig.n_samples",
    "learning_rate": "actor.optimizer.lr",
    "loss_type": "actor.loss_agg_mode",
    "beta": "actor.kl_loss_coef",
    "epsilon": "actor.eps_clip",
    "epsilon_high": "actor.eps_clip_higher",
    "max_steps": "total_train_steps",
    "model": "actor.path",
}
SECTIONS = frozenset({"actor", "gconfig", "train_dataset"})
OTHER_STAGE_KEYS = (
    "algorithm", "actor.ppo_epochs", "actor.ppo_n_minibatches", "actor.minibatch_split", "gconfig.max_new_tokens",
    "gconfig.n_samples", "gconfig.temperature", "gconfig.adaptive_n", "train_dataset.batch_size",
)  # fmt: skip
STAGE_KEYS = (*OTHER_STAGE_KEYS, *(f"actor.{item.name}" for item in fields(AlgorithmKeys)))
"""What a stage may set; everything else is built once, for the whole run."""
FIXED = f"is fixed for the whole run. A stage may set {', '.join(OTHER_STAGE_KEYS)} and the algorithm's keys of actor"
REFERENCE = frozenset({"ref", "kl_full_ref"})
"""Streams that come from the reference policy."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Where the run's processes start."""

    type: Literal["local", "ray", "slurm"] = key(
        "local", "local runs in this process; ray and slurm are not part of this version"
    )

    def __post_init__(self) -> None:
        if self.type != "local":
            raise ValueError(
                f"type={self.type}: this version starts runs on one machine only; use scheduler.type=local"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """Resumable checkpoints in the run folder."""

    freq_steps: int | None = key(None, "train steps between checkpoints; null saves after the last step only", ge=1)
    keep_last: int = key(2, "whole checkpoints to keep", ge=1)


@dataclass(frozen=True)
class RunConfig:
    """A training run from data to export."""

    algorithm: str | None = key(None, "a preset that sets the algorithm keys of `actor`; keys given beside it win")
    experiment_name: str = key("run", "first folder level under output_dir")
    trial_name: str | None = key(None, "second folder level; null takes the next free number")
    output_dir: str = key("runs", "where run folders are made")
    seed: int = key(1, "seed of data order, sampling and minibatches", ge=0, lt=2**32)
    total_train_epochs: int | None = key(None, "passes over train_dataset", ge=1)
    total_train_steps: int | None = key(None, "train steps; wins over total_train_epochs", ge=1)
    tokenizer_path: str | None = key(None, "tokenizer folder or name; null takes the model's own")
    dynamic_bs: bool = key(False, "with dynamic sampling: train on what one round left instead of refilling the batch")
    scheduler: SchedulerConfig = key_factory(SchedulerConfig, "where processes start")
    gconfig: GenerationConfig = key_factory(GenerationConfig, "how responses are sampled")
    rollout: RolloutConfig = key_factory(RolloutConfig, "the engine that samples")
    actor: ActorConfig = key_factory(ActorConfig, "the trained policy and its algorithm")
    ref: RefConfig | None = key(
        None, "the reference policy of KL terms; null uses the starting policy when a term needs one"
    )
    critic: CriticConfig | None = key(
        None, "the model that tells how good a state is, for actor.credit: gae; null makes one of the starting policy"
    )
    stages: list[StageConfig] = key_factory(list, "phases of the run, each with some keys changed; empty is one phase")
    train_dataset: DatasetConfig = key_factory(DatasetConfig, "rows to train on")
    valid_dataset: DatasetConfig | None = key(
        None, "held-out rows; null takes the task's own held-out split if it has one"
    )
    reward: RewardConfig = key_factory(RewardConfig, "how responses are scored")
    checkpoint: CheckpointConfig = key_factory(CheckpointConfig, "resumable checkpoints")
    evaluator: EvaluatorConfig = key_factory(EvaluatorConfig, "evaluation during training")
    report: ReportConfig = key_factory(ReportConfig, "console, metric files, trackers")

    def __post_init__(self) -> None:
        given = self.actor.max_new_tokens
        if given is not None and given != self.gconfig.max_new_tokens:
            raise ValueError(
                f"actor.max_new_tokens={given} but gconfig.max_new_tokens={self.gconfig.max_new_tokens}: they must be equal"
            )
        if self.rollout.max_head_offpolicyness > 0:
            raise ValueError(
                f"rollout.max_head_offpolicyness={self.rollout.max_head_offpolicyness}: this version samples and trains in "
                "turns, every sample from the newest weights; use rollout.max_head_offpolicyness=0"
            )
        if self.rollout.policy == "starting" and self.actor.max_staleness is not None:
            raise ValueError(
                f"rollout.policy=starting with actor.max_staleness={self.actor.max_staleness}: after so many train steps every "
                "sample is too old, and nothing is learned; leave max_staleness out"
            )
        if self.total_train_steps is None and self.total_train_epochs is None:
            raise ValueError("total_train_steps and total_train_epochs are both null: set one of them")
        if self.total_train_steps is None and self.train_dataset.streaming:
            raise ValueError("train_dataset.streaming: nobody knows how long an epoch is; set total_train_steps")
        if self.valid_dataset is not None and self.train_dataset.held_out > 0:
            raise ValueError(
                f"valid_dataset is set and train_dataset.held_out={self.train_dataset.held_out}: drop one of the two"
            )
        if self.valid_dataset is not None and self.valid_dataset.held_out > 0:
            raise ValueError(
                f"valid_dataset.held_out={self.valid_dataset.held_out}: all of its rows are held out; leave it 0"
            )
        check_order(self.stages)
        for index, stage in enumerate(self.stages):
            metric = None if stage.until is None else stage.until.plateau
            if metric is not None and metric.startswith("eval/") and self.evaluator.freq_steps is None:
                raise ValueError(
                    f"stages[{index}].until.plateau={metric}: nothing is evaluated; set evaluator.freq_steps"
                )


@dataclass(frozen=True)
class Planned:
    """A stage as a config of its own, without `stages`, and its algorithm."""

    config: RunConfig
    algorithm: Algorithm


@dataclass(frozen=True)
class Plan:
    """A run's stages in order, one where the config names none; and warnings about how samples are drawn."""

    stages: tuple[Planned, ...]
    cautions: tuple[str, ...]

    @property
    def needs(self) -> frozenset[str]:
        """Streams that any stage's algorithm needs."""
        return frozenset[str]().union(*(stage.algorithm.needs for stage in self.stages))


def composed(config: RunConfig, part_weights: tuple[float, ...] = ()) -> Plan:
    """The algorithms of a training run. `part_weights` are those of the reward functions in the order of their names.

    Raises ConfigError for stages that are no config, and for keys of `actor` and `gconfig` that are fine one by one but
    cannot be trained with together.
    """
    problems, seen = list[Problem](), set[Problem]()
    stages, cautions = list[Planned](), dict[str, None]()
    configs = stage_configs(config)
    for index, one in enumerate(configs):
        try:
            caution, algorithm = _composed(one, part_weights)
        except ConfigError as error:  # what an earlier stage has too is said once
            fresh = [problem for problem in error.problems if problem not in seen]
            seen.update(fresh)
            problems += [_of_stage(config, index, problem) for problem in fresh] if config.stages else fresh
        else:
            stages.append(Planned(one, algorithm))
            cautions |= dict.fromkeys(caution)
    if problems:
        raise ConfigError(problems)
    return Plan(tuple(stages), tuple(cautions))


def _composed(config: RunConfig, part_weights: tuple[float, ...]) -> tuple[list[str], Algorithm]:
    sampling, problems, warnings = config.gconfig, list[Problem](), list[str]()
    try:
        warnings += filter(None, [sampling.check_training()])
    except ValueError as error:
        problems.append(Problem("gconfig", str(error)))
    lengths = {"n_samples": sampling.n_samples, "max_new_tokens": sampling.max_new_tokens}
    try:
        algorithm = compose(config.actor, **lengths, part_weights=part_weights)
        warnings += of_starting_samples(config.actor) if config.rollout.policy == "starting" else ()
    except ValueError as error:  # one line per conflict, each begins with its key
        raise ConfigError([*problems, *(Problem(*line.split(" ", 1)) for line in str(error).splitlines())]) from error
    try:
        controllers(config.actor)  # a rule that cannot start is better known before a run, or its stage, begins
    except ValueError as error:
        problems.append(Problem("actor", str(error)))
    if problems:
        raise ConfigError(problems)
    return warnings, algorithm


def stage_configs(config: RunConfig) -> tuple[RunConfig, ...]:
    """The config of each stage: the run's own with the stage's keys on top, checked like one that was loaded.

    Dr.GRPO's constant is one number for the whole run: left out, it is the largest response length of all stages.
    Raises ConfigError with all problems of all stages.
    """
    if not config.stages:
        return (config,)
    found, problems = list[RunConfig](), list[Problem]()
    for index, stage in enumerate(config.stages):
        given = flat(stage.set, SECTIONS)
        wrong = [Problem(path, FIXED) for path in given if not _may_change(path)]
        try:
            one = _on_top(config, given)
            found.append(one)
            if one.rollout != config.rollout and not wrong:  # a preset has set it
                message = f"{one.algorithm} samples from rollout.policy={one.rollout.policy}, which is fixed for the whole run"
                wrong.append(Problem("algorithm", message))
        except ConfigError as error:
            wrong = list(error.problems)
        problems += [_of_stage(config, index, problem) for problem in wrong]
    if problems:
        raise ConfigError(problems)
    largest = float(max(one.gconfig.max_new_tokens for one in found))
    return tuple(_with_constant(one, largest) for one in found)


def _on_top(config: RunConfig, given: dict[str, Any]) -> RunConfig:
    tree = escape(plain(config))
    tree["stages"] = []
    # second names of gconfig's, compared where the run's config was loaded
    tree["actor"]["max_new_tokens"] = None
    for norm in (tree["actor"]["reward_norm"], tree["actor"]["adv_norm"]):
        if norm is not None and norm["group_size"] == config.gconfig.n_samples:
            norm["group_size"] = None
    # JSON is YAML; as overrides the keys are one layer, whose `algorithm` expands first
    words = [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in given.items()]
    return load_run_config([], words, tree).value


def _with_constant(config: RunConfig, largest: float) -> RunConfig:
    actor = config.actor
    if actor.loss_agg_mode != "seq_mean_token_sum_norm" or actor.loss_agg_constant is not None:
        return config
    return replace(config, actor=replace(actor, loss_agg_constant=largest))


def _may_change(path: str) -> bool:
    return any(path == known or path.startswith(f"{known}.") for known in STAGE_KEYS)


def _of_stage(config: RunConfig, index: int, problem: Problem) -> Problem:
    """The problem of a stage's whole config, at the stage's own key where that is what was set."""
    path, given = problem.path, flat(config.stages[index].set, SECTIONS)
    if any(path == name or path.startswith(f"{name}.") for name in given):
        return Problem(f"stages[{index}].set.{path}", problem.message)
    return Problem(f"stages[{index}]", f"with its keys set: {path}: {problem.message}")


def refuse_untrainable(config: RunConfig, plan: Plan, *, own_workflow: bool) -> None:
    """Raise ConfigError where an algorithm can be composed and explained, but not trained by this run."""
    problems: list[Problem] = []
    for index, stage in enumerate(plan.stages):
        needs, reason = stage.algorithm.needs, ""
        given = own_workflow or any(options.steps for options in config.reward.options.values())
        if "step_rewards" in needs and not given:
            reason = (
                "process needs rewards of single steps: of a reward function that returns steps "
                "(+reward.options.<function>.steps=true), or of a workflow from Python "
                "(PPOTrainer(config).train(workflow=...)); take actor.credit=outcome"
            )
        if reason:
            problem = Problem("actor.credit", reason)
            problems.append(_of_stage(config, index, problem) if config.stages else problem)
    if problems:
        raise ConfigError(problems)


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
    if config.rollout.policy == "newest":
        found.append(("actor.max_staleness", actor.max_staleness, None, "every sample is from the newest weights"))
    for name, section in (("train_dataset", config.train_dataset), ("valid_dataset", config.valid_dataset)):
        path = section.path if section is not None else None
        if section is not None and path is not None and (task_of(path) is not None or not is_hub_name(path)):
            found.append((f"{name}.subset", section.subset, None, "only data sets of the hub have one"))
        if section is not None and not section.streaming:
            found.append((f"{name}.buffer_rows", section.buffer_rows, 1000, "needs streaming=true"))
    found += _idle_evaluation(config.evaluator, held_out)
    lines = [f"{path} {value}: no effect, {why}" for path, value, default, why in found if value != default]
    lines += _idle_in_step(config)
    if config.critic is not None and "values" not in needs:
        lines.append("critic: no effect, needs actor.credit: gae")
    elif config.critic is not None:
        lines += _idle_critic(config.critic)
    return tuple(lines)


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
    if actor.prox_logp_method == "loglinear" and actor.recompute_logprob and config.rollout.policy == "newest":
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


def load_run_config(
    files: Sequence[Path], overrides: Sequence[str] = (), base_tree: dict[str, Any] | None = None
) -> Loaded[RunConfig]:
    """Read a run's config. Raises ConfigError naming every wrong key at once."""
    return load_config(
        RunConfig, files=files, overrides=overrides, base_tree=base_tree, expand=expand_preset, hints=HINTS
    )
