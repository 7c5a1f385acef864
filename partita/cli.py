"""The command line: `partita train | sft | rm | dpo | launch | data | generate | eval | config | export | explain | replay`.

A mistake of the user's ends with one readable message and exit code 2; a run that cannot go on, with code 1.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from partita.algo.explain import Subject, explain
from partita.algo.presets import PRESETS
from partita.cli_eval import evaluate, generate
from partita.cli_launch import launch_command
from partita.cli_load import check_sampled, kind_on_data, load_config, near_preset, write_file
from partita.cli_plan import plan
from partita.config import ConfigError
from partita.config.document import dump
from partita.config.errors import Problem, near_value
from partita.config.schema import plain
from partita.ends import Told, hearing
from partita.engine.servers.api import EngineError
from partita.launch.ended import EARLY, LaunchError, LaunchRefused
from partita.launch.start import Asked, launch, launches, own_command
from partita.look import Request as LookRequest
from partita.look import look
from partita.models.load import ModelLoadError
from partita.models.lora import AdapterError, MissingPeftError
from partita.models.selfcheck import ModelRefused
from partita.offline.build import build as build_offline
from partita.offline.build import follow_run as follow_offline
from partita.offline.config import KINDS, load_offline_config
from partita.offline.explain import explained
from partita.offline.look import look_at_rows
from partita.offline.run import train as train_offline
from partita.ops.ranks import join_ranks
from partita.player import export_run
from partita.replay.replay import ReplayMismatch, Request, replay
from partita.replay.show import document, lines_of
from partita.report.sinks import ReportFileError, strict_json
from partita.report.text import clean
from partita.report.trackers import MissingTrackerError
from partita.rollout.rollouts import RolloutError
from partita.run import RunConfig, composed, load_run_config, stage_configs
from partita.runfolder import CONFIG, DiskError, RunFolderError, begun_folder, resume_point, run_config_of
from partita.tasks.dataset import DataError
from partita.tasks.pool import PoolError
from partita.tasks.prompt import PromptError
from partita.tasks.reward import BudgetReached, RewardErrors, RewardSetupError
from partita.train.checkpoint import CheckpointError
from partita.train.stepper import LearnerError
from partita.train.team import RankLost
from partita.trainer import QUICKSTART, PPOTrainer

USER_ERRORS = (
    ConfigError, DataError, PromptError, ModelLoadError, ModelRefused, RewardSetupError, RunFolderError, ReportFileError,
    MissingTrackerError, MissingPeftError, AdapterError, LaunchRefused,
)  # fmt: skip
RUN_ERRORS = (
    PoolError, RolloutError, RewardErrors, BudgetReached, LearnerError, CheckpointError, DiskError, ReplayMismatch, LaunchError,
    EngineError, RankLost,
)  # fmt: skip
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
        check_sampled(resume)
        loaded = run_config_of(resume, [word for word in [target, *(overrides or [])] if word is not None])
    elif target is None:
        raise typer.BadParameter(f"give a YAML file, a preset ({', '.join(PRESETS)}) or --resume RUN")
    else:
        loaded = load_config(target, overrides or [])
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
    config = loaded.value
    if launches(config):
        launch(
            Asked(config, kind, own_command(), resume, lambda folder: f"partita {kind} --resume {quote(str(folder))}")
        )
        return
    told, ranks = Told(), join_ranks()
    if not ranks.leads:
        with hearing(told):  # rank 0 heeds it
            follow_offline(config, ranks)
        return
    with hearing(told), build_offline(config, resume or begun_folder(), ranks) as run:
        run.told = told
        train_offline(run)
        told.heeded = run.early
    if told.heeded:
        raise SystemExit(EARLY)


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
    if kind := kind_on_data(target):
        typer.echo(load_offline_config(kind, target, overrides or []).to_yaml(with_sources=True))
        return
    loaded = load_config(target, overrides or [])
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
    if (known := kind_on_data(target)) or kind != "train":
        look_at_rows(load_offline_config(known or kind, target, words).value, rows, held_out, _say)
        return
    named = target in PRESETS or target.endswith((".yaml", ".yml"))
    path = f"train_dataset.path={dump(target)}"
    loaded = load_config(target, words) if named else load_run_config([QUICKSTART], [path, *words])
    look(loaded.value, LookRequest(rows, score, held_out), _say)


def _say(line: str) -> None:
    """A line with words of the data in it, which must not steer the terminal."""
    typer.echo(clean(line))


app.command(name="launch")(launch_command)
app.command()(plan)
app.command()(generate)
app.command(name="eval")(evaluate)


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
    if kind := kind_on_data(target):
        if against is not None:
            raise ConfigError([Problem("--against", f"{target} is a config of `partita {kind}`, which has no presets")])
        told = explained(target, load_offline_config(kind, target, overrides or []).value, markdown=markdown)
        typer.echo("\n".join(told))
        return
    if against is not None and against not in PRESETS:
        raise ConfigError([Problem("--against", f"{against!r} is not a preset.{near_preset(against)}")])
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
    check_sampled(run)
    found = replay(run, Request(step, tuple(algorithm or ()), tuple(overrides or ()), sample, exact))
    typer.echo("\n".join(lines_of(found, markdown=markdown)))
    if json is not None:
        write_file(json, strict_json(document(found)) + "\n")
    found.check()


def _subjects(target: str, overrides: list[str]) -> list[str | Subject]:
    """What a preset or a file says: one algorithm, or one for each stage."""
    if target in PRESETS and not overrides:
        return [target]
    config = load_config(target, overrides).value
    composed(config)  # raises for keys that exclude each other, with their paths
    title = " with ".join(filter(None, [target, ", ".join(overrides)]))
    titles = [f"{title}, stages[{i}]" for i in range(len(config.stages))] or [title]
    weights = tuple(config.reward.weights or [1.0] * len(config.reward.functions))
    weights += tuple(judge.weight for judge in config.reward.judges.values())
    weights += (config.reward.model_weight,) if config.reward.model else ()
    weights += (config.reward.process_model_weight,) if config.reward.process_model else ()
    return [_subject(title, one, weights) for title, one in zip(titles, stage_configs(config), strict=True)]


def _subject(title: str, config: RunConfig, weights: tuple[float, ...]) -> Subject:
    sampled = config.gconfig
    sampling: dict[str, object] = {"gconfig.adaptive_n": plain(sampled.adaptive_n)} if sampled.adaptive_n else {}
    if config.rollout.policy != "newest":
        sampling["rollout.policy"] = config.rollout.policy
    return Subject(title, config.actor, sampled.n_samples, sampled.max_new_tokens, weights, beside=sampling)


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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: no name or text of the data ends a command
    with readable_errors():
        app()


if __name__ == "__main__":
    main()
