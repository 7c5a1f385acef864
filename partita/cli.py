"""The command line: `partita train | sft | rm | dpo | data | generate | eval | config | export | explain | replay`.

A mistake of the user's ends with one readable message and exit code 2; a run that cannot go on, with code 1.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from partita.algo.explain import Subject, explain
from partita.algo.presets import PRESETS
from partita.config import ConfigError, Loaded
from partita.config.document import dump
from partita.config.errors import Problem, near_value
from partita.config.schema import plain
from partita.evals.config import asked_for
from partita.evals.show import Evaluated, comparisons, headline, rows_of
from partita.evals.show import document as document_of_evaluation
from partita.evals.show import lines_of as lines_of_evaluation
from partita.extras import brought_to
from partita.look import Request as LookRequest
from partita.look import look
from partita.models.load import ModelLoadError
from partita.models.lora import AdapterError, MissingPeftError
from partita.models.selfcheck import ModelRefused
from partita.offline.build import build as build_offline
from partita.offline.config import KINDS, command_of, load_offline_config
from partita.offline.explain import explained
from partita.offline.look import look_at_rows
from partita.offline.run import train as train_offline
from partita.player import complete, export_run
from partita.player import evaluate as evaluate_model
from partita.replay.replay import ReplayMismatch, Request, replay
from partita.replay.show import document, lines_of
from partita.report.sinks import ReportFileError, strict_json, write_atomic
from partita.report.text import clean
from partita.report.trackers import MissingTrackerError
from partita.rollout.rollouts import RolloutError
from partita.run import RunConfig, composed, load_run_config, stage_configs
from partita.runfolder import CONFIG, EXPORT, DiskError, RunFolderError, resume_point, run_config_of
from partita.tasks.dataset import DataError
from partita.tasks.pool import PoolError
from partita.tasks.prompt import PromptError
from partita.tasks.reward import RewardErrors, RewardSetupError
from partita.train.checkpoint import CheckpointError
from partita.train.stepper import LearnerError
from partita.trainer import QUICKSTART, PPOTrainer

USER_ERRORS = (
    ConfigError, DataError, PromptError, ModelLoadError, ModelRefused, RewardSetupError, RunFolderError, ReportFileError,
    MissingTrackerError, MissingPeftError, AdapterError,
)  # fmt: skip
RUN_ERRORS = (PoolError, RolloutError, RewardErrors, LearnerError, CheckpointError, DiskError, ReplayMismatch)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RL post-training of language models.",
)

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, +key=value or ~key")]


@app.command()
def train(
    target: Annotated[str | None, typer.Argument(help="a YAML file, or a preset on the built-in task")] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run folder")] = None,
) -> None:
    """Train, from a config file or a preset, or go on with a run."""
    if resume is not None:
        _check_sampled(resume)
        loaded = run_config_of(resume, [word for word in [target, *(overrides or [])] if word is not None])
    elif target is None:
        raise typer.BadParameter(f"give a YAML file, a preset ({', '.join(PRESETS)}) or --resume RUN")
    else:
        loaded = _load(target, overrides or [])
    PPOTrainer(loaded.value, resume=resume).train()


def _offline(kind: str, target: str | None, overrides: list[str] | None, resume: Path | None) -> None:
    """Train on data, from a YAML file or a file of rows, or go on with a run."""
    if resume is not None:
        resume_point(resume)  # raises for a folder that is no run's
        words = [word for word in [target, *(overrides or [])] if word is not None]
        loaded = load_offline_config(kind, resume / CONFIG, words)
    elif target is None:
        raise typer.BadParameter("give a YAML file, a file of rows or --resume RUN")
    else:
        loaded = load_offline_config(kind, target, overrides or [])
    with build_offline(loaded.value, resume) as run:
        train_offline(run)


OfflineTarget = Annotated[str | None, typer.Argument(help="a YAML file, or rows (.jsonl, .json, .csv, .parquet)")]
Resume = Annotated[Path | None, typer.Option(help="go on with this run folder")]


@app.command()
def sft(target: OfflineTarget = None, overrides: Overrides = None, resume: Resume = None) -> None:
    """Supervised fine-tuning on conversations: the answers are learned, each with the token that ends it."""
    _offline("sft", target, overrides, resume)


@app.command()
def rm(target: OfflineTarget = None, overrides: Overrides = None, resume: Resume = None) -> None:
    """Train a reward model on preferences (chosen, rejected)."""
    _offline("rm", target, overrides, resume)


@app.command()
def dpo(target: OfflineTarget = None, overrides: Overrides = None, resume: Resume = None) -> None:
    """Learn from preferences (DPO, IPO, SimPO, ORPO, ...) or from judged answers (KTO)."""
    _offline("dpo", target, overrides, resume)


@app.command()
def config(target: Annotated[str, typer.Argument(help="a YAML file or a preset")], overrides: Overrides = None) -> None:
    """Print the resolved config and where each value came from."""
    if kind := _kind_on_data(target):
        typer.echo(load_offline_config(kind, target, overrides or []).to_yaml(with_sources=True))
        return
    loaded = _load(target, overrides or [])
    typer.echo(loaded.to_yaml(with_sources=True))
    composed(loaded.value)  # keys that exclude each other: better known before a run


@app.command()
def data(
    target: Annotated[str, typer.Argument(help="a YAML file, a preset, a file of rows, a task or a data set name")],
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="whose tokenizer and template; default: the config's")] = None,
    kind: Annotated[str, typer.Option(help="of a file of rows: train (prompts), sft, rm or dpo")] = "train",
    rows: Annotated[int, typer.Option(min=0, help="rows to show in full")] = 3,
    score: Annotated[int, typer.Option(min=0, help="rows whose gold answers the reward is asked about")] = 100,
    held_out: Annotated[bool, typer.Option("--held-out", help="the rows that are evaluated on")] = False,
) -> None:
    """What a run would see of its data: rows, lengths, prompts as text and ids, and what the reward says to gold answers."""
    words = [*([f"actor.path={model}", "tokenizer_path=null"] if model else []), *(overrides or [])]
    if kind not in ("train", *KINDS):
        raise ConfigError(
            [Problem("--kind", f"{kind!r} is none of train, {', '.join(KINDS)}.{near_value(kind, KINDS)}")]
        )
    if (known := _kind_on_data(target)) or kind != "train":
        look_at_rows(load_offline_config(known or kind, target, words).value, rows, held_out, typer.echo)
        return
    named = target in PRESETS or target.endswith((".yaml", ".yml"))
    path = f"train_dataset.path={dump(target)}"
    loaded = _load(target, words) if named else load_run_config([QUICKSTART], [path, *words])
    look(loaded.value, LookRequest(rows, score, held_out), typer.echo)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="a run folder, a model folder or a name")],
    prompt: Annotated[str, typer.Option(help="what the user says")],
    samples: Annotated[int, typer.Option(min=1)] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="config key=value")] = None,
) -> None:
    """Print completions of one prompt."""
    words = [f"gconfig.max_new_tokens={max_new_tokens}", "actor.max_new_tokens=null", f"seed={seed}"]
    loaded = _load("", [*words, *(overrides or [])], model)
    for text in complete(loaded.value, prompt, samples, temperature):
        typer.echo(clean(text) + ("\n" if samples > 1 else ""))


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="a run folder, a model folder or a name")],
    other: Annotated[str | None, typer.Argument(help="another one, to compare with on the same prompts")] = None,
    task: Annotated[
        str | None, typer.Option(help="built-in task, data file or dataset; a run folder has its own")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="reward function; the task's own if not given")] = None,
    n: Annotated[int, typer.Option(min=1, help="held-out prompts")] = 200,
    samples: Annotated[
        int | None, typer.Option(min=1, help="samples per prompt; the largest k, else the run's")
    ] = None,
    k: Annotated[str | None, typer.Option(help="of pass@k and maj@k, as 1,4,16")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="default: the run's; 0 (greedy) is for 1 sample")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="default: the run's")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: the run's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="of the samples; default: the run's")] = None,
    by: Annotated[str | None, typer.Option(help="a column, to tell of each of its values")] = None,
    correct_by: Annotated[str | None, typer.Option(help="the part of the reward that says what is right")] = None,
    answer_of: Annotated[
        str | None, typer.Option(help="what votes in maj@k: math, number, choice, text, ... or path/file.py:function")
    ] = None,
    compare: Annotated[bool, typer.Option(help="also the model the run started from, and the difference")] = False,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file, each prompt's too")] = None,
    save: Annotated[Path | None, typer.Option(help="write all samples to this file, a line of JSON each")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="config key=value")] = None,
) -> None:
    """Reward, avg@k, pass@k and maj@k on held-out prompts, with 95 % intervals; of two models also how they differ."""
    if absent := [file for file in (json, save) if file is not None and not file.parent.is_dir()]:
        raise RunFolderError(f"{absent[0]} cannot be written: there is no folder {absent[0].parent}")
    config = _eval_config(model, task, reward, overrides or [])
    beside = _beside(config, model, other, compare)
    given = {
        "n_prompts": n, "n_samples": samples, "k": k, "temperature": temperature,
        "top_p": top_p, "max_new_tokens": max_new_tokens, "by": by, "correct_by": correct_by, "answer_of": answer_of,
    }  # fmt: skip
    settings, found = asked_for(config.evaluator, given), list[Evaluated]()
    for one in [config, *beside]:
        evaluated, asked = evaluate_model(one, settings, seed)
        typer.echo(headline(evaluated, asked))
        found.append(evaluated)
        if save is not None:  # before anything can go wrong with a second model
            _write(save, "".join(strict_json(row) + "\n" for row in rows_of(found, asked.measures)))
    compared = comparisons(found)
    typer.echo("\n".join(lines_of_evaluation(found, compared, asked.measures)))
    for note in dict.fromkeys(note for one in found for note in one.summary.notes):
        typer.echo(f"warning: {note}", err=True)
    if json is not None:
        _write(json, strict_json(document_of_evaluation(found, compared, asked)) + "\n")


def _eval_config(model: str, task: str | None, reward: str | None, overrides: list[str]) -> RunConfig:
    """The config of the model's run, or the quickstart's, with the data and the reward of the command line."""
    _check_reward(Path(model), reward)
    only = (
        [f"reward.functions=[{reward}]", "reward.weights=null", "reward.model=null", "~reward.options"]
        if reward
        else []
    )
    config = _load("", [*overrides, *only], model).value
    if task is None:
        return config
    # read as the training rows are: columns, template, instruction
    alike = config.train_dataset.read_alike(path=task, split="test")
    train = replace(config.train_dataset, held_out=0.0)  # whose rows are not asked for
    return replace(config, train_dataset=train, valid_dataset=alike)


def _beside(config: RunConfig, model: str, other: str | None, compare: bool) -> list[RunConfig]:
    """The config of what the model is compared with: the same prompts, samples and rewards."""
    if compare and other is not None:
        raise ConfigError(
            [Problem("--compare", f"is with the model that the run started from, and {other} is given as well")]
        )
    if compare:
        _check_sampled(Path(model))
    elif other is None:
        return []
    start = run_config_of(Path(model), []).value if other is None else _load("", [], other).value
    actor = replace(config.actor, path=start.actor.path)
    return [replace(config, actor=actor, tokenizer_path=start.tokenizer_path)]


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    folder: Annotated[Path, typer.Argument(help="where to write the model")],
    step: Annotated[int | None, typer.Option(min=1, help="default: the newest checkpoint")] = None,
) -> None:
    """Write a checkpoint of a run as a model folder that `transformers` loads."""
    typer.echo(f"wrote {export_run(run, folder, step)}")


@app.command(name="explain")
def explain_command(
    target: Annotated[str, typer.Argument(help="a preset or a YAML file")],
    overrides: Overrides = None,
    against: Annotated[str | None, typer.Option(help="the preset to compare with, by default grpo")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
) -> None:
    """An algorithm in words: objective, keys, parts, paper, what is idle in it, and how it differs from another."""
    if kind := _kind_on_data(target):
        if against is not None:
            raise ConfigError([Problem("--against", f"{target} is a config of `partita {kind}`, which has no presets")])
        told = explained(target, load_offline_config(kind, target, overrides or []).value, markdown=markdown)
        typer.echo("\n".join(told))
        return
    if against is not None and against not in PRESETS:
        raise ConfigError([Problem("--against", f"{against!r} is not a preset.{_near_preset(against)}")])
    told = [explain(what, against=against, markdown=markdown) for what in _subjects(target, overrides or [])]
    typer.echo("\n\n".join("\n".join(lines) for lines in told))


@app.command(name="replay")
def replay_command(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    step: Annotated[int, typer.Option(min=1, help="which train step")],
    algorithm: Annotated[list[str] | None, typer.Option(help="a preset to see on the same samples; repeatable")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="actor.key=value, on top of each preset, else of the trained keys")
    ] = None,
    sample: Annotated[int | None, typer.Option(min=0, help="print the tokens of this sample, counted from 0")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="also true gradients, through the model of before the step")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    json: Annotated[Path | None, typer.Option(help="write all numbers to this file")] = None,
) -> None:
    """Compute a step again from its saved numbers, and show what other algorithms would have done with its samples."""
    _check_sampled(run)
    found = replay(run, Request(step, tuple(algorithm or ()), tuple(overrides or ()), sample, exact))
    typer.echo("\n".join(lines_of(found, markdown=markdown)))
    if json is not None:
        _write(json, strict_json(document(found)) + "\n")
    found.check()


def _write(file: Path, text: str) -> None:
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise RunFolderError(f"{file} cannot be written: {error.strerror}") from error


def _load(target: str, overrides: list[str], model: str | None = None) -> Loaded[RunConfig]:
    """A config from a file, a preset, or (for playing) from a run folder or a model name on the quickstart's task."""
    if model is not None:
        folder = Path(model)
        if (folder / CONFIG).exists():
            kind = command_of(folder / CONFIG) or "train"
            if kind == "rm":
                _check_sampled(folder)  # a reward model answers nothing
            if not (folder / EXPORT).exists():
                write = f", or write a checkpoint as a model (partita export {folder} FOLDER) and name that folder"
                raise RunFolderError(
                    f"{folder} has no {EXPORT}/: the run has not come to its end. Go on with it (partita {kind} --resume "
                    f"{folder}){write}"
                )
            if kind != "train":  # its config says nothing of prompts and rewards
                return load_run_config([QUICKSTART], [f"actor.path={folder / EXPORT}", *overrides])
            # the export has the run's tokenizer, whichever that was
            plainly = ["tokenizer_path=null", "actor.lora=null"]  # adapters are merged into the export
            return run_config_of(folder, [f"actor.path={folder / EXPORT}", *plainly, *overrides])
        return load_run_config([QUICKSTART], [f"actor.path={model}", *overrides])
    if target in PRESETS:
        return load_run_config([QUICKSTART], [f"algorithm={target}", f"experiment_name={target}", *overrides])
    if not target.endswith((".yaml", ".yml")) and not Path(target).exists():
        raise ConfigError([Problem(target, f"neither a YAML file nor a preset.{_near_preset(target)}")])
    if kind := _kind_on_data(target):
        raise ConfigError([Problem(target, f"a config of `partita {kind}`, not of `partita train`: use that command")])
    return load_run_config([Path(target)], overrides)


