"""Scores responses with any Python functions, and never takes a failure for a score.

A reward that raises, overruns its limit, is killed, or returns something that is not a finite number gives the status
"reward_error" and its message; the sample is then left out of training and counted, see `guard_errors`. A sample that no
function applies to has the status "not_applicable": it is left out as well, and is no error. What is scored is the response
alone. Synchronous functions run in processes that can be killed (`tasks.pool`), coroutines on the event loop, a reward model
in a thread of its own (`tasks.model_reward`), and judges at a server are asked by a loop of their own (`tasks.judges`).

Left out: how other tools call a function (`tasks.adapters`), and how a call is made (`tasks.reward_calls`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from partita.records import Prompt, Sample, Status, StopReason
from partita.tasks.adapters import Answer, RewardSetupError
from partita.tasks.binding import RewardFunction, bind_all
from partita.tasks.dataset import TaskRow
from partita.tasks.judges.judge import BudgetReached, Judges
from partita.tasks.reward_call import RESERVED, Outcome, TrainerState
from partita.tasks.reward_calls import Calls
from partita.tasks.reward_settings import FunctionOptions, RewardConfig

__all__ = [
    "MODEL", "PROCESS", "Answer", "Ask", "BudgetReached", "FunctionOptions", "Judge", "RewardConfig", "RewardErrors",
    "RewardRuntime", "RewardSetupError", "Scored", "TrainerState", "guard_errors",
]  # fmt: skip

MODEL = "reward_model"
"""What the reward model's score is called among the parts."""
PROCESS = "process_model"
"""The same of the process reward model's."""


@dataclass(frozen=True)
class Scored:
    """The weighted reward, None exactly when `status` is not "ok"; `parts` by function name, `name/part` for its parts.

    `error` starts with the function's name and one line that says what happened; a traceback may follow. `notes` are the texts
    that functions told, by `name/note`. `step_rewards`: (place, reward) of single steps, weighted, the place counting the
    tokens of the response from 0.
    """

    reward: float | None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    status: Status = "ok"
    error: str = ""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    step_rewards: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


class Judge(Protocol):
    """Scores answers that belong together: a reward model, or functions that take lists."""

    async def ask(self, answers: Sequence[Answer]) -> list[Outcome]:
        """A score for each; whatever fails is in the outcome. Scores depend on what is asked together by rounding only."""
        ...

    def close(self) -> None:
        """End what runs it."""
        ...


NONE_NAMED = "the workflow asks for the task's reward, and there is none: name a function in reward.functions"
Ask = Callable[[Answer], Coroutine[Any, Any, Outcome]]
"""Brings one answer before the judge and waits for its score."""


class RewardErrors(RuntimeError):
    """Too many samples of a step have no reward; the message ends with the first error."""


def guard_errors(samples: Iterable[Sample], max_share: float) -> float:
    """The share of samples with status "reward_error", of those that some reward applies to.

    Raises RewardErrors when it is above `max_share`, and where no reward applies to any of the samples.
    """
    given = list(samples)
    judged = [sample for sample in given if sample.status != "not_applicable"]
    if given and not judged:
        raise RewardErrors(
            f"none of {len(given)} samples has a reward, as no function applies ({given[0].error}). Name a function in "
            "reward.functions that scores these rows, or take them out of the data"
        )
    failed = [sample.error for sample in judged if sample.status == "reward_error"]
    share = len(failed) / max(len(judged), 1)
    if share > max_share:
        raise RewardErrors(
            f"{len(failed)} of {len(judged)} samples have no reward because of errors "
            f"(reward.max_error_share={max_share:g}). The first error:\n{failed[0]}"
        )
    return share


class Panel:
    """Judges what is asked together: the reward models get all of it at once, a function that takes lists the answers to one
    prompt. Which answers come together is decided by whoever asks, so it does not depend on time.
    """

    def __init__(self, functions: Sequence[RewardFunction], calls: Calls) -> None:
        self.model: Judge | None = None
        self.process: Judge | None = None
        self.state: Callable[[], TrainerState] = TrainerState
        self._calls = calls
        self._index = {bound.name: i for i, bound in enumerate(functions)}

    async def ask(self, answers: Sequence[Answer]) -> list[Outcome]:
        """See `Judge`. The order of calls, and of answers within a call, is that of the answers."""
        lots = dict[tuple[str, int | None, str], list[int]]()
        for i, answer in enumerate(answers):
            of_function = answer.to in self._index
            lot = (answer.to, answer.group, answer.prompt.uid) if of_function else (answer.to, None, "")
            lots.setdefault(lot, []).append(i)
        asked = (self._ask(to, [answers[i] for i in places]) for (to, _, _), places in lots.items())
        found = await asyncio.gather(*asked)
        outcomes = {
            i: one
            for places, of_lot in zip(lots.values(), found, strict=True)
            for i, one in zip(places, of_lot, strict=True)
        }
        return [outcomes[i] for i in range(len(answers))]

    async def _ask(self, to: str, answers: Sequence[Answer]) -> list[Outcome]:
        if to in self._index:
            return await self._calls.ask(self._index[to], answers, self.state())
        model = self.process if to == PROCESS else self.model
        assert model is not None, "only a scorer with a reward model asks it"
        return await model.ask(answers)

    def close(self) -> None:
        """End the reward models' threads and the worker processes."""
        for model in (self.model, self.process):
            if model is not None:
                model.close()
        self._calls.close()


