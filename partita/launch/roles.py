"""Roles (learners and engine servers), who gets which machine and what of it, and what a launcher must be able to do.

<run folder>/launch/  plan.json  rendezvous.json  endpoints/server-0.json  logs/learner-0.log  status/learner-0.json
Left out: deciding on a launch (`start`), a role's process (`role`), watching it (`watch`).
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.launch.config import AllocationConfig, ClusterConfig, ResourcesConfig, SchedulerConfig
from partita.launch.ended import write_json

Kind = Literal["learner", "server"]
Say = Callable[[str], None]
ROLE, ID, FOLDER, FILES = "PARTITA_ROLE", "PARTITA_LAUNCH_ID", "PARTITA_RUN_FOLDER", "PARTITA_LAUNCH"
"""Variables of each role's environment: its name, the launch's id, the run folder, and the folder of the launch's files."""
MARK = "PARTITA_MARK"  # the launch's id and the role's name: what a role left over is found by it
HOST, PORT = "host.of.this.server", "59731"
"""What a server's command has in place of the address that its process picks."""
LAUNCH, PLAN, RENDEZVOUS, ENDPOINTS, LOGS, STATUS = (
    "launch", "plan.json", "rendezvous.json", "endpoints", "logs", "status",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What one machine of the run has, as far as is known before the start; all of them have the same."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class Role:
    """One process of the run. node: which machine, from 0. cpus, gpus, memory (GiB): what it gets.

    command: what is run; in a server's, `HOST` and `PORT` stand for the address that its process picks. env: beside what the
    process has anyway.
    """

    kind: Kind
    index: int
    node: int
    cpus: int
    gpus: int
    memory: float | None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """As in learner-0."""
        return f"{self.kind}-{self.index}"


@dataclass(frozen=True)
class Launch:
    """Everything that a launch starts, as `plan.json` holds it. id: of this very launch, so that no process or file of an
    earlier one is taken for its own. folder: the run folder. kind: train, sft, rm or dpo. cwd: where commands run. go_on: the
    command that goes on with the run. size: learners.
    """

    id: str
    folder: Path
    kind: str
    scheduler: SchedulerConfig
    cluster: ClusterConfig
    roles: tuple[Role, ...]
    server_restarts: int
    cwd: str
    go_on: str

    @property
    def files(self) -> Path:
        """The folder of the launch's own files."""
        return self.folder / LAUNCH

    @property
    def learners(self) -> tuple[Role, ...]:
        """The ranks, in order."""
        return tuple(role for role in self.roles if role.kind == "learner")

    @property
    def servers(self) -> tuple[Role, ...]:
        """The engine servers, in order."""
        return tuple(role for role in self.roles if role.kind == "server")

    def role(self, name: str) -> Role:
        """The role of this name."""
        return next(role for role in self.roles if role.name == name)

    def log(self, role: Role) -> Path:
        """Where a role's output goes."""
        return self.files / LOGS / f"{role.name}.log"

    def status(self, role: Role) -> Path:
        """Where a role's process writes how it ended."""
        return self.files / STATUS / f"{role.name}.json"

    def save(self) -> None:
        """Write `plan.json`, readable by its owner alone: environments may hold keys."""
        write_json(self.files / PLAN, asdict(self) | {"folder": str(self.folder)}, mode=0o600)


def read_launch(files: Path) -> Launch:
    """The launch whose files lie in a folder."""
    found: dict[str, Any] = json.loads((files / PLAN).read_text(encoding="utf-8"))
    cluster = found["cluster"] | {name: tuple(found["cluster"][name]) for name in ("options", "setup")}
    roles = tuple(Role(**(role | {"command": tuple(role["command"])})) for role in found["roles"])
    made = {"folder": Path(found["folder"]), "scheduler": SchedulerConfig(**found["scheduler"])}
    return Launch(**(found | made | {"cluster": ClusterConfig(**cluster), "roles": roles}))


class Launcher(Protocol):
    """What `watch` needs to start roles and to hear of their ends. What is started is always `role_command`."""

    def start(self, role: Role) -> Any:
        """Start a role's process; the handle is for the methods below."""
        ...

    def poll(self, handle: Any) -> int | None:
        """None while it runs, else its exit code; a negative one is the signal that ended it."""
        ...

    def signal(self, handle: Any, number: int) -> None:
        """Send the role's process a signal: SIGTERM (end with all that you have started), SIGKILL (it has not) or SIGUSR1
        (pass it on to the command). Nothing happens where it has ended."""
        ...

    def close(self) -> None:
        """Free what was set aside. Every role has ended, or was sent SIGKILL."""
        ...


class Starter(Protocol):
    """A module of `partita.launch` that is a launcher: `scheduler.type` is its name, and these are its functions."""

    def machine(self, cluster: ClusterConfig) -> Machine:
        """What one machine has. Raises ConfigError where this launcher cannot be used: something is not installed, not
        running, or a key of `cluster` does not fit."""
        ...

    def shown(self, launch: Launch) -> list[str]:
        """What `--dry-run` prints beside placement and commands: a batch script, or nothing."""
        ...

    def going_on(self, launch: Launch, say: Say) -> int | None:
        """Where an earlier launch of this run goes on without the process that started it (a batch job): stay with it to its
        end, as `run` does. None where there is none."""
        ...

    def run(self, launch: Launch, say: Say) -> int:
        """Start everything and stay until the end: 0, or `ended.EARLY` for a run that was told to end and can go on. Raises
        LaunchError and LaunchRefused. `say` is for lines to the user."""
        ...


def starter(name: str) -> Starter:
    """The launcher of a `scheduler.type`."""
    return cast(Starter, importlib.import_module(f"partita.launch.{name}"))


def role_command(launch: Launch, role: Role) -> list[str]:
    """The only command that a launcher starts; its process reads everything else from `plan.json`."""
    return [
        sys.executable,
        "-m",
        "partita.launch.role",
        "--files",
        str(Path(launch.cwd) / launch.files),
        "--name",
        role.name,
    ]


def placed(
    allocation: AllocationConfig, cluster: ClusterConfig, machine: Machine, tensor_parallel: int = 1
) -> tuple[Role, ...]:
    """The roles without their commands: learners dealt over the machines from the first one on, servers from the last one.

    Raises ConfigError where machines would stay empty, or are asked for more than they have.
    """
    nodes, total = cluster.nodes, allocation.learners + allocation.servers
    if nodes > total:
        who = f"allocation.learners={allocation.learners} and allocation.servers={allocation.servers}"
        raise ConfigError([Problem("cluster.nodes", f"{nodes} machines, but {who}: some would have nothing to do")])
    share = max(1, machine.cpus // -(-total // nodes))
    each = {
        "learner": _given(allocation.learner, share, min(1, machine.gpus)),
        "server": _given(allocation.server, share, tensor_parallel if machine.gpus else 0),
    }
    roles = [
        replace(each["learner"], index=i, node=i * nodes // allocation.learners) for i in range(allocation.learners)
    ]
    roles += [
        replace(each["server"], kind="server", index=i, node=nodes - 1 - i * nodes // allocation.servers)
        for i in range(allocation.servers)
    ]
    _check_fits(roles, machine)
    return tuple(roles)


def _given(section: ResourcesConfig, cpus: int, gpus: int) -> Role:
    own = gpus if section.gpus is None else section.gpus
    return Role("learner", 0, 0, section.cpus or cpus, own, section.memory)


def _check_fits(roles: Sequence[Role], machine: Machine) -> None:
    for node in sorted({role.node for role in roles}):
        here = [role for role in roles if role.node == node]
        asked = sum(role.gpus for role in here)
        if asked > machine.gpus:
            names = ", ".join(f"{role.name} {role.gpus}" for role in here if role.gpus)
            told = f"{asked} GPUs are asked for on one machine ({names}), which has {machine.gpus}"
            advice = (
                "lower allocation.learners, allocation.servers or the gpus of allocation.learner and allocation.server"
            )
            raise ConfigError([Problem("allocation", f"{told}; {advice}, or raise cluster.nodes")])
