"""`scheduler.type=ray`: a placement group with a bundle per machine, in which an actor per role starts the role's process.

In a Ray of its own on this machine, or in a running cluster (`cluster.ray_address`). Actors belong to this process: when it
ends, in whatever way, Ray ends them, and the roles' processes end with them.
Left out: Ray's own environments (`runtime_env`): all machines must see the same files, as with the other launchers.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.launch import local
from partita.launch.config import ClusterConfig
from partita.launch.ended import EARLY
from partita.launch.guard import guarded
from partita.launch.keeper import signal_or_code
from partita.launch.roles import ID, Launch, Machine, Role, Say, role_command
from partita.launch.watch import heard, watch

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import ActorUnavailableError, RayError
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    told = f"ray needs the package ray, which cannot be imported ({error}). Install it: pip install 'partita[ray]'"
    raise ConfigError([Problem("scheduler.type", told)]) from error

GIB = 2**30
WAIT, LAST_WORD = 30.0, 5.0  # seconds between lines about what is waited for; for an actor to pass SIGKILL on
ANSWER = 10.0  # seconds for a cluster's port to answer
OF_THE_MACHINE = ("CUDA_VISIBLE_DEVICES", "RAY_", "TMPDIR", "HOSTNAME")
"""Environment that a role has from its machine, not from the launcher."""
MARK = "PARTITA_RAY"
OWN: dict[str, Any] = {
    "address": "local",  # else one that somebody has started on this machine is joined
    "include_dashboard": False, "log_to_driver": False,
    # where a signal to the whole process group has ended Ray's own processes, this one must not look for them for a minute
    "_system_config": {"worker_niceness": 0, "gcs_rpc_server_reconnect_timeout_s": 5},
}  # fmt: skip
"""A Ray for this run alone, whose processes get their share of the cores. It listens on all interfaces, as Ray always does; who
may use it is Ray's own affair (RAY_AUTH_MODE, on by default where Ray has it).
"""


def machine(cluster: ClusterConfig) -> Machine:
    """The smallest of those that are taken; this one where Ray is started here. Raises ConfigError where no cluster answers."""
    if cluster.ray_address is None:
        return local.machine(cluster)
    with _connected(cluster):
        return _smallest(cluster)


def shown(launch: Launch) -> list[str]:
    """What is asked of Ray."""
    where = launch.cluster.ray_address or "a Ray that is started here"
    return [f"placement group in {where}, a bundle per machine:", *(f"  {bundle}" for bundle in _bundles(launch))]


def run(launch: Launch, say: Say) -> int:
    """Wait for the placement group, start the roles in it, and watch them."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with _connected(launch.cluster), heard() as ask:
        bundles = _bundles(launch, _smallest(launch.cluster).cpus)
        group = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "PACK")
        try:
            while not group.wait(WAIT):
                say(f"waiting for Ray to set aside {bundles}; free now: {ray.available_resources()}")
                if ask.early:
                    return EARLY
            return watch(launch, Ray(launch, group, bundles), say)
        finally:
            remove_placement_group(group)


def going_on(launch: Launch, say: Say) -> None:
    """Nothing outlives its launcher."""


@dataclass
class Held:
    """A role's actor, and what it was asked for and has not answered yet."""

    role: Role
    actor: Any
    asked: Any = None


