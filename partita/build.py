"""From a config to the objects of a run: every part is made here and handed what it needs from above or beside it.

Left out: what happens in a step (`runner.Run` and `loop`), and what the keys mean (the sections).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from partita.algo.algorithm import Algorithm
from partita.config import Loaded
from partita.config.schema import plain
from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.evals.evaluate import Evaluator
from partita.evals.plan import EvalPlan
from partita.extras import Extras, Rewards
from partita.facts import facts_of
from partita.models.adapters import started_at_zero
from partita.models.load import LoadedModel, find_stop_ids, load_causal_lm, load_tokenizer
from partita.models.lora import add_adapters, base_view, require_peft
from partita.models.packed import PackedModel, cast_copy, fingerprint, weights
from partita.models.reference import check_reference
from partita.models.scoring import is_scorer, load_scorer, load_value_model
from partita.models.selfcheck import decoding_copy
from partita.ops.memory import keep_freed_memory
from partita.records import Group
from partita.report.metrics import Timer
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import write_atomic
from partita.report.trackers import require_trackers
from partita.rollout.rollouts import Refill, Retry, Rollouts
from partita.rollout.workflow import SingleTurn, Workflow
from partita.run import REFERENCE, Plan, Planned, RunConfig, composed, refuse_untrainable, stage_configs
from partita.runfolder import (
    CONFIG,
    RunFolderError,
    check_start,
    new_folder,
    resume_point,
    told_how_to_go_on,
)
from partita.runner import Phase, Run, beside
from partita.tasks.binding import RewardSetupError
from partita.tasks.cursor import Cursor
from partita.tasks.dataset import DataError, TaskRows, load_rows, task_of
from partita.tasks.model_reward import ModelReward
from partita.tasks.prompt import Prompts, carrying, render_prompts
from partita.tasks.reward import Judge, RewardRuntime
from partita.tasks.settings import DatasetConfig
from partita.train.checkpoint import load_checkpoint
from partita.train.config import ActorConfig, CriticConfig, LearnedModelConfig, RefConfig
from partita.train.critic import Critic
from partita.train.learner import Learner


@dataclass(frozen=True)
class Stage:
    """What training and evaluation share: data, rewards, a model, and an engine that samples from a copy of it."""

    train_rows: TaskRows
    valid_rows: TaskRows | None
    scorer: RewardRuntime
    loaded: LoadedModel
    engine: LocalEngine
    device: torch.device


@contextmanager
def ended_by(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` in the end. Where the block failed, that error travels on, and one of `close` is a warning."""
    try:
        yield
    except BaseException:
        try:
            close()
        except Exception as error:
            warnings.warn(f"while ending: {error}", stacklevel=2)
        raise
    close()


@contextmanager
def stage(config: RunConfig, rewards: Rewards = (), held_out_only: bool = False) -> Iterator[Stage]:
    """Read the data first, then rewards, then the model: mistakes show before the slow part."""
    held_out = valid_section(config)
    valid = None if held_out is None else load_rows(held_out, seed=config.seed, section="valid_dataset")
    rows = valid if held_out_only else load_rows(config.train_dataset, seed=config.seed)
    if rows is None:
        raise RunFolderError(
            f"no held-out rows: train_dataset.path={config.train_dataset.path} has no test split of its own; set valid_dataset"
        )
    reward = replace(config.reward, functions=[]) if rewards else config.reward  # what Python hands in wins
    own = () if reward.model else rows.functions  # whoever names a model wants its score, and what else they name
    scorer = RewardRuntime(reward, list(rewards) or list(own))  # before the models: its workers may fork
    with ended_by(scorer.close):
        notes = scorer.check(*rows.rows)
        if valid is not None and not held_out_only and config.evaluator.freq_steps is not None:
            try:
                scorer.check(*valid.rows)
            except RewardSetupError as error:
                raise RewardSetupError(f"valid_dataset: {error}") from error
        loaded, engine, device = open_engine(config)
        with ended_by(engine.close):
            if reward.model is not None:
                scorer.judge, more = _judge(config, reward.model, loaded, device)
                notes = (*notes, *more)
            yield Stage(replace(rows, notes=(*rows.notes, *notes)), valid, scorer, loaded, engine, device)


