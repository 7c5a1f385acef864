"""The config of a whole run: it only composes the sections that the components declare, and becomes a plan of stages.

Left out: what the keys mean (each section's own docstring) and how a plan becomes objects (`build`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import expand_preset
from partita.algo.review import of_starting_samples
from partita.config import ConfigError, Loaded, key, key_factory, load_config
from partita.config.document import escape
from partita.config.errors import Problem
from partita.config.schema import plain
from partita.ends import EarlyStopConfig
from partita.engine.config import GenerationConfig, RolloutConfig
from partita.evals.config import EvaluatorConfig
from partita.launch.config import HINTS as LAUNCH_HINTS
from partita.launch.config import AllocationConfig, ClusterConfig, SchedulerConfig, check_servers
from partita.report.config import ReportConfig
from partita.stages import StageConfig, check_order, flat
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
    **LAUNCH_HINTS,
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
    max_hours: float | None = key(
        None,
        "wall hours that the run may take, all resumes together; it ends, with checkpoint and export, before a step that the last "
        "ones say would not fit",
        gt=0,
    )
    max_tokens: int | None = key(
        None, "generated tokens of training; the run ends, with checkpoint and export, after the step that reaches so many",
        ge=1,
    )  # fmt: skip
    early_stop: EarlyStopConfig | None = key(None, "end the run when its evaluations no longer get better")
    tokenizer_path: str | None = key(None, "tokenizer folder or name; null takes the model's own")
    dynamic_bs: bool = key(False, "with dynamic sampling: train on what one round left instead of refilling the batch")
    scheduler: SchedulerConfig = key_factory(SchedulerConfig, "what starts processes, beyond one")
    allocation: AllocationConfig = key_factory(AllocationConfig, "who runs, how many, with what")
    cluster: ClusterConfig = key_factory(ClusterConfig, "on which machines")
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
                "turns, every round from the newest weights; use rollout.max_head_offpolicyness=0"
            )
        if self.rollout.policy == "starting" and self.actor.max_staleness is not None:
            raise ValueError(
                f"rollout.policy=starting with actor.max_staleness={self.actor.max_staleness}: after so many train steps every "
                "sample is too old, and nothing is learned; leave max_staleness out"
            )
        check_servers(self.allocation, self.rollout.backend, self.rollout.servers)
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
        for path, metric in self.judged_by():
            if self.evaluator.freq_steps is None:
                raise ValueError(f"{path}={metric}: nothing is evaluated; set evaluator.freq_steps")

    def judged_by(self) -> Iterator[tuple[str, str]]:
        """Keys that name a metric of evaluations, and the metric."""
        if self.early_stop is not None:
            yield "early_stop.metric", self.early_stop.metric
        for index, stage in enumerate(self.stages):
            metric = None if stage.until is None else stage.until.plateau
            if metric is not None and metric.startswith("eval/"):
                yield f"stages[{index}].until.plateau", metric


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
        given = own_workflow or config.reward.gives_steps
        if "step_rewards" in needs and not given:
            reason = (
                "process needs rewards of single steps: of a reward function that returns steps "
                "(+reward.options.<function>.steps=true), of a judge (reward.judges.<name>.steps), of "
                "reward.process_model, or of a workflow (rollout.workflow=multi_turn); take actor.credit=outcome"
            )
        if reason:
            problem = Problem("actor.credit", reason)
            problems.append(_of_stage(config, index, problem) if config.stages else problem)
    if problems:
        raise ConfigError(problems)


def refuse_unevaluated(config: RunConfig, *, held_out: bool) -> None:
    """Raise ConfigError where something waits for evaluations and there are no rows to evaluate on."""
    found = () if held_out else config.judged_by()
    problems = [
        Problem(path, f"{metric} is never measured: no held-out rows, set valid_dataset") for path, metric in found
    ]
    if problems:
        raise ConfigError(problems)


def load_run_config(
    files: Sequence[Path], overrides: Sequence[str] = (), base_tree: dict[str, Any] | None = None
) -> Loaded[RunConfig]:
    """Read a run's config. Raises ConfigError naming every wrong key at once."""
    return load_config(
        RunConfig, files=files, overrides=overrides, base_tree=base_tree, expand=expand_preset, hints=HINTS
    )
