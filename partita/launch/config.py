"""The sections `scheduler` (what starts processes), `allocation` (who, how many, with what) and `cluster` (where).

Left out: what a learner and a server do (`actor`, `rollout`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass

import partita.launch
from partita.config import key, key_factory

FRAME = frozenset({"config", "roles", "role", "watch", "start", "servers", "processes", "ended", "keeper", "guard"})
"""Modules of `partita.launch` that every launcher shares; each other one is a launcher, and its name its `scheduler.type`."""

HINTS = {
    "n_nodes": "cluster.nodes",
    "n_gpus_per_node": "GPUs are given to roles, not to machines: set allocation.learner.gpus and allocation.server.gpus.",
    "allocation_mode": (
        "Say it in numbers: allocation.learners and allocation.servers, and rollout.backend (local, vllm or sglang)."
    ),
    "fileroot": "output_dir",
}
"""Names that other tools use."""


def launcher_names() -> tuple[str, ...]:
    """Every `scheduler.type`: the modules of this package that are no part of its frame."""
    found = {module.name for module in pkgutil.iter_modules(partita.launch.__path__)}
    return tuple(sorted(found - FRAME))


@dataclass(frozen=True)
class SchedulerConfig:
    """What starts the run's processes, where it has more than this one."""

    type: str = key(
        "local",
        "local: on this machine, and in this very process where there is one learner and no server; ray: in a Ray cluster; "
        "slurm: as a batch job",
        choices=launcher_names(),
    )
    grace_seconds: float = key(20.0, "between asking a process to end and killing it", gt=0)


@dataclass(frozen=True)
class ResourcesConfig:
    """What each process of a kind gets."""

    cpus: int | None = key(None, "cores, and its threads; null is an equal share of the machine's", ge=1)
    gpus: int | None = key(
        None,
        "GPUs; null is one where machines have any, and for a server as many as rollout.server.tensor_parallel asks for",
        ge=0,
    )
    memory: float | None = key(None, "GiB that ray and slurm set aside; null sets none aside", gt=0)


@dataclass(frozen=True)
class AllocationConfig:
    """Who runs, how many of them, with what. One learner without servers is one process, which samples and trains."""

    learners: int = key(1, "processes that the trained models are sharded over (FSDP)", ge=1)
    servers: int = key(
        0,
        "engine servers that the run starts, of rollout.backend (local: the built-in engine in a process of its own); 0: the "
        "engine is in the first learner's process, or at rollout.servers",
        ge=0,
    )
    learner: ResourcesConfig = key_factory(ResourcesConfig, "what each learner gets")
    server: ResourcesConfig = key_factory(ResourcesConfig, "what each server gets")
    server_restarts: int = key(3, "how often each server that died is started again, before the run ends", ge=0)


def check_servers(allocation: AllocationConfig, backend: str, given: Sequence[str], at: str = "rollout") -> None:
    """Raise ValueError where a run would have no engine, or two. given: addresses of running servers."""
    if allocation.servers and given:
        raise ValueError(
            f"allocation.servers={allocation.servers} and {at}.servers={list(given)}: servers are started or given; drop one"
        )
    if backend != "local" and not allocation.servers and not given:
        raise ValueError(
            f"{at}.backend={backend} needs a server: set allocation.servers=1 to start one, or {at}.servers=[http://host:port]"
        )


@dataclass(frozen=True)
class ClusterConfig:
    """Where processes run. Learners and servers are dealt evenly over `nodes`; all machines must see the same files."""

    nodes: int = key(1, "machines", ge=1)
    ray_address: str | None = key(None, "ray: a running cluster, as auto or ray://host:10001; null starts one here")
    partition: str | None = key(None, "slurm: --partition")
    account: str | None = key(None, "slurm: --account")
    time: str | None = key(None, "slurm: --time, as 2:00:00 or 1-00:00:00; null is the partition's limit")
    warn_seconds: int = key(
        120, "slurm: so long before the limit the run is told to finish its step, save a checkpoint and end", ge=1
    )
    requeue: bool = key(True, "slurm: a job that its limit ended is queued again, and goes on from its checkpoint")
    options: tuple[str, ...] = key((), "slurm: further options of sbatch, as --qos=high")
    setup: tuple[str, ...] = key((), "shell lines before each process, as `module load cuda`")
    env: dict[str, str] = key_factory(dict, "environment of each process, beside what it has")
