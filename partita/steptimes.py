"""The seconds of a step: its phases, what of them models and optimizer took, and the rest.

Left out: who measures the phases (`report.metrics.Timer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from partita.engine.api import Engine
from partita.report.metrics import WORK


class Seconds(Protocol):
    """What an engine counts. forward_seconds: in which it computed, or requests were open at its servers."""

    forward_seconds: float


@runtime_checkable
class Clocked(Protocol):
    """An engine that counts its seconds."""

    def stats(self) -> Seconds:
        """Counts since it started."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An engine that counts what else happens to it."""

    def take_counts(self) -> Mapping[str, float]:
        """Metrics by name, since they were last taken."""
        ...


@dataclass(frozen=True)
class Lap:
    """What an engine counted in a step. seconds: in the model; None of an engine that does not count them."""

    seconds: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict[str, float])


class EngineClock:
    """What the engine counts, step by step."""

    def __init__(self, engine: Engine) -> None:
        self.before = 0.0
        self.lap(engine)

    def lap(self, engine: Engine) -> Lap:
        """What it counted since the last lap."""
        counts = engine.take_counts() if isinstance(engine, Counting) else {}
        if not isinstance(engine, Clocked):
            return Lap(None, counts)
        last, self.before = self.before, engine.stats().forward_seconds
        return Lap(self.before - last, counts)


def step_times(phases: Mapping[str, float], seconds: float, lap: Lap) -> dict[str, float]:
    """`time/...` of a step that took `seconds`, and what its engine counted. What is neither model nor optimizer is overhead; its
    share is known with an engine that counts its seconds.
    """
    times = {**phases, "time/step": seconds, **lap.counts}
    if lap.seconds is not None:
        times["time/generate"] = lap.seconds
        work = sum(times.get(f"time/{name}", 0.0) for name in WORK)
        times["time/overhead_share"] = 1 - work / seconds
    return times
