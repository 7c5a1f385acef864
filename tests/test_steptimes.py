from dataclasses import dataclass, field

import pytest

from partita.steptimes import EngineClock, Lap, step_times


@dataclass
class Stats:
    forward_seconds: float


@dataclass
class Counted:
    """An engine that counts."""

    seconds: float = 1.0
    counts: dict[str, float] = field(default_factory=lambda: {"engine/reissued": 3.0})

    def stats(self) -> Stats:
        return Stats(self.seconds)

    def take_counts(self) -> dict[str, float]:
        taken, self.counts = self.counts, {"engine/reissued": 0.0}
        return taken


def test_a_lap_is_what_the_engine_counted_since_the_last_one():
    engine = Counted()
    clock = EngineClock(engine)  # type: ignore[arg-type]
    engine.seconds, engine.counts = 3.5, {"engine/reissued": 2.0}
    assert clock.lap(engine) == Lap(2.5, {"engine/reissued": 2.0})  # type: ignore[arg-type]
    assert clock.lap(engine) == Lap(0.0, {"engine/reissued": 0.0})  # type: ignore[arg-type]


def test_an_engine_that_counts_nothing_has_no_times():
    assert EngineClock(object()).lap(object()) == Lap()  # type: ignore[arg-type]


def test_what_is_neither_model_nor_optimizer_is_overhead():
    times = step_times({"time/forward_backward": 1.0}, 10.0, Lap(4.0, {"engine/lost": 1.0}))
    assert times["time/step"] == 10.0 and times["time/generate"] == 4.0 and times["engine/lost"] == 1.0
    assert times["time/overhead_share"] == pytest.approx(0.5)
    assert "time/overhead_share" not in step_times({}, 10.0, Lap())
