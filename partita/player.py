"""A trained (or any) model without training: complete a prompt, evaluate on held-out rows, export a checkpoint.

Left out: what the commands print (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from partita.build import (
    chat_with,
    ended_by,
    is_own,
    longest,
    prompts_of,
    saved_tokenizer,
    stage,
    valid_section,
    workflow_for,
)
from partita.engine.api import Engine
from partita.evals.config import EvaluatorConfig
from partita.evals.evaluate import EVAL_STREAM, Evaluator
from partita.evals.measures import Measures, summarise
from partita.evals.show import Asked, Evaluated
from partita.models.export import export_hf
from partita.models.load import LoadedModel
from partita.offline.config import KINDS, command_of, load_offline_config
from partita.offline.models import load_model, write_model
from partita.records import Prompt, Sample, StopReason
from partita.rollout.episodes import Setting, play
from partita.run import RunConfig
from partita.run_models import load_policy, open_engine
from partita.runfolder import (
    CHECKPOINTS,
    CONFIG,
    RunFolderError,
    disk_full_is_readable,
    resume_point,
    run_config_of,
)
from partita.tasks.chat import Chat
from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import render_prompts
from partita.tasks.reward import Ask, Scored
from partita.train.checkpoint import load_checkpoint, whole_checkpoints


def complete(config: RunConfig, words: str, samples: int, temperature: float) -> list[str]:
    """Completions of one user message by the model `actor.path`; with a workflow of the config's own, whole conversations."""
    with workflow_for(config) as workflow, _engine(config) as (loaded, engine):
        row = TaskRow("prompt", ({"role": "user", "content": words},), None, {})
        section = config.train_dataset
        [prompt] = render_prompts([row], loaded.tokenizer, section, context=loaded.context, section="prompt").prompts
        sampling = replace(config.gconfig.sampling(loaded.stop_ids), temperature=temperature)
        chat = chat_with(config, loaded, section)
        setting = Setting(
            engine, workflow, Unscored(), sampling, config.seed, EVAL_STREAM, chat=chat, context=loaded.context
        )
        [group] = asyncio.run(play(setting, [(0, prompt)], samples))
        if not is_own(config):
            return [sample.text for sample in group.samples]
        return [_conversation(sample, prompt, chat) for sample in group.samples]


@contextmanager
def _engine(config: RunConfig) -> Iterator[tuple[LoadedModel, Engine]]:
    loaded, engine, _ = open_engine(config)
    with ended_by(engine.close):
        yield loaded, engine


class Unscored:
    """A scorer where nothing is to be scored."""

    async def score(
        self,
        prompt: Prompt,
        text: str,
        ids: Sequence[int],
        stop_reason: StopReason,
        ask: Ask | None = None,
        transcript: str | None = None,
    ) -> Scored:
        """No reward."""
        return Scored(None, status="not_applicable", error="nothing is scored here")


def _conversation(sample: Sample, prompt: Prompt, chat: Chat) -> str:
    """All that followed the prompt, or an opening that took its place, and what went wrong."""
    last, opening = sample.rows[-1].ids, list(prompt.ids)
    text = chat.decode(last[len(opening) :] if last[: len(opening)] == opening else last)
    return f"{text}\n[{sample.error.splitlines()[0]}]" if sample.status == "reward_error" else text


def evaluate(
    config: RunConfig, settings: EvaluatorConfig | None = None, seed: int | None = None
) -> tuple[Evaluated, Asked]:
    """Sample the model `actor.path` on the first held-out rows and measure; by default as `evaluator` and `seed` of the config
    say. The rows are those of the config's seed in any case.
    """
    settings, seed = settings or config.evaluator, config.seed if seed is None else seed
    config = _with_room(config, settings.max_new_tokens)
    with workflow_for(config) as workflow, stage(config, held_out_only=True, own_workflow=is_own(config)) as made:
        section = valid_section(config)
        assert section is not None and made.valid_rows is not None, "stage refuses a config without held-out rows"
        rendered = prompts_of(config, made.valid_rows, section, made.loaded, "valid_dataset").prompts
        prompts, measures = rendered[: settings.n_prompts], Measures.of(settings, made.scorer.names)
        measures.check(prompts)
        usual = replace(config.gconfig.sampling(made.loaded.stop_ids), max_new_tokens=longest(config))
        sampling = settings.sampling(usual)
        chat, context = chat_with(config, made.loaded, section), made.loaded.context
        made.scorer.judges.keep(None)
        evaluator = Evaluator(made.engine, workflow, made.scorer, seed, made.scorer.judge, chat, context)
        evaluation = asyncio.run(evaluator.run(prompts, sampling, settings.n_samples))
    asked = Asked(str(section.path), section.split, len(prompts), settings.n_samples, sampling, seed, measures)
    return Evaluated(config.actor.path, evaluation, summarise(evaluation.groups, measures, settings.n_samples)), asked


def _with_room(config: RunConfig, tokens: int | None) -> RunConfig:
    """The config with that many tokens for each response, where it is another number than the run's."""
    if tokens is None:
        return config
    gconfig = replace(config.gconfig, max_new_tokens=tokens, min_new_tokens=min(config.gconfig.min_new_tokens, tokens))
    return replace(config, gconfig=gconfig, actor=replace(config.actor, max_new_tokens=None), stages=[])


def export_run(run: Path, folder: Path, step: int | None) -> Path:
    """Write a checkpoint of `run`, whatever it learns, as a model folder; a reward model without where its scores lie, which is
    known at the end only. Raises RunFolderError for no such checkpoint, and for a folder in use.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists and is not an empty folder: it would be replaced; choose another one")
    resume_point(run)  # raises for a folder that is no run's
    saved = whole_checkpoints(run / CHECKPOINTS)
    found = [path for path in saved if step is None or path.name == f"step_{step:06d}"]
    if not found:
        raise RunFolderError(
            f"{run} has no whole checkpoint{f' of step {step}' if step else ''}; it has: {_names(saved)}"
        )
    loaded, write = _start_of(run)
    load_checkpoint(found[-1], loaded.model, torch.optim.AdamW(loaded.model.parameters()))
    with disk_full_is_readable(folder, f"partita export {run} {folder}"):
        write(folder)
    return folder


def _start_of(run: Path) -> tuple[LoadedModel, Callable[[Path], None]]:
    """The model that a run began with, and what writes it as a folder."""
    kind, device = command_of(run / CONFIG), torch.device("cpu")
    if kind in KINDS:
        config = load_offline_config(kind, run / CONFIG).value
        loaded = load_model(config, device)
        return loaded, partial(write_model, config, loaded)
    sampled = run_config_of(run, ()).value
    loaded = load_policy(sampled, device)
    return loaded, partial(export_hf, loaded.model, saved_tokenizer(sampled, loaded))


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths) or "none"
