"""The phases of a run: when one ends, what the next one changes, and which rules keep their memory.

A run counts its train steps from 0; `until.step: 100` ends a stage after 100 of them, so step 100 is the next stage's.
Left out: what a stage's keys mean. `run` puts them on top of the config and checks the result like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

from partita.algo.control import Controls
from partita.config import key, key_factory
from partita.config.schema import is_map, show

CLOCK = ("time/", "tokens_per_second")
"""Metrics that a second run of the same seed does not have again."""


@dataclass(frozen=True)
class UntilConfig:
    """Where a stage ends: after a number of train steps, or when a metric has stopped rising; with both, whichever comes
    first."""

    step: int | None = key(None, "finished train steps of the whole run, not of the stage", ge=1)
    plateau: str | None = key(
        None, "a metric of metrics.jsonl; the stage ends when its mean over window steps is not above the mean before"
    )
    window: int = key(
        10,
        "plateau: steps (of an eval/ metric: evaluations) of each of the two means; the stage has at least twice as many",
        ge=1,
    )
    delta: float = key(0.0, "plateau: a rise of this much or less counts as none")

    def __post_init__(self) -> None:
        """Raise ValueError where nothing ends the stage, or where a second run would end it at another step."""
        if self.step is None and self.plateau is None:
            raise ValueError("neither step nor plateau is set: nothing ends this stage")
        if self.plateau is None and (self.window, self.delta) != (10, 0.0):
            raise ValueError("window and delta belong to plateau, which is not set")
        if self.plateau is not None and self.plateau.startswith(CLOCK):
            raise ValueError(f"plateau={self.plateau} depends on the machine's speed: a resumed run would differ")


@dataclass(frozen=True)
class StageConfig:
    """One phase of a run: the config, with some keys changed."""

    until: UntilConfig | None = key(None, "where the stage ends; the last stage has none")
    set: dict[str, Any] = key_factory(
        dict,
        "dotted key to value, on top of the config: algorithm, the algorithm's keys of actor, actor.ppo_epochs, "
        "actor.ppo_n_minibatches, actor.minibatch_split, gconfig.max_new_tokens, gconfig.n_samples, gconfig.temperature, "
        "gconfig.adaptive_n, train_dataset.batch_size",
    )


def check_order(stages: Sequence[StageConfig]) -> None:
    """Raise ValueError unless all stages but the last have an end, and steps that end them rise."""
    last = 0
    for index, one in enumerate(stages):
        final, until = index == len(stages) - 1, one.until
        if final and until is not None:
            raise ValueError(f"stages[{index}].until: the last stage goes on to the end of the run; leave it out")
        if not final and until is None:
            raise ValueError(f"stages[{index}] has no until, and stages[{index + 1}] follows: say where it ends")
        if until is not None and until.step is not None:
            if until.step <= last:
                raise ValueError(f"stages[{index}].until.step={until.step}: the stage before ends after step {last}")
            last = until.step


def flat(given: Mapping[str, Any], sections: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """Dotted paths of a stage's `set`, which may also be written as nested sections."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        path = prefix + name
        found |= flat(value, sections, f"{path}.") if path in sections and is_map(value) else {path: value}
    return found


def stage_at(stages: Sequence[StageConfig], step: int, index: int = 0) -> int:
    """The index of the stage that train step `step` (counted from 0) belongs to, for a run that is in stage `index`.

    Only ends by `until.step` are seen here; a plateau depends on what was measured.
    """
    while index < len(stages) - 1:
        until = stages[index].until
        if until is None or until.step is None or step < until.step:
            break
        index += 1
    return index


def levelled_off(values: Sequence[float], window: int, delta: float) -> bool:
    """Whether the mean of the last `window` values is at most `delta` above the mean of the `window` before; False while
    there are fewer than two windows."""
    if len(values) < 2 * window:
        return False
    last, before = sum(values[-window:]) / window, sum(values[-2 * window : -window]) / window
    return last - before <= delta


@dataclass
class Progress:
    """Which stage a run is in. `values` holds the plateau's metric of the stage's steps that had it, at most two windows."""

    stages: tuple[StageConfig, ...]
    index: int = 0
    values: list[float] = field(default_factory=list[float])

    def advance(self, finished: int, metrics: Mapping[str, float]) -> bool:
        """Take in the metrics of the last of `finished` train steps; whether another stage begins now.

        A plateau of an eval/ metric counts evaluations, not steps.
        """
        before = self.index
        until = self.stages[before].until if self.stages else None
        if until is not None and until.plateau is not None:
            self._take(until.plateau, until.window, metrics)
            if levelled_off(self.values, until.window, until.delta):
                self.index += 1
        self.index = stage_at(self.stages, finished, self.index)
        if self.index != before:
            self.values = []
        return self.index != before

    def _take(self, name: str, window: int, metrics: Mapping[str, float]) -> None:
        if name in metrics:
            self.values = [*self.values, metrics[name]][-2 * window :]
        elif not self.values and (
            not name.startswith("eval/") or "eval/reward" in metrics
        ):  # those come with an evaluation only
            near = get_close_matches(name, metrics, n=3)
            hint = f"; this step had {', '.join(near)}" if near else ""
            warnings.warn(f"stages[{self.index}].until.plateau: no step so far has {name}{hint}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The stage, and what its end is judged by."""
        return {"index": self.index, "values": list(self.values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in a saved stage. Raises ValueError where this config has no such stage."""
        if state["index"] >= max(len(self.stages), 1):
            raise ValueError(f"it was saved in stages[{state['index']}], and stages has {len(self.stages)} entries")
        self.index, self.values = state["index"], list(state["values"])


@runtime_checkable
class Started(Protocol):
    """A rule that begins at a value of its own key."""

    @property
    def start(self) -> float:
        """The value before the first change."""
        ...


def carried(before: Controls, after: Controls) -> Controls:
    """The next stage's rules. One that the stage before had too goes on where it stood, unless its start was changed."""
    known = {rule.name: rule for rule in before.controllers}
    for rule in after.controllers:
        old = known.get(rule.name)
        if old is not None and type(old) is type(rule) and _start(old) == _start(rule):
            rule.load_state_dict(old.state_dict())
    return after


def _start(rule: object) -> float | None:
    return rule.start if isinstance(rule, Started) else None


def ends(until: UntilConfig | None) -> str:
    """Where a stage ends, in words."""
    if until is None:
        return "to the end"
    by_step = [] if until.step is None else [f"until step {until.step}"]
    by_metric = [] if until.plateau is None else [
        f"until {until.plateau} rises by at most {until.delta:g} over {until.window} "
        f"{'evaluations' if until.plateau.startswith('eval/') else 'steps'}"
    ]  # fmt: skip
    return " or ".join(by_step + by_metric)


def changes(one: StageConfig) -> str:
    """What a stage sets, in words."""
    return ", ".join(f"{path} {show(value)}" for path, value in one.set.items()) or "the config as it is"