def _judge(config: RunConfig, path: str, policy: LoadedModel, device: torch.device) -> tuple[Judge, tuple[str, ...]]:
    """The reward model, in the precision that the device is fast in, and what to tell of it."""
    model = load_scorer(
        path, dtype=compute_dtype("auto", device), device=device, trust_remote_code=config.actor.trust_remote_code,
        normalise=config.reward.model_normalise,
    )  # fmt: skip
    judge = ModelReward(model, policy.tokenizer)
    return judge, tuple(f"reward model {path}: {note}" for note in (*model.notes, *judge.notes))


class Trained(Protocol):
    """What a config says about the model that is trained, whatever it learns."""

    @property
    def actor(self) -> ActorConfig | LearnedModelConfig:
        """Its section."""
        ...

    @property
    def tokenizer_path(self) -> str | None:
        """Another tokenizer than its own."""
        ...

    @property
    def seed(self) -> int:
        """Of adapters."""
        ...


def load_policy(config: Trained, device: torch.device) -> LoadedModel:
    """The model `actor.path` in float32, with adapters if it has any. A tokenizer of `tokenizer_path` adds the ids that end its
    completions.
    """
    actor, path = config.actor, config.tokenizer_path
    trust = actor.trust_remote_code
    other = None if path in (None, actor.path) else load_tokenizer(path, trust)  # first: it is the quick part
    loaded = load_causal_lm(actor.path, dtype=torch.float32, trust_remote_code=trust, device=device)
    if actor.lora is not None:
        add_adapters(loaded.model, actor.lora, config.seed)
    if other is None:
        return loaded
    return replace(loaded, tokenizer=other, stop_ids=tuple(sorted({*loaded.stop_ids, *find_stop_ids(other, ())})))


