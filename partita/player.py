"""A trained (or any) model without training: complete a prompt, evaluate on held-out rows, export a checkpoint.

Left out: what the commands print (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from partita.build import ended_by, load_policy, longest, open_engine, prompts_of, saved_tokenizer, stage, valid_section
from partita.engine.api import Draw, Request
from partita.evals.evaluate import EVAL_STREAM, Evaluation, Evaluator
from partita.models.export import export_hf
from partita.models.load import LoadedModel
from partita.offline.build import load_model, write_model
from partita.offline.config import KINDS, command_of, load_offline_config
from partita.rollout.workflow import SingleTurn
from partita.run import RunConfig
from partita.runfolder import (
    CHECKPOINTS,
    CONFIG,
    RunFolderError,
    disk_full_is_readable,
    resume_point,
    run_config_of,
)
from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import render_prompts
from partita.train.checkpoint import load_checkpoint, whole_checkpoints


def complete(config: RunConfig, words: str, samples: int, temperature: float) -> list[str]:
    """Completions of one user message by the model `actor.path`."""
    loaded, engine, _ = open_engine(config)
    with ended_by(engine.close):
        row = TaskRow("prompt", ({"role": "user", "content": words},), None, {})
        section = config.train_dataset
        [prompt] = render_prompts([row], loaded.tokenizer, section, context=loaded.context, section="prompt").prompts
        sampling = replace(config.gconfig.sampling(loaded.stop_ids), temperature=temperature)
        draws = [Draw(config.seed, EVAL_STREAM, 0, k) for k in range(samples)]
        futures = engine.submit([Request(prompt.ids, sampling, draw) for draw in draws])
        return [future.result().text for future in futures]


def evaluate(config: RunConfig, samples: int, temperature: float) -> Evaluation:
    """Mean reward of the model `actor.path` on the first `evaluator.n_prompts` held-out rows."""
    with stage(config, held_out_only=True) as made:
        section = valid_section(config)
        assert section is not None and made.valid_rows is not None, "stage refuses a config without held-out rows"
        prompts = prompts_of(config, made.valid_rows, section, made.loaded, "valid_dataset").prompts
        sampling = config.gconfig.sampling(made.loaded.stop_ids)
        sampling = replace(sampling, max_new_tokens=longest(config), temperature=temperature)
        evaluator = Evaluator(made.engine, SingleTurn(), made.scorer, config.seed, made.scorer.judge)
        return asyncio.run(evaluator.run(prompts[: config.evaluator.n_prompts], sampling, samples))


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
