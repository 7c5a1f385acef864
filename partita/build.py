"""From a config to the objects of a run: every part is made here and handed what it needs from above or beside it.

Left out: what happens in a step (`runner.Run` and `loop`), and what the keys mean (the sections).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from partita.algo.algorithm import Algorithm
from partita.algo.keys import DynamicSampling
from partita.config import Loaded
from partita.config.schema import plain
from partita.engine.api import Engine
from partita.engine.text import decode
from partita.evals.evaluate import Evaluator
from partita.evals.measures import Measures
from partita.evals.plan import EvalPlan
from partita.extras import Extras, Rewards
from partita.facts import facts_of
from partita.models.load import LoadedModel
from partita.models.lora import require_peft
from partita.models.packed import fingerprint, weights
from partita.ops.ranks import ALONE, Ranks
from partita.records import Group
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import write_atomic
from partita.report.trackers import require_trackers
from partita.rollout.named import SINGLE, workflow_of
from partita.rollout.rollouts import Prompts as PromptSource
from partita.rollout.rollouts import Refill, Retry, Rollouts
from partita.rollout.workflow import Workflow
from partita.run import (
    Plan,
    Planned,
    RunConfig,
    composed,
    refuse_unevaluated,
    refuse_untrainable,
    stage_configs,
)
from partita.run_engine import follow_team
from partita.run_models import (
    Outline,
    device_here,
    load_policy,
    loading_place,
    make_team,
    open_engine,
    open_judge,
    open_process_model,
)
from partita.runfolder import CONFIG, RunFolderError, check_start, new_folder, resume_point, told_how_to_go_on
from partita.runner import Phase, Run
from partita.tasks.binding import RewardSetupError
from partita.tasks.chat import Chat, chat_of
from partita.tasks.dataset import DataError, TaskRows, load_rows
from partita.tasks.order import in_order
from partita.tasks.paths import task_of
from partita.tasks.prompt import Prompts, Sieve, carrying, render_prompts
from partita.tasks.rates import PassRates
from partita.tasks.rendering import rendering_of
from partita.tasks.reward import RewardRuntime, TrainerState
from partita.tasks.settings import DatasetConfig
from partita.tasks.stream import stream_of
from partita.train.team import dismiss, follow, told


@dataclass(frozen=True)
class Stage:
    """What training and evaluation share: data, rewards, a model, and an engine that samples from a copy of it."""

    train_rows: TaskRows
    valid_rows: TaskRows | None
    scorer: RewardRuntime
    loaded: LoadedModel
    engine: Engine
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
def workflow_for(config: RunConfig, given: Workflow | None = None) -> Iterator[Workflow]:
    """The workflow that Python gave, else the config's; that is closed in the end, where it has a `close`."""
    if given is not None:
        yield given
        return
    made = workflow_of(config.rollout.workflow, config.rollout.workflow_kwargs)
    close: Any = getattr(made, "close", None)
    with ended_by(close or (lambda: None)):
        yield made


def is_own(config: RunConfig, given: Workflow | None = None) -> bool:
    """Whether samples come about in another way than by one turn: then a workflow may bring rewards of its own."""
    return given is not None or config.rollout.workflow != SINGLE


@contextmanager
def stage(
    config: RunConfig, rewards: Rewards = (), held_out_only: bool = False, own_workflow: bool = False,
    ranks: Ranks = ALONE,
) -> Iterator[Stage]:  # fmt: skip
    """Read the data first, then rewards, then the model: mistakes show before the slow part. own_workflow: it may judge by
    itself, and no reward need be named. ranks: that the model will be spread over.
    """
    held_out = valid_section(config)
    kept = config.valid_dataset is None and config.train_dataset.held_out > 0
    valid = None if held_out is None else load_rows(held_out, seed=config.seed, section="valid_dataset", held_out=kept)
    rows = valid if held_out_only else load_rows(config.train_dataset, seed=config.seed)
    if rows is None:
        raise RunFolderError(
            f"no held-out rows: train_dataset.path={config.train_dataset.path} has no test split of its own; set valid_dataset, "
            "or train_dataset.held_out"
        )
    reward = replace(config.reward, functions=[]) if rewards else config.reward  # what Python hands in wins
    own = () if reward.complete else rows.functions  # whoever names a model or a judge wants its score
    functions, needed = list(rewards) or list(own), not own_workflow
    scorer = RewardRuntime(reward, functions, needed=needed)  # before the models: its workers may fork
    with ended_by(scorer.close):
        notes = scorer.check(*rows.rows)
        if valid is not None and not held_out_only and config.evaluator.freq_steps is not None:
            try:
                scorer.check(*valid.rows)
            except RewardSetupError as error:
                raise RewardSetupError(f"valid_dataset: {error}") from error
        loaded, engine, device = open_engine(config, ranks)
        with ended_by(engine.close):
            scorer.judges.decode = partial(decode, loaded.tokenizer)
            if reward.model is not None:
                scorer.judge, more = open_judge(config, reward.model, loaded, device)
                notes = (*notes, *more)
            if reward.process_model is not None:
                process, more = open_process_model(config, reward.process_model, loaded, device)
                scorer.put_in(process)
                notes = (*notes, *more)
            yield Stage(replace(rows, notes=(*rows.notes, *notes)), valid, scorer, loaded, engine, device)