def open_engine(config: RunConfig) -> tuple[LoadedModel, LocalEngine, torch.device]:
    """The policy in float32, and an engine that decodes in its own precision: over weights of its own, or over the policy's
    modules where these can serve both. On a CPU the process keeps freed memory from here on.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        keep_freed_memory()
    loaded = load_policy(config, device)
    # modules that recompute their activations in training cannot decode with a cache meanwhile
    turns = config.rollout.max_head_offpolicyness == 0 and config.rollout.policy == "newest"
    alone = turns and not config.actor.gradient_checkpointing
    sampler, note = decoding_copy(
        loaded.model, compute_dtype(config.rollout.dtype, device), alone=alone, compiled=config.rollout.compile
    )
    engine = LocalEngine(
        sampler, loaded.tokenizer, slots=config.rollout.max_concurrent_rollouts, context=loaded.context,
        prefill_tokens=config.rollout.prefill_tokens,
    )  # fmt: skip
    return replace(loaded, notes=(*loaded.notes, note)), engine, device


def valid_section(config: RunConfig) -> DatasetConfig | None:
    """The held-out rows: `valid_dataset`, else the test split of a task. Raises DataError."""
    train = config.train_dataset
    if config.valid_dataset is not None:
        return config.valid_dataset
    try:
        task = None if train.path is None else task_of(train.path)
    except DataError as error:
        raise DataError(f"train_dataset: {error}") from error
    return None if task is None else replace(train, split="test", size=None, shuffle=False)


def prompts_of(config: RunConfig, rows: TaskRows, section: DatasetConfig, loaded: LoadedModel, name: str) -> Prompts:
    """Render rows so that every prompt leaves room for a whole response, also for the longest of all stages."""
    reserve = longest(config)
    return render_prompts(rows.rows, loaded.tokenizer, section, context=loaded.context, reserve=reserve, section=name)


def saved_tokenizer(config: RunConfig, loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """What lies beside an exported model: its template shows prompts as training did."""
    section = config.train_dataset
    return carrying(loaded.tokenizer, section.chat_template, section.chat_template_kwargs)


def longest(config: RunConfig) -> int:
    """The largest `max_new_tokens` of all stages: what prompts leave room for, and what evaluations may use, so that
    they can be compared over the whole run."""
    return max(one.gconfig.max_new_tokens for one in stage_configs(config))


@contextmanager
def build(config: RunConfig, extras: Extras, resume: Path | None = None) -> Iterator[Run]:
    """Everything of a training run; closed in the end, also when the run fails."""
    refuse_untrainable(config, composed(config), own_workflow=extras.workflow is not None)
    require_trackers(config.report.trackers)
    if config.actor.lora is not None or (config.critic is not None and config.critic.lora is not None):
        require_peft()
    newest = None
    if resume is not None:
        newest = resume_point(resume)
        extras.check(resume)
    with stage(config, extras.rewards) as made:
        plan = composed(config, _part_weights(config, made.scorer))
        prompts = prompts_of(config, made.train_rows, config.train_dataset, made.loaded, "train_dataset")
        steps = _total_steps(plan, len(prompts.prompts))
        workflow = extras.workflow or SingleTurn()
        critic = _critic(config, made, steps) if "values" in plan.needs else None
        learner = _learner(config, made, steps, plan.needs, critic)
        others = beside(critic, learner, config.ref)
        starting, started = _starting(config, learner), fingerprint(learner.model)
        state = load_checkpoint(newest, learner.model, learner.stepper.optimizer, others) if newest else None
        folder, settings = resume or new_folder(config), plain(config)
        title = f"{config.experiment_name}/{folder.name}"
        run = Run(
            config, folder, saved_tokenizer(config, made.loaded), learner, made.engine,
            rollouts_of(config, made, workflow, prompts),
            tuple(_phase(one, extras.keep) for one in plan.stages), steps,
            Reporter(config.report, RunFacts(folder, title, steps, settings, state["step"] if state else 0)),
            critic, _eval_plan(config, made, workflow), extras.names, tuple(sorted(made.scorer.names)), starting=starting,
            started=started,
        )  # fmt: skip
        if state:
            if learner.reference is not None or config.actor.lora is not None:
                check_start(state, started, config.actor.path)
            _restore(run, state, newest)
        command = run.brought.resume_command(folder)
        with told_how_to_go_on(folder, command, run.reporter), ended_by(run.reporter.close):
            extras.note(folder)  # before the config, by which a folder is known as a run's
            write_atomic(folder / CONFIG, Loaded(config, settings, {}).to_yaml().encode())
            notes = (*made.train_rows.notes, *prompts.notes, *made.loaded.notes, *plan.cautions)
            held_out = made.valid_rows is not None
            run.reporter.start(facts_of(run, plan, made.loaded, held_out, notes))
            yield run


def _restore(run: Run, state: Mapping[str, Any], source: Path | None) -> None:
    """Before any file of the run is touched: a checkpoint that does not fit leaves the folder as it was."""
    try:
        run.load_state_dict(state)
    except ValueError as error:
        raise RunFolderError(f"{source} cannot be continued with this config: {error}") from error
    run.publish(run.first_step)


def _learner(config: RunConfig, made: Stage, steps: int, needs: frozenset[str], critic: Critic | None) -> Learner:
    model = made.loaded.model
    reference = _reference(config, made, needs) if needs & REFERENCE else None
    if config.actor.gradient_checkpointing:
        recompute(model)
    return Learner(
        model, config.actor, compute_dtype(config.actor.dtype, made.device), config.gconfig.temperature, steps, config.seed,
        reference=reference, vf_coef=critic.config.vf_coef if critic is not None and critic.config.shared else None,
        timer=Timer() if critic is None else critic.timer,
    )  # fmt: skip


def _starting(config: RunConfig, learner: Learner) -> dict[str, torch.Tensor]:
    """The weights before any checkpoint is read, where evaluations take the engine away from them; else none."""
    if config.rollout.policy == "newest" or config.evaluator.freq_steps is None:
        return {}
    return {name: weight.clone() for name, weight in weights(learner.model)}


def recompute(model: PackedModel) -> None:
    """Let the backward passes of a model compute its activations again instead of keeping them."""
    model.lm.activation_checkpointing_enable()
    model.train()  # the families recompute in training mode only; every dropout is off


def _critic(config: RunConfig, made: Stage, steps: int) -> Critic:
    """The policy with a value head, or a model of its own: the starting policy's weights, or others."""
    section, path = config.critic or CriticConfig(), config.critic.path if config.critic else None
    trust = config.actor.trust_remote_code
    if section.shared:
        model = made.loaded.model
    elif path in (None, config.actor.path):
        model = cast_copy(made.loaded.model, torch.float32)
    elif is_scorer(path, trust):
        model = load_value_model(path, made.loaded.tokenizer, device=made.device, trust_remote_code=trust)
    else:
        loaded = load_causal_lm(path, dtype=torch.float32, trust_remote_code=trust, device=made.device)
        check_reference(made.loaded, loaded, whole_vocabulary=False)
        model = loaded.model
    if model.value_head is None:
        model.add_value_head()
    if section.lora is not None:
        add_adapters(model, section.lora, config.seed)
    if section.gradient_checkpointing and not section.shared:
        recompute(model)
    dtype = compute_dtype(config.actor.dtype if section.shared else section.dtype, made.device)
    return Critic(model, section, dtype, steps, config.seed, config.actor.max_nonfinite_steps)