@dataclass
class Ray:
    """Starts each role by an actor of its own, in the bundle of the role's machine."""

    launch: Launch
    group: PlacementGroup
    bundles: list[dict[str, float]]

    def start(self, role: Role) -> Held:
        """An actor, which starts the role's process as soon as it is there itself."""
        keeper = [sys.executable, "-m", "partita.launch.keeper", *role_command(self.launch, role)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_MACHINE)}
        others = sum(one.cpus for one in self.launch.roles if one.node == role.node)
        share = int(self.bundles[role.node]["CPU"] / others * role.cpus * 1e4) / 1e4  # Ray counts in such steps
        made = ray.remote(Keeper).options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, role.node),
            num_cpus=share, num_gpus=role.gpus, memory=int((role.memory or 0) * GIB) or None,
        )  # fmt: skip
        given = (
            keeper,
            env | {ID: self.launch.id},
            self.launch.cwd,
            os.path.join(self.launch.cwd, self.launch.log(role)),
        )
        return Held(role, made.remote(*given))

    def poll(self, handle: Held) -> int | None:
        """The exit code of the role's process; SIGKILL where its actor is gone, with Ray's reason in the role's log."""
        handle.asked = handle.asked or handle.actor.poll.remote()
        if not ray.wait([handle.asked], timeout=0)[0]:
            return None
        asked, handle.asked = handle.asked, None
        try:
            code: int | None = ray.get(asked)  # pyright: ignore[reportAssignmentType]
        except ActorUnavailableError:  # of a moment: Ray says so when the machine is lost
            return None
        except RayError as error:
            with self.launch.log(handle.role).open("a") as log:
                log.write(f"\nits actor is gone: {error}\n")
            return -signal.SIGKILL
        if code is not None:
            ray.kill(handle.actor)  # its share of the bundle is for the one that is started again
            return signal_or_code(code)
        return None

    def signal(self, handle: Held, number: int) -> None:
        """Have the actor pass it on; after SIGKILL the actor itself goes."""
        told = handle.actor.signal.remote(number)
        if number == signal.SIGKILL:
            ray.wait([told], timeout=LAST_WORD)
            ray.kill(handle.actor)

    def close(self) -> None:
        """The placement group is `run`'s."""


class Keeper:
    """The actor. It uses nothing of this package, which Ray's own processes on other machines need not find."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str, log: str) -> None:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "ab") as out:  # for what goes wrong before the role's process keeps its output there itself
            self.process = subprocess.Popen(
                command, env={**os.environ, **env}, cwd=cwd, stdin=subprocess.PIPE, stdout=out, stderr=out, bufsize=0
            )

    def poll(self) -> int | None:
        """Its exit code, once it has one."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Tell it of a signal."""
        if self.process.stdin is not None and self.process.poll() is None:
            self.process.stdin.write(bytes([number]))


@contextmanager
def _connected(cluster: ClusterConfig) -> Iterator[None]:
    """Ray, while the block runs. Raises ConfigError where no cluster answers."""
    address = cluster.ray_address
    if address is None:
        # Ray's own helpers outlive a killed starter by a minute
        with guarded(MARK, secrets.token_hex(8)):
            ray.init(**OWN, logging_level=logging.ERROR)
            try:
                yield
            finally:
                ray.shutdown()
        return
    try:
        _check_listens(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, ValueError, RuntimeError) as error:
        why = str(error.__cause__ or error).strip().splitlines()[-1]  # Ray tells the reason only there
        raise ConfigError(
            [Problem("cluster.ray_address", f"no Ray lets this process in at {address}: {why}")]
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Raise OSError where nobody does: Ray itself would try for a quarter of an hour."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=ANSWER).close()


def _smallest(cluster: ClusterConfig) -> Machine:
    """What each machine has of those that are taken: the largest ones of the cluster. Raises ConfigError for too few."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if len(alive) < cluster.nodes:
        told = f"{cluster.nodes} machines, but the cluster at {cluster.ray_address} has {len(alive)}"
        raise ConfigError([Problem("cluster.nodes", told)])
    taken = sorted(((node.get("GPU", 0), node["CPU"]) for node in alive), reverse=True)[: cluster.nodes]
    return Machine(int(min(cpus for _, cpus in taken)), int(min(gpus for gpus, _ in taken)))


def _bundles(launch: Launch, cpus: float = float("inf")) -> list[dict[str, float]]:
    """What is set aside on each machine. Roles share its cores where it has fewer than they ask for together."""
    found = list[dict[str, float]]()
    for node in range(launch.cluster.nodes):
        here = [role for role in launch.roles if role.node == node]
        asked = {
            "CPU": min(sum(role.cpus for role in here), cpus),
            "GPU": sum(role.gpus for role in here),
            "memory": int(sum(role.memory or 0 for role in here) * GIB),
        }
        found.append({name: value for name, value in asked.items() if value})
    return found