def valid_section(config: RunConfig) -> DatasetConfig | None:
    """The held-out rows: `valid_dataset`, else what `train_dataset.held_out` keeps, else the test split of a task. Raises
    DataError.
    """
    train = config.train_dataset
    if config.valid_dataset is not None:
        return config.valid_dataset
    if train.held_out > 0:
        return train
    try:
        task = None if train.path is None else task_of(train.path)
    except DataError as error:
        raise DataError(f"train_dataset: {error}") from error
    return None if task is None else train.read_alike(split="test", where=train.where)


def prompts_of(
    config: RunConfig,
    rows: TaskRows,
    section: DatasetConfig,
    loaded: LoadedModel,
    name: str,
    reserve: int | None = None,
) -> Prompts:
    """Render rows so that every prompt leaves room for a whole response: `reserve` tokens, or as the longest of all stages."""
    room = longest(config) if reserve is None else reserve
    return render_prompts(rows.rows, loaded.tokenizer, section, context=loaded.context, reserve=room, section=name)


def saved_tokenizer(config: RunConfig, loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """What lies beside an exported model: its template shows prompts as training did."""
    section = config.train_dataset
    return carrying(loaded.tokenizer, section.chat_template, section.chat_template_kwargs, section.prefill)


def longest(config: RunConfig) -> int:
    """The largest `max_new_tokens` of all stages: what prompts leave room for, and what evaluations may use, so that
    they can be compared over the whole run."""
    return max(one.gconfig.max_new_tokens for one in stage_configs(config))


def check_run(config: RunConfig, extras: Extras, resume: Path | None) -> Path | None:
    """The checkpoint that the run goes on from, if it does. Raises for all mistakes that show before anything is loaded."""
    refuse_untrainable(config, composed(config), own_workflow=is_own(config, extras.workflow))
    require_trackers(config.report.trackers)
    if config.actor.lora is not None or (config.critic is not None and config.critic.lora is not None):
        require_peft()
    if resume is None:
        return None
    newest = resume_point(resume)
    extras.check(resume)
    return newest


@contextmanager
def build(config: RunConfig, extras: Extras, resume: Path | None = None, ranks: Ranks = ALONE) -> Iterator[Run]:
    """Everything of a training run, for rank 0; closed in the end, also when it fails. The others `follow_run` meanwhile."""
    own_workflow, newest = is_own(config, extras.workflow), check_run(config, extras, resume)
    with (
        workflow_for(config, extras.workflow) as workflow,
        stage(config, extras.rewards, own_workflow=own_workflow, ranks=ranks) as made,
    ):
        refuse_unevaluated(config, held_out=made.valid_rows is not None)
        plan = composed(config, _part_weights(config, made.scorer))
        prompts = prompts_of(config, made.train_rows, config.train_dataset, made.loaded, "train_dataset")
        steps = _total_steps(plan, len(prompts.prompts))
        starting, started = _starting(config, made.loaded), fingerprint(made.loaded.model)
        outline, tokenizer = told(ranks, Outline(plan.needs, steps)), saved_tokenizer(config, made.loaded)
        team = make_team(config, made.loaded, made.device, outline, tokenizer, ranks)
        follow_team(made.engine, team)
        state = team.load(newest) if newest else None
        folder, settings = resume or new_folder(config), plain(config)
        made.scorer.judges.keep(folder)
        title = f"{config.experiment_name}/{folder.name}"
        run = Run(
            config, folder, team, made.engine, rollouts_of(config, made, workflow, prompts),
            tuple(_phase(one, extras.keep) for one in plan.stages), steps,
            Reporter(config.report, RunFacts(folder, title, steps, settings, state["step"] if state else 0)),
            _eval_plan(config, made, workflow), extras.names, tuple(sorted(made.scorer.names)), starting=starting,
            started=started, judges=made.scorer.judges if config.reward.judges else None,
        )  # fmt: skip
        made.scorer.follow(lambda: TrainerState(run.rollouts.version, steps))
        if state:
            if team.learner.reference is not None or config.actor.lora is not None:
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
            dismiss(ranks)


def follow_run(config: RunConfig, ranks: Ranks) -> None:
    """What a rank that does not lead does in a run: the same models, and with them what rank 0 says. It has no data, no rewards,
    no engine and no files. Raises RankLost where rank 0 ended with an error.
    """
    device = device_here()
    policy = load_policy(config, loading_place(config, device, ranks))
    unknown: Any = None
    follow(make_team(config, policy, device, told(ranks, unknown), policy.tokenizer, ranks))


def _restore(run: Run, state: Mapping[str, Any], source: Path | None) -> None:
    """Before any file of the run is touched: a checkpoint that does not fit leaves the folder as it was."""
    try:
        run.load_state_dict(state)
    except ValueError as error:
        raise RunFolderError(f"{source} cannot be continued with this config: {error}") from error
    run.publish(run.first_step)


def _starting(config: RunConfig, loaded: LoadedModel) -> dict[str, torch.Tensor]:
    """The weights before any checkpoint is read, where evaluations take the engine away from them; else none."""
    if config.rollout.policy == "newest" or config.evaluator.freq_steps is None:
        return {}
    return {name: weight.clone() for name, weight in weights(loaded.model)}


def rollouts_of(config: RunConfig, made: Stage, workflow: Workflow, prompts: Prompts) -> Rollouts:
    """What a stage sets (filter, retries, sizes) is put in place when it begins."""
    epochs = config.total_train_epochs if config.total_train_steps is None else None
    sampling = config.actor.dynamic_sampling
    return Rollouts(
        made.engine, workflow, _source_of(config, made, prompts), made.scorer,
        config.gconfig.sampling(made.loaded.stop_ids), config.gconfig.n_samples, config.seed,
        max_error_share=config.reward.max_error_share,
        prompt_limit=None if epochs is None else epochs * len(prompts.prompts), judge=made.scorer.judge,
        rates=PassRates(1.0 if sampling is None else sampling.correct_threshold),
        chat=chat_with(config, made.loaded, config.train_dataset), context=made.loaded.context,
    )  # fmt: skip


def chat_with(config: RunConfig, loaded: LoadedModel, section: DatasetConfig) -> Chat:
    """Conversations that go on from the prompts of a section."""
    return chat_of(loaded.tokenizer, section, config.gconfig.sampling(loaded.stop_ids).stop_ids)


def _source_of(config: RunConfig, made: Stage, prompts: Prompts) -> PromptSource:
    """What prompts are drawn from. `prompts`: all of them, unless they are read as the run goes."""
    section = config.train_dataset
    if not section.streaming:
        return in_order(prompts.prompts, section, config.seed)
    sieve = Sieve(rendering_of(made.loaded.tokenizer, section), section, made.loaded.context, longest(config))
    return stream_of(section, sieve, config.seed)


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

    def accepted(group: Group) -> bool:
        return all(accept(group) for accept in filters)

    asked = sampling or DynamicSampling()
    return Refill(
        accepted, asked.max_batches, not config.dynamic_bs, asked.oversample, asked.surplus_steps, asked.on_limit
    )


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
    asked, measures = config.evaluator, Measures.of(config.evaluator, made.scorer.names)
    room = max(longest(config), asked.max_new_tokens or 0)
    rendered = prompts_of(config, made.valid_rows, section, made.loaded, "valid_dataset", reserve=room)
    prompts = rendered.prompts[: asked.n_prompts]
    measures.check(prompts)
    usual = replace(config.gconfig.sampling(made.loaded.stop_ids), max_new_tokens=longest(config))
    chat, context = chat_with(config, made.loaded, section), made.loaded.context
    evaluator = Evaluator(made.engine, workflow, made.scorer, config.seed, made.scorer.judge, chat, context)
    return EvalPlan(evaluator, prompts, asked.sampling(usual), measures)