def _reference(config: RunConfig, made: Stage, needs: frozenset[str]) -> PackedModel:
    """The frozen starting policy, or another model, in its own precision. Where adapters began at zero the policy without
    them is that starting policy, and takes no memory.
    """
    section, lora = config.ref or RefConfig(), config.actor.lora
    dtype, path = compute_dtype(section.dtype, made.device), section.path
    if path in (None, config.actor.path):
        if lora is not None and started_at_zero(lora) and section.refresh_steps is None:
            return base_view(made.loaded.model)
        model = cast_copy(made.loaded.model, dtype)
    else:
        trust = config.actor.trust_remote_code
        loaded = load_causal_lm(path, dtype=dtype, trust_remote_code=trust, device=made.device)
        check_reference(made.loaded, loaded, whole_vocabulary="kl_full_ref" in needs)
        model = loaded.model
    return (model.to("cpu") if section.offload else model).requires_grad_(False).eval()


def rollouts_of(config: RunConfig, made: Stage, workflow: Workflow, prompts: Prompts) -> Rollouts:
    """What a stage sets (filter, retries, sizes) is put in place when it begins."""
    epochs = config.total_train_epochs if config.total_train_steps is None else None
    return Rollouts(
        made.engine, workflow, Cursor(prompts.prompts, config.seed, config.train_dataset.shuffle), made.scorer,
        config.gconfig.sampling(made.loaded.stop_ids), config.gconfig.n_samples, config.seed,
        max_error_share=config.reward.max_error_share,
        prompt_limit=None if epochs is None else epochs * len(prompts.prompts), judge=made.scorer.judge,
    )  # fmt: skip


def _part_weights(config: RunConfig, scorer: RewardRuntime) -> tuple[float, ...]:
    """Weights of the reward functions, in the order of their names."""
    return tuple(weight for _, weight in sorted(zip(scorer.names, scorer.weights, strict=True)))


def _phase(one: Planned, keep: Callable[[Group], bool] | None) -> Phase:
    times, sampling = one.config.actor.mixed_group_retry, one.config.actor.dynamic_sampling
    threshold = 1.0 if sampling is None else sampling.correct_threshold
    retry = None if times is None else Retry(times, threshold)
    return Phase(one.config, one.algorithm, _refill(one.config, one.algorithm, keep), retry)


def _refill(config: RunConfig, algorithm: Algorithm, keep: Callable[[Group], bool] | None) -> Refill | None:
    sampling = config.actor.dynamic_sampling
    filters = [keep] if keep else []
    if sampling is not None:
        filters.append(lambda group: bool(algorithm.keep(_reward_tensor(group))))
    if not filters:
        return None
    rounds = sampling.max_batches if sampling is not None else 10
    return Refill(lambda group: all(accept(group) for accept in filters), rounds, refill=not config.dynamic_bs)


def _reward_tensor(group: Group) -> torch.Tensor:
    return torch.tensor(group.rewards, dtype=torch.float64)


def _total_steps(plan: Plan, prompts: int) -> int:
    """Train steps at most: a step that is refilled uses more prompts than its batch has, and the run ends with them."""
    config = plan.stages[0].config
    if config.total_train_steps is not None:
        return config.total_train_steps
    assert config.total_train_epochs is not None, "RunConfig checks that one of the two is set"
    smallest = min(one.config.train_dataset.batch_size for one in plan.stages)
    return math.ceil(config.total_train_epochs * prompts / smallest)


def _eval_plan(config: RunConfig, made: Stage, workflow: Workflow) -> EvalPlan | None:
    section = valid_section(config)
    if config.evaluator.freq_steps is None or section is None or made.valid_rows is None:
        return None
    rendered = prompts_of(config, made.valid_rows, section, made.loaded, "valid_dataset")
    sampling = replace(
        config.gconfig.sampling(made.loaded.stop_ids),
        max_new_tokens=longest(config),
        temperature=config.evaluator.temperature,
    )
    evaluator = Evaluator(made.engine, workflow, made.scorer, config.seed, made.scorer.judge)
    return EvalPlan(evaluator, rendered.prompts[: config.evaluator.n_prompts], sampling)
