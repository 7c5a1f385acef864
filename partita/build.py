"""From a config to the objects of a run: every part is made here and handed what it needs from above or beside it.

Left out: what happens in a step (`run.Run` and `loop`), and what the keys mean (the sections).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from partita.algo.algorithm import Algorithm
from partita.algo.control import Controls
from partita.algo.review import Review, review
from partita.config import Loaded
from partita.config.schema import plain
from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.evals.evaluate import Evaluator
from partita.models.load import LoadedModel, load_causal_lm
from partita.models.packed import PackedModel
from partita.records import Group
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import write_atomic
from partita.rollout.rollouts import Refill, Rollouts
from partita.rollout.workflow import SingleTurn, Workflow
from partita.run import RunConfig, composed
from partita.runfolder import CHECKPOINTS, CONFIG, RunFolderError, new_folder
from partita.runner import EvalPlan, Run
from partita.tasks.catalog import find_task
from partita.tasks.cursor import Cursor
from partita.tasks.dataset import TaskRows, load_rows
from partita.tasks.prompt import Prompts, render_prompts
from partita.tasks.reward import RewardRuntime
from partita.tasks.settings import DatasetConfig
from partita.train.checkpoint import latest_checkpoint, load_checkpoint
from partita.train.learner import Learner

Rewards = Sequence[Callable[..., Any] | str]


@dataclass(frozen=True)
class Extras:
    """What a Python caller may bring beside the config: rewards as objects, a workflow, a group filter."""

    rewards: Rewards = ()
    workflow: Workflow | None = None
    keep: Callable[[Group], bool] | None = None


@dataclass
class Stage:
    """What training and evaluation share: data, rewards, a model, and an engine that samples from a copy of it."""

    train_rows: TaskRows
    valid_rows: TaskRows | None
    scorer: RewardRuntime
    loaded: LoadedModel
    engine: LocalEngine
    device: torch.device

    def close(self) -> None:
        """End the engine's thread and the reward processes."""
        self.engine.close()
        self.scorer.close()


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
    scorer = RewardRuntime(reward, list(rewards) or list(rows.functions))  # before the model: its workers may fork
    try:
        notes = scorer.check(*rows.rows)
        loaded, engine, device = open_engine(config)
    except BaseException:
        scorer.close()
        raise
    made = Stage(replace(rows, notes=(*rows.notes, *notes)), valid, scorer, loaded, engine, device)
    try:
        yield made
    finally:
        made.close()


