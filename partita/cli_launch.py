"""`partita launch`: a run in the processes that its config asks for, also where that is one; or what they would be.

Left out: deciding and starting (`launch.start`). `partita train`, `sft`, `rm` and `dpo` launch too, where the config asks for
more than one process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from partita.build import check_run
from partita.cli_load import kind_on_data, load_config
from partita.extras import Extras
from partita.launch.start import Asked, dry_run, launch
from partita.offline.config import KINDS, command_of, load_offline_config
from partita.runfolder import CONFIG, resume_point, run_config_of


def launch_command(
    target: Annotated[str | None, typer.Argument(help="a YAML file, of any command, or a preset")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, +key=value or ~key")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run folder")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="only print who would run where, and the commands")] = False,
) -> None:
    """Start learners and engine servers, watch them to the end of the run, leave no process."""
    words = [*([] if target is None else [target]), *(overrides or [])]
    if resume is not None:
        asked = _resumed(resume, words)
    elif target is None:
        raise typer.BadParameter("give a YAML file, a preset or --resume RUN")
    else:
        asked = _new(target, words)
    if dry:
        typer.echo("\n".join(dry_run(asked)))
    else:
        launch(asked)


def _new(target: str, words: list[str]) -> Asked:
    kind = kind_on_data(target)
    command = (*_program(kind or "train"), *words)
    if kind is not None:
        loaded = load_offline_config(kind, target, words[1:])
        return Asked(loaded.value, kind, command, None, _go_on)
    config = load_config(target, words[1:]).value
    check_run(config, Extras(), None)
    return Asked(config, "train", command, None, _go_on)


def _resumed(run: Path, words: list[str]) -> Asked:
    resume_point(run)  # raises for a folder that is no run's
    kind = command_of(run / CONFIG) or "train"
    command = (*_program(kind), "--resume", str(run), *words)
    if kind in KINDS:
        config = load_offline_config(kind, run / CONFIG, words).value
    else:
        config = run_config_of(run, words).value
        check_run(config, Extras(), run)
    return Asked(config, kind, command, run, _go_on)


def _go_on(folder: Path) -> str:
    return f"partita launch --resume {quote(str(folder))}"


def _program(kind: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "partita.cli", kind)
