"""What ends a run before its last step: hours or tokens that are used up, evaluations that no longer get better, a signal.

A run ends between two steps, with a checkpoint and an export, and can go on from there as if it had not ended.
Left out: the last step of the config and the end of the data; `runner` knows these.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from partita.config import key
from partita.report.records import StepRecord
from partita.report.text import duration

RECENT = 5  # steps whose mean says how long the next one takes


@dataclass(frozen=True)
class EarlyStopConfig:
    """End the run when its evaluations no longer get better."""

    metric: str = key("eval/reward", "what the evaluations are judged by: an eval/ metric of metrics.jsonl")
    patience: int = key(3, "evaluations in a row that are no better than the best, after which the run ends", ge=1)
    min_delta: float = key(0.0, "better by this much or less counts as no better", ge=0)
    mode: Literal["max", "min"] = key("max", "whether more of the metric is better, or less")
    restore_best: bool = key(
        True, "export the weights of the best evaluation instead of the last ones; they are kept in best/ meanwhile"
    )

    def __post_init__(self) -> None:
        """Raise ValueError for a metric that no evaluation measures."""
        if not self.metric.startswith("eval/"):
            raise ValueError(
                f"metric={self.metric} is not measured by evaluations; the names of those begin with eval/"
            )


@dataclass(frozen=True)
class Reason:
    """Why a run ends before its last step, and the override with which it goes on."""

    text: str
    further: str


TOLD = Reason("told to (SIGUSR1)", "")


@dataclass
class Told:
    """Whether the process was told to end after its step, as batch systems do before a time limit; and whether a run did."""

    early: bool = False
    heeded: bool = False


@contextmanager
def hearing(told: Told) -> Iterator[None]:
    """While the block runs, SIGUSR1 tells; only the main thread of a process can hear it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(*_: object) -> None:
        told.early = True

    before = signal.signal(signal.SIGUSR1, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@dataclass
class EarlyStop:
    """The best evaluation so far, and how many came after it without being better.

    after: step and value of an evaluation out of turn, which the end of a run asked for. It may be the best one; for a run that
    goes on it has not happened.
    """

    config: EarlyStopConfig
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    after: tuple[int, float] | None = None

    def observe(self, step: int, metrics: Mapping[str, float], *, in_turn: bool) -> bool:
        """Take in the metrics of a step; whether an evaluation in turn is the best so far."""
        self.after = None
        value = metrics.get(self.config.metric)
        if value is None:
            self._name_near(metrics)
        elif not in_turn:
            self.after = (step, value)
        elif self._better(value):
            self.best, self.best_step, self.waited = value, step, 0
            return True
        else:
            self.waited += 1
        return False

    @property
    def over(self) -> bool:
        """Whether patience is at its end."""
        return self.waited >= self.config.patience

    @property
    def chosen(self) -> int | None:
        """The step whose weights are to be exported; None for the last one."""
        last_is_best = self.after is not None and self._better(self.after[1])
        return None if not self.config.restore_best or self.best is None or last_is_best else self.best_step

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = value - self.best if self.config.mode == "max" else self.best - value
        return gain > self.config.min_delta

    def _name_near(self, metrics: Mapping[str, float]) -> None:
        measured = [name for name in metrics if name.startswith("eval/")]
        if measured and "eval/reward" in metrics:  # else nothing could be scored, and that has been said
            near = get_close_matches(self.config.metric, measured, n=3, cutoff=0.3) or measured[:3]
            warnings.warn(
                f"early_stop.metric: the evaluation has no {self.config.metric}, so it does not count; near: {', '.join(near)}",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """What the next evaluations are compared with."""
        asked = {"metric": self.config.metric, "mode": self.config.mode}
        return {**asked, "best": self.best, "best_step": self.best_step, "waited": self.waited, "after": self.after}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; anew where it was about another metric."""
        if (state["metric"], state["mode"]) == (self.config.metric, self.config.mode):
            self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
            self.after = None if state["after"] is None else (state["after"][0], state["after"][1])


@dataclass
class Ends:
    """The budgets of a run and what is used of them, in all its processes; and its early stop. reason: why it ends now.

    max_hours: wall hours of steps, evaluations and checkpoints. max_tokens: tokens that were generated for training.
    told: by a signal. Judged once for each step: the clock goes on while a step is finished.
    """

    max_hours: float | None = None
    max_tokens: int | None = None
    stop: EarlyStop | None = None
    clock: Callable[[], float] = time.perf_counter
    told: Told = field(default_factory=Told)
    tokens: int = 0
    reason: Reason | None = None
    _before: float = field(init=False, default=0.0)
    _began: float = field(init=False)
    _last: float = field(init=False)
    _recent: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=RECENT))

    def __post_init__(self) -> None:
        self._began = self._last = self.clock()

    def recall(self, records: Sequence[StepRecord]) -> None:
        """Count what earlier processes have used: `records` are the steps that this one goes on from."""
        for record in records:
            took = record.metrics.get("time/step", 0.0)
            self._before += took + record.metrics.get("time/save", 0.0)
            self._recent.append(took)
            self.tokens += int(record.metrics.get("response_tokens", 0))
        self.reason = self._judged()

    def step_taken(self, tokens: float) -> None:
        """Count a step that has just been learned, and the tokens generated for it."""
        now = self.clock()
        self._recent.append(now - self._last)
        self._last = now
        self.tokens += int(tokens)
        self.reason = self._judged()

    def evaluated(self, step: int, metrics: Mapping[str, float], *, in_turn: bool) -> bool:
        """Take in an evaluation; whether it is the best so far and its weights are to be kept."""
        if self.stop is None:
            return False
        best = self.stop.observe(step, metrics, in_turn=in_turn)
        self.reason = self.reason or self._judged()
        return best and self.stop.config.restore_best

    def _judged(self) -> Reason | None:
        if self.told.early:
            return TOLD
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return Reason(f"max_tokens {self.max_tokens:,}: {self.tokens:,} generated", f"max_tokens={2 * self.tokens}")
        return self._out_of_time() or self._no_better()

    def _out_of_time(self) -> Reason | None:
        if self.max_hours is None or not self._recent:  # one step is taken in any case
            return None
        spent, step = self._before + self.clock() - self._began, sum(self._recent) / len(self._recent)
        if spent + step <= self.max_hours * 3600:
            return None
        text = f"max_hours {self.max_hours:g}: {duration(spent)} used, and a step takes {duration(step)}"
        return Reason(text, f"max_hours={2 * max(self.max_hours, spent / 3600):g}")

    def _no_better(self) -> Reason | None:
        stop = self.stop
        if stop is None or not stop.over:
            return None
        named = f"{stop.config.metric} has not been better than {stop.best:.4g} (step {stop.best_step})"
        return Reason(
            f"early_stop: {named} in {stop.waited} evaluations", f"early_stop.patience={2 * stop.config.patience}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The early stop's memory. What is used of the budgets stands in metrics.jsonl."""
        return {} if self.stop is None else {"early_stop": self.stop.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if self.stop is not None and "early_stop" in state:
            self.stop.load_state_dict(state["early_stop"])


def lines_of(max_hours: float | None, max_tokens: int | None, stop: EarlyStopConfig | None) -> tuple[str, ...]:
    """What ends a run before its last step, in words."""
    found = list[str]()
    if max_hours is not None:
        found.append(f"before the step that would pass {max_hours:g} hours, all resumes together")
    if max_tokens is not None:
        found.append(f"after the step that reaches {max_tokens:,} generated tokens")
    if stop is not None:
        way = "above" if stop.mode == "max" else "below"
        by = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
        kept = "the best evaluation's weights are exported" if stop.restore_best else "the last weights are exported"
        found.append(f"after {stop.patience} evaluations without {stop.metric} {way} its best{by}; {kept}")
    return tuple(found)
