"""The command `partita plan`: a run before its start, in tables.

Left out: planning (`plan.plan`), and runs on data, whose memory docs/models-in-memory.md adds up.
"""

from __future__ import annotations

from typing import Annotated

import typer

from partita.cli_load import kind_on_data, load_config
from partita.config import ConfigError
from partita.config.errors import Problem
from partita.plan.plan import Request, plan_run
from partita.plan.show import document, lines_of
from partita.report.sinks import strict_json


def plan(
    target: Annotated[str, typer.Argument(help="a YAML file, or a preset on the built-in task")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, +key=value or ~key")] = None,
    calibrate: Annotated[
        bool, typer.Option(help="measure ten seconds of the real work here, else count floating-point operations")
    ] = True,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GiB of a machine, or of a GPU; default: this one's")
    ] = None,
    response: Annotated[
        float | None, typer.Option(min=1, help="expected tokens of a response; default: as calibrated")
    ] = None,
    link: Annotated[
        float | None, typer.Option(min=0, help="GB/s between processes; default: 1.25, with GPUs 25")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Batches, memory and time of a run, before it starts; refuses what does not fit, and says which keys to change."""
    if kind := kind_on_data(target):
        told = f"a config of `partita {kind}`; this plans runs of `partita train`. docs/models-in-memory.md adds up its memory"
        raise ConfigError([Problem(target, told)])
    request = Request(calibrate, memory, response, None if link is None else link * 1e9)
    found = plan_run(load_config(target, overrides or []).value, request)
    typer.echo(strict_json(document(found)) if json else "\n".join(lines_of(found)))
    found.check()
