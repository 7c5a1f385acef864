"""Whether a run needs more processes than this one; then its folder is made, its roles are started and watched to their end.

Left out: what starts a process (the launchers), and the command line (`cli_launch`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from partita.launch import processes
from partita.launch.ended import EARLY, LaunchError, LaunchRefused
from partita.launch.roles import (
    ENDPOINTS,
    HOST,
    PORT,
    RENDEZVOUS,
    ROLE,
    STATUS,
    Launch,
    Role,
    Starter,
    placed,
    role_command,
    starter,
)
from partita.launch.servers import rollout_of, server_start
from partita.launch.watch import Terminated
from partita.offline.config import OfflineConfig
from partita.run import RunConfig
from partita.runfolder import CHECKPOINTS, CONFIG, new_folder
from partita.train.checkpoint import latest_checkpoint


@dataclass(frozen=True)
class Asked:
    """A run to launch. kind: its command, as train. command: what each learner runs. resume: the folder of a run to go on with,
    None for a new one. go_on: the command that goes on with the run in a folder.
    """

    config: RunConfig | OfflineConfig
    kind: str
    command: tuple[str, ...]
    resume: Path | None
    go_on: Callable[[Path], str]


def is_role() -> bool:
    """Whether a launcher has started this process."""
    return ROLE in os.environ


def launches(config: RunConfig | OfflineConfig) -> bool:
    """Whether this process is to start others that do the training: it is no role itself, nor one of torchrun's ranks."""
    if is_role() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return False
    asked = config.allocation
    return config.scheduler.type != "local" or asked.learners > 1 or asked.servers > 0


def own_command() -> tuple[str, ...]:
    """The command that started this process, which each learner runs again. Raises LaunchRefused where there is none."""
    words = sys.orig_argv[1:]
    if not words or words[0] == "-" or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise LaunchRefused(
            "a run of several processes starts the same program in each, and a notebook or a prompt is none: write the config "
            "to a file, then: partita launch FILE"
        )
    return (sys.executable, *words)


def launch(asked: Asked) -> Path:
    """Run it to its end and return the run folder.

    Raises ConfigError before anything is started; LaunchError and LaunchRefused for a run that ended otherwise, SystemExit with
    EARLY for one that was told to end.
    """
    made, found = _planned(asked)
    folder = asked.resume or new_folder(asked.config, asked.kind)
    made = replace(made, folder=folder, go_on=asked.go_on(folder))
    with _only_one(made), _told_how_to_go_on(made):
        code = found.going_on(made, _say)
        if code is None:
            _clear(made)
            made.save()
            for line in placement(made):
                _say(line)
            code = found.run(made, _say)
    if code == EARLY:
        _say(f"ended early, as it was told to{_further(made)}")
        raise SystemExit(EARLY)
    return folder


def dry_run(asked: Asked) -> list[str]:
    """What `launch` would start, where. Raises ConfigError as that does."""
    made, found = _planned(asked)
    lines = [*placement(made), "", "commands:"]
    for command, alike in groupby(made.roles, _command):
        lines += [f"  {', '.join(role.name for role in alike)}:", f"    {command}"]
    lines += ["", "each is started by:", f"  {' '.join(role_command(made, made.roles[0]))} (and so on)"]
    more = found.shown(made)
    return [*lines, *(["", *more] if more else [])]


def placement(made: Launch) -> list[str]:
    """Who runs where, with what."""
    rows = [("role", "machine", "cores", "GPUs", "memory", "log")]
    for role in made.roles:
        memory = "-" if role.memory is None else f"{role.memory:g} GiB"
        rows.append((role.name, str(role.node), str(role.cpus), str(role.gpus), memory, str(made.log(role))))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    many = "1 machine" if made.cluster.nodes == 1 else f"{made.cluster.nodes} machines"
    head = f"{made.folder}: {_count(made.learners, 'learner')}, {_count(made.servers, 'server')} on {many} by {made.scheduler.type}"
    cells = (zip(row[:5], widths, strict=True) for row in rows)
    return [
        head,
        *("  ".join(["", *(f"{c:<{w}}" for c, w in line), row[5]]) for line, row in zip(cells, rows, strict=True)),
    ]


def _command(role: Role) -> str:
    """What a role runs, as a shell would take it; its address is not known before."""
    words = [word.replace(HOST, "<host>").replace(PORT, "<port>") for word in role.command]
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(role.env.items())]
    return " ".join([*env, *map(shlex.quote, words)]).replace("'<host>'", "<host>").replace("'<port>'", "<port>")


def _count(roles: Sequence[Role], word: str) -> str:
    return f"{len(roles) or 'no'} {word}{'' if len(roles) == 1 else 's'}"


def _planned(asked: Asked) -> tuple[Launch, Starter]:
    """The launch of a run whose folder may not be there yet."""
    config = asked.config
    found = starter(config.scheduler.type)
    parallel = 1 if (rollout := rollout_of(config)) is None else rollout.server.tensor_parallel
    roles = placed(config.allocation, config.cluster, found.machine(config.cluster), parallel)
    filled = [replace(role, command=asked.command) for role in roles if role.kind == "learner"]
    if servers := [role for role in roles if role.kind == "server"]:
        start = server_start(config, servers[0].gpus)
        filled += [replace(role, command=start.command, env=dict(start.env)) for role in servers]
    trial = config.trial_name or "NUMBER"
    folder = asked.resume or Path(config.output_dir) / config.experiment_name / trial
    made = Launch(
        secrets.token_hex(8), folder, asked.kind, config.scheduler, config.cluster, tuple(filled),
        config.allocation.server_restarts, os.getcwd(), asked.go_on(folder),
    )  # fmt: skip
    return made, found


def _clear(made: Launch) -> None:
    """Take away what an earlier launch in this folder has left. Its logs stay, and are added to."""
    files = [made.files / RENDEZVOUS, *(made.files / ENDPOINTS).glob("*.json"), *(made.files / STATUS).glob("*.json")]
    for file in files:
        file.unlink(missing_ok=True)


@contextmanager
def _only_one(made: Launch) -> Iterator[None]:
    """Raise LaunchRefused where another process launches this run: two would take away each other's files."""
    lock = made.files / STATUS / "launcher.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        if not processes.locked(file):
            raise LaunchRefused(f"{made.folder} is being run by another process: wait for its end, or end it first")
        yield


@contextmanager
def _told_how_to_go_on(made: Launch) -> Iterator[None]:
    try:
        yield
    except (LaunchError, LaunchRefused) as error:
        raise type(error)(f"{error}{_further(made)}") from error
    except (KeyboardInterrupt, Terminated):
        _say(f"stopped, and with it every process of the run{_further(made)}")
        raise


def _further(made: Launch) -> str:
    """The command to go on with; empty for a run that has not begun."""
    if not (made.folder / CONFIG).exists():
        return ""
    last = latest_checkpoint(made.folder / CHECKPOINTS)
    where = f"to go on from {last.name}" if last else "no checkpoint was written yet; to start at step 0 again"
    return f"\n{where}: {made.go_on}"


def _say(line: str) -> None:
    with suppress(BrokenPipeError):
        print(line, flush=True)