def _kind_on_data(target: str) -> str | None:
    """Whether a file is a config of training on data, and of which command."""
    kind = command_of(Path(target)) if target.endswith((".yaml", ".yml")) else None
    return kind if kind in KINDS else None


def _check_sampled(folder: Path) -> None:
    """Raise RunFolderError for a run on data, where only one of `partita train` will do."""
    kind = command_of(folder / CONFIG)
    if kind in KINDS:
        use = "a reward model, for reward.model" if kind == "rm" else "a model as any other"
        raise RunFolderError(
            f"{folder} is a run of `partita {kind}`, which goes on by `partita {kind} --resume {folder}`; what it learned is in "
            f"{folder / EXPORT}, {use}"
        )


def _near_preset(name: str) -> str:
    return f"{near_value(name, PRESETS)} Presets: {', '.join(PRESETS)}"


def _subjects(target: str, overrides: list[str]) -> list[str | Subject]:
    """What a preset or a file says: one algorithm, or one for each stage."""
    if target in PRESETS and not overrides:
        return [target]
    config = _load(target, overrides).value
    composed(config)  # raises for keys that exclude each other, with their paths
    title = " with ".join(filter(None, [target, ", ".join(overrides)]))
    titles = [f"{title}, stages[{i}]" for i in range(len(config.stages))] or [title]
    weights = tuple(config.reward.weights or [1.0] * len(config.reward.functions))
    weights += (config.reward.model_weight,) if config.reward.model else ()
    return [_subject(title, one, weights) for title, one in zip(titles, stage_configs(config), strict=True)]