def open_engine(config: RunConfig) -> tuple[LoadedModel, LocalEngine, torch.device]:
    """The policy in float32, and an engine that samples from a copy in its own precision."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    actor = config.actor
    loaded = load_causal_lm(actor.path, dtype=torch.float32, trust_remote_code=actor.trust_remote_code, device=device)
    if config.tokenizer_path not in (None, actor.path):
        tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_path, trust_remote_code=actor.trust_remote_code)
        loaded = replace(loaded, tokenizer=tokenizer)
    sampler = copy.deepcopy(loaded.model).to(compute_dtype(config.rollout.dtype, device))
    engine = LocalEngine(
        sampler, loaded.tokenizer, slots=config.rollout.max_concurrent_rollouts, context=loaded.context,
        prefill_tokens=config.rollout.prefill_tokens,
    )  # fmt: skip
    return loaded, engine, device


def valid_section(config: RunConfig) -> DatasetConfig | None:
    """The held-out rows: `valid_dataset`, else the test split of a built-in task."""
    train = config.train_dataset
    if config.valid_dataset is not None:
        return config.valid_dataset
    if train.path is None or Path(train.path).is_file() or find_task(train.path) is None:
        return None
    return replace(train, split="test", size=None, shuffle=False)


def prompts_of(config: RunConfig, rows: TaskRows, section: DatasetConfig, loaded: LoadedModel, name: str) -> Prompts:
    """Render rows so that every prompt leaves room for a whole response."""
    reserve = config.gconfig.max_new_tokens
    return render_prompts(rows.rows, loaded.tokenizer, section, context=loaded.context, reserve=reserve, section=name)


@contextmanager
def build(config: RunConfig, extras: Extras, resume: Path | None = None) -> Iterator[Run]:
    """Everything of a training run; closed in the end, also when the run fails."""
    algorithm, warnings = composed(config)
    with stage(config, extras.rewards) as made:
        prompts = prompts_of(config, made.train_rows, config.train_dataset, made.loaded, "train_dataset")
        steps = _total_steps(config, len(prompts.prompts))
        learner = _learner(config, made, steps, "ref" in algorithm.needs)
        workflow = extras.workflow or SingleTurn()
        rollouts = Rollouts(
            made.engine, workflow, Cursor(prompts.prompts, config.seed, config.train_dataset.shuffle), made.scorer,
            config.gconfig.sampling(made.loaded.stop_ids), config.gconfig.n_samples, config.seed,
            refill=_refill(config, algorithm, extras.keep), max_error_share=config.reward.max_error_share,
        )  # fmt: skip
        folder = resume or new_folder(config)
        newest = latest_checkpoint(folder / CHECKPOINTS)
        state = load_checkpoint(newest, learner.model, learner.optimizer) if newest else None
        done = state["step"] if state else 0
        settings = plain(config)
        title = f"{config.experiment_name}/{folder.name}"
        run = Run(
            config, folder, made.loaded.tokenizer, learner, made.engine, rollouts, algorithm, Controls(), steps,
            Reporter(config.report, RunFacts(folder, title, steps, settings, done)), _eval_plan(config, made, workflow),
        )  # fmt: skip
        if state:
            try:
                run.load_state_dict(state)
            except ValueError as error:
                raise RunFolderError(f"{newest} cannot be continued with this config: {error}") from error
            run.publish(done)
        write_atomic(folder / CONFIG, Loaded(config, settings, {}).to_yaml().encode())
        notes = (*made.train_rows.notes, *prompts.notes, *made.loaded.notes, *warnings)
        run.reporter.start(_facts(config, made, algorithm.needs, notes))
        try:
            yield run
        except BaseException:
            if last := latest_checkpoint(folder / CHECKPOINTS):
                run.reporter.console.warn(f"stopped; to go on from {last.name}: partita train --resume {folder}")
            raise
        finally:
            run.reporter.close()


def _learner(config: RunConfig, made: Stage, steps: int, needs_reference: bool) -> Learner:
    model = made.loaded.model
    reference = _reference(config, made) if needs_reference else None
    if config.actor.gradient_checkpointing:
        model.lm.activation_checkpointing_enable()
        model.train()  # the families recompute in training mode only; every dropout is off
    return Learner(
        model, config.actor, compute_dtype(config.actor.dtype, made.device), config.gconfig.temperature, steps, config.seed,
        reference=reference,
    )  # fmt: skip


def _reference(config: RunConfig, made: Stage) -> PackedModel:
    """The frozen starting policy, or another model, in its own precision."""
    dtype = compute_dtype(config.ref.dtype if config.ref else "auto", made.device)
    path = config.ref.path if config.ref else None
    if path in (None, config.actor.path):
        model = copy.deepcopy(made.loaded.model).to(dtype)
    else:
        trust = config.actor.trust_remote_code
        model = load_causal_lm(path, dtype=dtype, trust_remote_code=trust, device=made.device).model
    return model.requires_grad_(False).eval()


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
    return torch.tensor([s.reward for s in group.samples if s.reward is not None], dtype=torch.float64)


def _total_steps(config: RunConfig, prompts: int) -> int:
    if config.total_train_steps is not None:
        return config.total_train_steps
    assert config.total_train_epochs is not None, "RunConfig checks that one of the two is set"
    return max(1, config.total_train_epochs * prompts // config.train_dataset.batch_size)


def _eval_plan(config: RunConfig, made: Stage, workflow: Workflow) -> EvalPlan | None:
    section = valid_section(config)
    if config.evaluator.freq_steps is None or section is None or made.valid_rows is None:
        return None
    rendered = prompts_of(config, made.valid_rows, section, made.loaded, "valid_dataset")
    sampling = replace(config.gconfig.sampling(made.loaded.stop_ids), temperature=config.evaluator.temperature)
    evaluator = Evaluator(made.engine, workflow, made.scorer, config.seed)
    return EvalPlan(evaluator, rendered.prompts[: config.evaluator.n_prompts], sampling)


def _facts(config: RunConfig, made: Stage, needs: frozenset[str], notes: Sequence[str]) -> dict[str, str]:
    """What the console shows before the first step."""
    found: Review = review(
        config.actor, n_samples=config.gconfig.n_samples, max_new_tokens=config.gconfig.max_new_tokens
    )
    parameters = sum(p.numel() for p in made.loaded.model.parameters())
    precision = str(compute_dtype(config.actor.dtype, made.device)).removeprefix("torch.")
    sampled = str(compute_dtype(config.rollout.dtype, made.device)).removeprefix("torch.")
    batch = f"{config.train_dataset.batch_size} prompts x {config.gconfig.n_samples} samples"
    facts = {
        "model": f"{config.actor.path}, {parameters / 1e6:.1f} M parameters, {made.loaded.path_kind}",
        "task": f"{config.train_dataset.path}, reward {', '.join(made.scorer.names)}",
        "algorithm": config.algorithm or "keys of actor",
        "batch": f"{batch}, at most {config.gconfig.max_new_tokens} new tokens",
        "precision": f"learns in {precision} on float32 weights, samples in {sampled}, on {made.device}",
    }
    if "ref" in needs:
        dtype = str(compute_dtype(config.ref.dtype if config.ref else "auto", made.device)).removeprefix("torch.")
        where = config.ref.path if config.ref and config.ref.path else "the starting policy"
        size = parameters * (2 if dtype == "bfloat16" else 4) / 2**20
        facts["reference"] = f"{where}, {dtype}, {size:.0f} MiB, for the KL term"
    groups = {"data": notes, "inactive": found.inactive, "assumed": found.assumed, "advice": found.advice}
    return facts | {name: "; ".join(lines) for name, lines in groups.items() if lines}
