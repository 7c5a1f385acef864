"""The seconds of a step: its phases, what of them models and optimizer took, and the rest.

Left out: who measures the phases (`report.metrics.Timer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from partita.engine.api import Engine
from partita.engine.local import EngineStats
from partita.report.metrics import WORK


@runtime_checkable
class Clocked(Protocol):
    """An engine that counts its seconds."""

    def stats(self) -> EngineStats:
        """Counts since it started."""
        ...


class EngineClock:
    """The engine's seconds in the model, step by step."""

    def __init__(self, engine: Engine) -> None:
        self.before = 0.0
        self.lap(engine)

    def lap(self, engine: Engine) -> float | None:
        """Seconds since the last lap; None of an engine that does not count them."""
        if not isinstance(engine, Clocked):
            return None
        last, self.before = self.before, engine.stats().forward_seconds
        return self.before - last


def step_times(phases: Mapping[str, float], seconds: float, generating: float | None) -> dict[str, float]:
    """`time/...` of a step that took `seconds`. What is neither model nor optimizer is overhead; its share is known with an
    engine that counts its seconds.
    """
    times = {**phases, "time/step": seconds}
    if generating is not None:
        times["time/generate"] = generating
        work = sum(times.get(f"time/{name}", 0.0) for name in WORK)
        times["time/overhead_share"] = 1 - work / seconds
    return times
