"""`scheduler.type=local`: every role is a process of this machine, and dies with the launcher.

Left out: `cluster.nodes` above 1; that is what the other launchers are for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.launch.config import ClusterConfig
from partita.launch.processes import dying_with_parent
from partita.launch.roles import ID, Launch, Machine, Role, Say, role_command
from partita.launch.watch import watch

VISIBLE = "CUDA_VISIBLE_DEVICES"


def machine(cluster: ClusterConfig) -> Machine:
    """This one. Raises ConfigError where the config asks for more of them."""
    if cluster.nodes > 1:
        told = f"{cluster.nodes} machines, but scheduler.type=local has this one; use ray or slurm"
        raise ConfigError([Problem("cluster.nodes", told)])
    return Machine(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(_gpus())
    )


def shown(launch: Launch) -> list[str]:
    """Nothing more than the commands."""
    return []


def run(launch: Launch, say: Say) -> int:
    """Start the roles here, and watch them."""
    return watch(launch, Local(launch), say)


def going_on(launch: Launch, say: Say) -> None:
    """Nothing outlives its launcher."""


@dataclass
class Local:
    """Starts roles as children of this process. Each gets GPUs of its own, in the order of the roles."""

    launch: Launch
    gpus: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        free = _gpus()
        self.gpus = {}
        for role in self.launch.roles:
            self.gpus[role.name], free = free[: role.gpus], free[role.gpus :]

    def start(self, role: Role) -> subprocess.Popen[bytes]:
        """A process in a session of its own: an interrupt of the terminal reaches the launcher alone."""
        env = {**os.environ, ID: self.launch.id}
        if own := self.gpus[role.name]:
            env[VISIBLE] = ",".join(own)
        return subprocess.Popen(
            role_command(self.launch, role), env=env, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=dying_with_parent(signal.SIGTERM),
        )  # fmt: skip

    def poll(self, handle: subprocess.Popen[bytes]) -> int | None:
        """Its exit code, once it has one."""
        return handle.poll()

    def signal(self, handle: subprocess.Popen[bytes], number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            handle.send_signal(number)

    def close(self) -> None:
        """Nothing was set aside."""


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        # as CUDA reads it: -1 hides itself and what follows
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return [str(index) for index, _ in enumerate(asked.stdout.splitlines())] if asked.returncode == 0 else []
