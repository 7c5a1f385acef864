"""From the words of a command to a config: a file, a preset, a run folder or the name of a model.

Left out: what is done with it (`cli`, `cli_eval`).
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from partita.algo.presets import PRESETS
from partita.config import ConfigError, Loaded
from partita.config.errors import Problem, near_value
from partita.extras import brought_to
from partita.offline.config import KINDS, command_of
from partita.report.sinks import write_atomic
from partita.run import RunConfig, load_run_config
from partita.runfolder import CONFIG, EXPORT, RunFolderError, run_config_of
from partita.trainer import QUICKSTART

HERE = (
    "scheduler.type=local", "allocation.learners=1", "allocation.servers=0", "rollout.backend=local", "rollout.servers=[]",
)  # fmt: skip
"""One process is enough to play with a model, however many trained it; and servers of a run are not taken from it."""


def load_config(target: str, overrides: list[str], model: str | None = None) -> Loaded[RunConfig]:
    """A config from a file, a preset, or (for playing) from a run folder or a model name on the quickstart's task."""
    if model is not None:
        folder = Path(model)
        if (folder / CONFIG).exists():
            kind = command_of(folder / CONFIG) or "train"
            if kind == "rm":
                check_sampled(folder)  # a reward model answers nothing
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
            return run_config_of(folder, [f"actor.path={folder / EXPORT}", *plainly, *HERE, *overrides])
        return load_run_config([QUICKSTART], [f"actor.path={model}", *overrides])
    if target in PRESETS:
        return load_run_config([QUICKSTART], [f"algorithm={target}", f"experiment_name={target}", *overrides])
    if not target.endswith((".yaml", ".yml")) and not Path(target).exists():
        raise ConfigError([Problem(target, f"neither a YAML file nor a preset.{near_preset(target)}")])
    if kind := kind_on_data(target):
        raise ConfigError([Problem(target, f"a config of `partita {kind}`, not of `partita train`: use that command")])
    return load_run_config([Path(target)], overrides)


def kind_on_data(target: str) -> str | None:
    """Whether a file is a config of training on data, and of which command."""
    kind = command_of(Path(target)) if target.endswith((".yaml", ".yml")) else None
    return kind if kind in KINDS else None


def check_sampled(folder: Path) -> None:
    """Raise RunFolderError for a run on data, where only one of `partita train` will do."""
    kind = command_of(folder / CONFIG)
    if kind in KINDS:
        use = "a reward model, for reward.model" if kind == "rm" else "a model as any other"
        raise RunFolderError(
            f"{folder} is a run of `partita {kind}`, which goes on by `partita {kind} --resume {quote(str(folder))}`; what it "
            f"learned is in {folder / EXPORT}, {use}"
        )


def near_preset(name: str) -> str:
    """What a preset might be called, and all of them, for a message."""
    return f"{near_value(name, PRESETS)} Presets: {', '.join(PRESETS)}"


def check_reward(model: Path, reward: str | None) -> None:
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


def write_file(file: Path, text: str) -> None:
    """Write a file whole or not at all. Raises RunFolderError where it cannot be written."""
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise RunFolderError(f"{file} cannot be written: {error.strerror}") from error
