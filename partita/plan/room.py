"""Whether a run fits into the memory that there is, and which keys to change where it does not.

Left out: what the processes hold (`plan.held`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from partita.config.document import escape
from partita.config.errors import ConfigError, Problem
from partita.config.schema import plain
from partita.plan.memory import Memory
from partita.run import RunConfig, load_run_config

GIB = 2**30
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SMALLEST_MICRO_BATCH, FEWEST_SLOTS, MOST_LEARNERS = 256, 4, 64
CLOSE = 0.85
"""Above this share of what there is, a plan that is a seventh too low would not fit."""


@dataclass(frozen=True)
class Holding:
    """`count` processes that each hold this. kind: learner or server."""

    kind: str
    name: str
    count: int
    memory: Memory


@dataclass(frozen=True)
class Room:
    """Bytes that there are on each machine, or on each GPU. source: who says so."""

    bytes: float
    source: str
    on_cpu: bool


def room_here(device: torch.device, given: float | None = None) -> Room:
    """Of this machine's main memory, or of the GPU that models would be on. given: GiB that the user says there are."""
    on_cpu = device.type == "cpu"
    if given is not None:
        return Room(given * GIB, "--memory", on_cpu)
    if not on_cpu:
        return Room(
            float(torch.cuda.get_device_properties(device).total_memory), torch.cuda.get_device_name(device), False
        )
    return Room(main_memory(), "this machine", True)


def main_memory() -> float:
    """Bytes that the processes here may have: the machine's, or the limit of their group where that is less."""
    found = [math.inf]
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemTotal:")]
    for file in LIMITS:
        with suppress(OSError, ValueError):  # no such file, or `max`
            found.append(float(int(Path(file).read_text())))
    return min(found)


def resident() -> float:
    """Bytes of this process now; 0 where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024.0
    return 0.0


def on_a_machine(holdings: Sequence[Holding], nodes: int) -> float:
    """Bytes of the machine that has most: each kind of process is dealt evenly, the first learner is on the first machine."""
    total = 0.0
    for kind in ("learner", "server"):
        peaks = sorted(
            (one.memory.peak for one in holdings if one.kind == kind for _ in range(one.count)), reverse=True
        )
        total += sum(peaks[: math.ceil(len(peaks) / nodes)])
    return total


def need(holdings: Sequence[Holding], room: Room, nodes: int) -> float:
    """Bytes that must fit: all processes of a machine, or the largest one where each has a GPU."""
    return on_a_machine(holdings, nodes) if room.on_cpu else max(one.memory.peak for one in holdings)


def changed(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """The config with overrides on top."""
    return load_run_config([], words, escape(plain(config))).value


@dataclass(frozen=True)
class Change:
    """Keys to change, and bytes that are then needed."""

    words: tuple[str, ...]
    need: float


def advice(config: RunConfig, room: Room, needed: Callable[[RunConfig], float]) -> tuple[Change, ...]:
    """What makes the run fit: every change that is enough by itself; else as many together as it takes. Nothing where even all
    together do not help.
    """
    ways = [[Change(words, needed(changed(config, words))) for words in ladder] for ladder in ladders(config)]
    enough = [next((one for one in tried if one.need <= room.bytes), None) for tried in ways]
    if any(enough):
        return tuple(one for one in enough if one is not None)
    together: tuple[str, ...] = ()
    for tried in ways:
        together += tried[-1].words
        both = needed(changed(config, together))
        if both <= room.bytes:
            return (Change(together, both),)
    return ()


def ladders(config: RunConfig) -> Iterator[list[tuple[str, ...]]]:
    """Ways to need less, the ones that change least of what is learned first; of each the mildest step first."""
    actor, critic = config.actor, config.critic
    own = critic is not None and not critic.shared
    sections = ["actor", *(["critic"] if own else [])]
    largest = max(
        actor.mb_spec.max_tokens_per_mb, critic.mb_spec.max_tokens_per_mb if critic is not None and own else 0
    )
    budgets = _halves(largest, SMALLEST_MICRO_BATCH)
    if budgets:
        yield [tuple(f"{section}.mb_spec.max_tokens_per_mb={budget}" for section in sections) for budget in budgets]
    if not actor.gradient_checkpointing:
        yield [tuple(f"{section}.gradient_checkpointing=true" for section in sections)]
    slots = _halves(config.rollout.max_concurrent_rollouts, FEWEST_SLOTS)
    if slots:
        yield [(f"rollout.max_concurrent_rollouts={count}",) for count in slots]
    precise = [
        f"{name}.dtype=bfloat16"
        for name, dtype in (("rollout", config.rollout.dtype), ("ref", config.ref.dtype if config.ref else "auto"))
        if dtype == "float32"
    ]
    if precise:
        yield [tuple(precise)]
    if actor.lora is None:
        yield [tuple(f"{section}.lora.rank=16" for section in sections)]
    learners, nodes = config.allocation.learners, config.cluster.nodes
    if config.scheduler.type != "local":
        counts = [(learners * 2**k, nodes * 2**k) for k in range(1, 7) if learners * 2**k <= MOST_LEARNERS]
        yield [(f"allocation.learners={some}", f"cluster.nodes={machines}") for some, machines in counts]


def _halves(number: int, least: int) -> list[int]:
    """Half, a quarter, ... down to `least`."""
    found = list[int]()
    while number // 2 >= least:
        number //= 2
        found.append(number)
    return found


def refusal(needed: float, room: Room, found: Sequence[Change]) -> ConfigError:
    """What does not fit, and what to change."""
    told = f"{needed / GIB:.2f} GiB are needed at the peak, and {room.source} has {room.bytes / GIB:.2f} GiB"
    if not found:
        more = "no change of memory keys is enough: take a smaller model (actor.path), or more memory"
        return ConfigError([Problem("memory", f"{told}; {more}")])
    ways = [f"{' '.join(one.words)} ({one.need / GIB:.2f} GiB)" for one in found]
    return ConfigError([Problem("memory", f"{told}. Change to fit: {'; or '.join(ways)}")])