def _subject(title: str, config: RunConfig, weights: tuple[float, ...]) -> Subject:
    sampled = config.gconfig
    sampling: dict[str, object] = {"gconfig.adaptive_n": plain(sampled.adaptive_n)} if sampled.adaptive_n else {}
    if config.rollout.policy != "newest":
        sampling["rollout.policy"] = config.rollout.policy
    return Subject(title, config.actor, sampled.n_samples, sampled.max_new_tokens, weights, beside=sampling)


def _check_reward(model: Path, reward: str | None) -> None:
    """Raise RunFolderError where a run's config does not say what it was rewarded for, and nobody else does."""
    brought = brought_to(model)
    if brought.rewards and reward is None:
        raise RunFolderError(
            f"the reward of {model} came from Python ({', '.join(brought.rewards)}) and is not in its config: give it with "
            "--reward path/file.py:function"
        )
    if brought.workflow:
        workflow = f"{model} was trained with the workflow {brought.workflow}"
        typer.echo(f"warning: {workflow}; this samples one completion of each prompt", err=True)


@contextmanager
def readable_errors() -> Iterator[None]:
    """End the process with one message: code 2 for a mistake of the user's, 1 for a run that cannot go on."""
    before, warnings.formatwarning = warnings.formatwarning, lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    except (*USER_ERRORS, *RUN_ERRORS) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, USER_ERRORS) else 1)
    finally:
        warnings.formatwarning = before


def main() -> None:
    """Entry point of the `partita` command."""
    with readable_errors():
        app()


if __name__ == "__main__":
    main()
