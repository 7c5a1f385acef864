"""The config of a whole run: it only composes the sections that the components declare.

Left out: what the keys mean (each section's own docstring) and how a config becomes objects (`build`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.presets import expand_preset
from partita.config import ConfigError, Loaded, key, key_factory, load_config
from partita.config.errors import Problem
from partita.engine.config import GenerationConfig, RolloutConfig
from partita.report.config import ReportConfig
from partita.tasks.dataset import is_hub_name, task_of
from partita.tasks.reward import RewardConfig
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, RefConfig

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
class EvaluatorConfig:
    """Evaluation on `valid_dataset`. Its random numbers are its own: training is the same with and without it."""

    freq_steps: int | None = key(None, "train steps between evaluations; null evaluates never during training", ge=1)
    n_prompts: int = key(64, "prompts per evaluation, the first of valid_dataset", ge=1)
    n_samples: int = key(1, "samples per prompt", ge=1)
    temperature: float = key(0.0, "sampling temperature; 0 is greedy", ge=0)


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
        if self.total_train_steps is None and self.total_train_epochs is None:
            raise ValueError("total_train_steps and total_train_epochs are both null: set one of them")


def composed(config: RunConfig) -> tuple[Algorithm, tuple[str, ...]]:
    """The algorithm of a training run, and warnings about how its samples are drawn.

    Raises ConfigError for keys of `actor` and `gconfig` that are fine one by one but cannot be trained with together.
    """
    sampling, problems, warnings = config.gconfig, list[Problem](), list[str]()
    try:
        warnings += filter(None, [sampling.check_training()])
    except ValueError as error:
        problems.append(Problem("gconfig", str(error)))
    try:
        algorithm = compose(config.actor, n_samples=sampling.n_samples, max_new_tokens=sampling.max_new_tokens)
    except ValueError as error:  # one line per conflict, each begins with its key
        raise ConfigError([*problems, *(Problem(*line.split(" ", 1)) for line in str(error).splitlines())]) from error
    if problems:
        raise ConfigError(problems)
    return algorithm, tuple(warnings)


def without_effect(config: RunConfig, *, needs_reference: bool, filtered: bool, held_out: bool) -> tuple[str, ...]:
    """Keys beside the algorithm's that were changed from their default and do nothing, each with what is missing.

    filtered: groups are filtered, by the algorithm or by Python. held_out: there are rows to evaluate on.
    """
    actor, evaluator, found = config.actor, config.evaluator, list[tuple[str, Any, Any, str]]()
    if config.total_train_steps is not None:
        found.append(("total_train_epochs", config.total_train_epochs, None, "total_train_steps is set and wins"))
    if not filtered:
        found.append(("dynamic_bs", config.dynamic_bs, False, "needs actor.dynamic_sampling or a filter from Python"))
    if not needs_reference and config.ref is not None:
        reason = "needs a KL term: actor.kl_loss_coef or actor.kl_ctl above 0"
        found += [
            (f"ref.{name}", value, getattr(RefConfig(), name), reason) for name, value in vars(config.ref).items()
        ]
    if actor.optimizer.lr_scheduler_type == "constant":
        reason = "needs actor.optimizer.lr_scheduler_type: linear or cosine"
        found.append(("actor.optimizer.min_lr_ratio", actor.optimizer.min_lr_ratio, 0.0, reason))
    if actor.ppo_n_minibatches == 1:
        found.append(
            ("actor.minibatch_split", actor.minibatch_split, "groups", "needs actor.ppo_n_minibatches above 1")
        )
    for name, section in (("train_dataset", config.train_dataset), ("valid_dataset", config.valid_dataset)):
        path = section.path if section is not None else None
        if section is not None and path is not None and (task_of(path) is not None or not is_hub_name(path)):
            found.append((f"{name}.subset", section.subset, None, "only data sets of the hub have one"))
    if evaluator.freq_steps is None:
        default, reason = vars(EvaluatorConfig()), "needs evaluator.freq_steps"
        found += [(f"evaluator.{name}", value, default[name], reason) for name, value in vars(evaluator).items()]
    elif not held_out:
        found.append(("evaluator.freq_steps", evaluator.freq_steps, None, "no held-out rows: needs valid_dataset"))
    return tuple(f"{path} {value}: no effect, {why}" for path, value, default, why in found if value != default)


def load_run_config(
    files: Sequence[Path], overrides: Sequence[str] = (), base_tree: dict[str, Any] | None = None
) -> Loaded[RunConfig]:
    """Read a run's config. Raises ConfigError naming every wrong key at once."""
    return load_config(
        RunConfig, files=files, overrides=overrides, base_tree=base_tree, expand=expand_preset, hints=HINTS
    )