class RewardRuntime:
    """Owns the reward functions of a run and the processes they run in.

    `functions` are used where the config names none. Make it, and `check`, before models are loaded: functions given as
    objects are run in processes forked from this one. A reward model of the config is put in as `judge` afterwards, and
    closed with the runtime. needed: False for a run whose workflow may judge by itself: it may name no reward at all.
    Raises RewardSetupError when a function cannot be found or called.
    """

    def __init__(
        self, config: RewardConfig, functions: Sequence[str | Callable[..., Any]] = (), *, needed: bool = True
    ) -> None:
        chosen: Sequence[str | Callable[..., Any]] = config.functions or functions
        if needed and not chosen and not config.complete:
            raise RewardSetupError(
                "reward.functions is empty and the data bring no reward of their own; name at least one function, "
                "as math_correct or path/file.py:function, a reward model with reward.model, or a judge in reward.judges"
            )
        self._weights = [1.0] * len(chosen) if config.weights is None else config.weights
        if len(self._weights) != len(chosen):
            raise RewardSetupError(f"reward.weights has {len(self._weights)} values for {len(chosen)} functions")
        self._config = config
        self._functions = bind_all(chosen, config.options)
        self.judges = Judges(config.judges)
        self._check_names()
        self._calls = Calls(self._functions, chosen, config)
        self._panel = Panel(self._functions, self._calls)

    def _check_names(self) -> None:
        functions, judges = [bound.name for bound in self._functions], self.judges.names
        reserved = (*RESERVED, *self._models)
        if taken := [name for name in (*functions, *judges) if name in reserved]:
            what = "judge" if taken[0] in judges else "reward function"
            raise RewardSetupError(
                f"a {what} cannot be called {taken[0]!r}: reward/{taken[0]} is a metric of its own; rename the {what}"
            )
        if both := [name for name in judges if name in functions]:
            raise RewardSetupError(f"reward.judges.{both[0]}: a reward function is called so too; rename the judge")

    @property
    def judge(self) -> Judge | None:
        """What scores answers together: the reward models that were put in, and the functions that take lists. None where there
        is neither: then every answer is scored by itself.
        """
        lists = any(bound.together for bound in self._functions)
        models = self._panel.model is not None or self._panel.process is not None
        return self._panel if lists or models else None

    @judge.setter
    def judge(self, model: Judge) -> None:
        self._panel.model = model

    def put_in(self, process: Judge) -> None:
        """Give it the process reward model of the config, which is closed with the runtime."""
        self._panel.process = process

    def follow(self, state: Callable[[], TrainerState]) -> None:
        """Tell where the training stands whenever a function asks for `trainer_state`."""
        self._panel.state = state

    @property
    def names(self) -> list[str]:
        """Names of the functions, after them those of the judges, and of the reward models, as in `Scored.parts`."""
        return [*(bound.name for bound in self._functions), *self.judges.names, *self._models]

    @property
    def weights(self) -> list[float]:
        """What each of `names` is multiplied by in the sum."""
        return [*self._weights, *self.judges.weights, *self._models.values()]

    @property
    def _models(self) -> dict[str, float]:
        """The weights of the reward models that the config names."""
        config = self._config
        found = {} if config.model is None else {MODEL: config.model_weight}
        return found if config.process_model is None else {**found, PROCESS: config.process_model_weight}

    def check(self, *rows: TaskRow) -> tuple[str, ...]:
        """Make sure every function can be called for these rows and be imported in a worker; returns lines worth
        showing.

        Raises RewardSetupError naming the function, the parameter and what is available; PoolError for a failing
        import.
        """
        notes = {f"reward function {b.name!r} is called {b.style.how}": None for b in self._functions if b.style.how}
        seen = set[tuple[object, ...]]()
        for row in rows:
            self._check_judged(row)
            prompt = Prompt(row.uid, (), "", row.row, row.messages, row.answer)
            shape = (row.answer is None, *((name, *_fields(value)) for name, value in row.row.items()))
            if shape in seen:  # of many rows with the same columns, one tells all
                continue
            seen.add(shape)
            self.judges.check(Answer(prompt, "", ()))
            notes |= {note: None for bound in self._functions for note in _check(bound, prompt)}
        self._calls.start()
        return tuple(notes)

    def _check_judged(self, row: TaskRow) -> None:
        """Raises RewardSetupError for a row that a function says it can never judge."""
        for bound in self._functions:
            if bound.check is not None:
                try:
                    bound.check(row.row, row.answer, bound.options.kwargs)
                except ValueError as error:
                    raise RewardSetupError(f"row {row.uid}: {bound.name}: {error}") from error

    async def score(
        self,
        prompt: Prompt,
        text: str,
        ids: Sequence[int],
        stop_reason: StopReason,
        ask: Ask | None = None,
        transcript: str | None = None,
    ) -> Scored:
        """Score one response. ask: brings its answer before the judge, together with others; alone where it is None. transcript:
        see `Answer`. Raises only when the workers are gone (PoolError) or a judge's server refuses all requests
        (RewardSetupError): a reward's fault is in the result.
        """
        answer = Answer(prompt, text, tuple(ids), stop_reason, transcript=transcript)
        calls: list[Coroutine[Any, Any, Outcome]] = []
        for i, bound in enumerate(self._functions):
            if bound.together:
                calls.append((ask or self._ask_alone)(replace(answer, to=bound.name)))
            else:
                calls.append(self._ask_function(i, answer))
        calls += [self.judges.ask(i, answer) for i in range(len(self.judges.names))]
        calls += [
            (ask or self._ask_alone)(replace(answer, to=PROCESS if name == PROCESS else "")) for name in self._models
        ]
        if not calls:
            return Scored(None, status="reward_error", error=NONE_NAMED)
        found = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        outcomes = [self._checked(i, one, answer) for i, one in enumerate(found)]
        return _summed(self.names, self.weights, outcomes)

    async def _ask_function(self, index: int, answer: Answer) -> Outcome:
        (outcome,) = await self._calls.ask(index, [answer], self._panel.state())
        return outcome

    async def _ask_alone(self, answer: Answer) -> Outcome:
        if not answer.to and self._panel.model is None:
            raise RewardSetupError(f"reward.model={self._config.model} was not loaded; put it in as `judge`")
        if answer.to == PROCESS and self._panel.process is None:
            raise RewardSetupError(
                f"reward.process_model={self._config.process_model} was not loaded; give it to `put_in`"
            )
        (outcome,) = await self._panel.ask([answer])
        return outcome

    def _checked(self, index: int, outcome: Outcome, answer: Answer) -> Outcome:
        """The outcome, or an error where its steps cannot be those of this answer."""
        if index >= len(self._functions) or outcome.reward is None:
            return outcome
        if self._functions[index].options.steps and not outcome.steps and answer.ids:
            where = f"reward.options.{self._functions[index].name}.steps"
            return Outcome(
                None,
                error=f"returned no steps, and {where} is set: return {{'score': ..., 'steps': [[token, reward], ...]}}",
            )
        outside = [at for at, _ in outcome.steps if not 0 <= at < len(answer.ids)]
        if not outside:
            return outcome
        return Outcome(
            None,
            error=f"returned a step at token {outside[0]} of a response of {len(answer.ids)} tokens, counted from 0",
        )

    def close(self) -> None:
        """End the worker processes, running calls included, and the threads of reward model and judges."""
        self.judges.close()
        self._panel.close()


def _fields(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Mapping) else ()


def _check(bound: RewardFunction, prompt: Prompt) -> list[str]:
    """Lines worth showing. Raises RewardSetupError where the function cannot be called for this row."""
    values: Mapping[str, Any] = bound.style.values([Answer(prompt, "", ())], TrainerState())
    if missing := bound.missing(values):
        raise RewardSetupError(f"row {prompt.uid}: {bound.complaint(missing[0], values)}")
    notes = [
        f"reward function {bound.name!r}: no column {name!r}, its default is used"
        for name in bound.unused_defaults(values)
    ]
    if "labels" in bound.style.positional and prompt.answer is None:
        notes.append(f"reward function {bound.name!r}: labels are empty, as the data have no gold answer")
    return notes


def _summed(names: Sequence[str], weights: Sequence[float], outcomes: Sequence[Outcome]) -> Scored:
    """The weighted sum of what applies."""
    parts, notes, steps = dict[str, float](), dict[str, str](), list[tuple[int, float]]()
    for name, weight, outcome in zip(names, weights, outcomes, strict=True):
        parts |= {} if outcome.reward is None else {name: outcome.reward}
        parts |= {f"{name}/{part}": value for part, value in outcome.parts.items()}
        notes |= {f"{name}/{note}": text for note, text in outcome.notes.items()}
        steps += [(at, weight * value) for at, value in outcome.steps]
    for name, outcome in zip(names, outcomes, strict=True):
        if outcome.failed:
            return Scored(None, parts, "reward_error", f"{name}: {outcome.error}", notes)
    rewards = [w * one.reward for w, one in zip(weights, outcomes, strict=True) if one.reward is not None]
    if not rewards:
        return Scored(None, parts, "not_applicable", f"{', '.join(names)}: not applicable", notes)
    total = sum(rewards)
    if not all(math.isfinite(value) for value in (total, *(value for _, value in steps))):
        told = f"{', '.join(names)}: times the weights {', '.join(map(str, weights))} it is no finite number"
        return Scored(None, parts, "reward_error", told, notes)
    return Scored(total, parts, notes=notes, step_rewards=steps)
