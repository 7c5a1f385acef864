"""Scores responses with any Python functions, and never takes a failure for a score.

A reward that raises, overruns its limit, is killed, or returns something that is not a finite number gives the status
"reward_error" and its message; the sample is then left out of training and counted, see `guard_errors`. What is scored
is the response alone. Synchronous functions run in processes that can be killed (`tasks.pool`), coroutines on the
event loop, a reward model in a thread of its own (`tasks.model_reward`).

Left out: batches. A reward sees one response at a time and knows nothing of its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from partita.config.schema import key, key_factory
from partita.records import Prompt, Sample, Status, StopReason
from partita.tasks.binding import RewardFunction, RewardSetupError, bind_all
from partita.tasks.dataset import TaskRow
from partita.tasks.functions import RESERVED, error_text, read_reward
from partita.tasks.pool import Outcome, Pool

MODEL = "reward_model"
"""What the reward model's score is called among the parts."""


@dataclass(frozen=True)
class RewardConfig:
    """How responses are scored."""

    functions: list[str] = key_factory(
        list,
        "built-in names (math_correct, last_number_correct, think_answer_format), path/file.py:function or "
        "package.module:function; empty for the data's own, where no model is named: a task's reward, math_correct for "
        "#### answers",
    )
    weights: list[float] | None = key(None, "one weight per function; the reward is the weighted sum. null: 1 each")
    model: str | None = key(
        None,
        "a reward model beside the functions: a folder or hub name of a sequence-classification model with one label; it reads "
        "prompt and response in its own chat template and gives the part reward_model",
    )
    model_weight: float = key(1.0, "weight of the reward model's score in the sum")
    model_normalise: bool = key(
        False, "take the mean of reward_stats.json in the model's folder off its scores and divide them by the std"
    )
    timeout_seconds: float = key(10.0, "wall-clock limit of one call, waiting for a free worker not counted", gt=0)
    start_seconds: float = key(60.0, "wall-clock limit of importing the reward functions in a worker", gt=0)
    processes: int = key(4, "worker processes at most; they start when needed", ge=1)
    memory_gb: float | None = key(1.0, "what one call may add to a worker's memory; null for no limit", gt=0)
    max_error_share: float = key(
        0.5, "the run stops when more than this share of a step's samples has no reward because of errors", ge=0, le=1
    )

    def __post_init__(self) -> None:
        if self.weights is not None and self.functions and len(self.weights) != len(self.functions):
            raise ValueError(f"weights has {len(self.weights)} values for {len(self.functions)} functions")


@dataclass(frozen=True)
class Scored:
    """The weighted reward, None exactly when `status` is not "ok"; `parts` by function name, `name/part` for its parts.

    `error` starts with the function's name and one line that says what happened; a traceback may follow.
    """

    reward: float | None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    status: Status = "ok"
    error: str = ""


@dataclass(frozen=True)
class Answer:
    """What a policy answered: text without special tokens, and the ids as sampled, the end included where there is one."""

    prompt: Prompt
    text: str
    ids: tuple[int, ...]


class Judge(Protocol):
    """A reward model, whatever runs it; see `tasks.model_reward`."""

    async def ask(self, answers: Sequence[Answer]) -> list[Outcome]:
        """A score for each; whatever fails is in the outcome. Scores depend on what is asked together by rounding only."""
        ...

    def close(self) -> None:
        """End what runs it."""
        ...


Ask = Callable[[Answer], Coroutine[Any, Any, Outcome]]
"""Brings one answer before the judge and waits for its score."""


class RewardErrors(RuntimeError):
    """Too many samples of a step have no reward; the message ends with the first error."""


def guard_errors(samples: Iterable[Sample], max_share: float) -> float:
    """The share of samples with status "reward_error". Raises RewardErrors when it is above `max_share`."""
    errors = [sample.error if sample.status == "reward_error" else None for sample in samples]
    failed = [error for error in errors if error is not None]
    share = len(failed) / max(len(errors), 1)
    if share > max_share:
        raise RewardErrors(
            f"{len(failed)} of {len(errors)} samples have no reward because of errors "
            f"(reward.max_error_share={max_share:g}). The first error:\n{failed[0]}"
        )
    return share


class RewardRuntime:
    """Owns the reward functions of a run and the processes they run in.

    `functions` are used where the config names none. Make it, and `check`, before models are loaded: functions given as
    objects are run in processes forked from this one. A reward model of the config is put in as `judge` afterwards, and
    closed with the runtime.
    Raises RewardSetupError when a function cannot be found or called.
    """

    def __init__(self, config: RewardConfig, functions: Sequence[str | Callable[..., Any]] = ()) -> None:
        chosen: Sequence[str | Callable[..., Any]] = config.functions or functions
        if not chosen and config.model is None:
            raise RewardSetupError(
                "reward.functions is empty and the data bring no reward of their own; name at least one function, "
                "as math_correct or path/file.py:function, or a reward model with reward.model"
            )
        self._weights = [1.0] * len(chosen) if config.weights is None else config.weights
        if len(self._weights) != len(chosen):
            raise RewardSetupError(f"reward.weights has {len(self._weights)} values for {len(chosen)} functions")
        self._config = config
        self._functions = bind_all(chosen)
        reserved = RESERVED if config.model is None else (*RESERVED, MODEL)
        if taken := [bound.name for bound in self._functions if bound.name in reserved]:
            raise RewardSetupError(
                f"a reward function cannot be called {taken[0]!r}: reward/{taken[0]} is a metric of its own; rename the function"
            )
        self.judge: Judge | None = None
        self._in_workers = [i for i, bound in enumerate(self._functions) if bound.place == "worker"]
        self._pool = self._make_pool(chosen) if self._in_workers else None
        self._threads = ThreadPoolExecutor(config.processes, "reward") if self._in_workers else None

    def _make_pool(self, chosen: Sequence[str | Callable[..., Any]]) -> Pool:
        names = [name for i in self._in_workers if isinstance(name := chosen[i], str)]
        # One process cannot be both fresh and forked: with an object among them, all of them are forked.
        by_name = len(names) == len(self._in_workers)
        return Pool(
            names if by_name else [self._functions[i].function for i in self._in_workers],
            processes=self._config.processes,
            memory_gb=self._config.memory_gb,
            start_seconds=self._config.start_seconds,
        )

    @property
    def names(self) -> list[str]:
        """Names of the functions, and of the reward model after them, as in `Scored.parts`."""
        return [bound.name for bound in self._functions] + [MODEL] * (self._config.model is not None)

    @property
    def weights(self) -> list[float]:
        """What each of `names` is multiplied by in the sum."""
        return [*self._weights, *[self._config.model_weight] * (self._config.model is not None)]

    def check(self, *rows: TaskRow) -> tuple[str, ...]:
        """Make sure every function can be called for these rows and be imported in a worker; returns lines worth
        showing.

        Raises RewardSetupError naming the function, the parameter and what is available; PoolError for a failing
        import.
        """
        notes: dict[str, None] = {}
        for row in rows:
            names = _values(Prompt(row.uid, (), "", row.row, row.messages, row.answer), "", (), "stop")
            for bound in self._functions:
                if missing := bound.missing(names):
                    raise RewardSetupError(f"row {row.uid}: {bound.complaint(missing[0], names)}")
                for name in bound.optional:
                    if name not in names:
                        notes[f"reward function {bound.name!r}: no column {name!r}, its default is used"] = None
        if self._pool is not None:
            self._pool.start()
        return tuple(notes)

    async def score(
        self, prompt: Prompt, text: str, ids: Sequence[int], stop_reason: StopReason, ask: Ask | None = None
    ) -> Scored:
        """Score one response. ask: brings its answer before the judge, together with others; alone where it is None. Raises
        only when the workers are gone (PoolError): a reward's fault is in the result.
        """
        values = _values(prompt, text, ids, stop_reason)
        calls: list[Coroutine[Any, Any, Outcome]] = [self._call(i, values) for i in range(len(self._functions))]
        if self._config.model is not None:
            calls.append((ask or self._ask_alone)(Answer(prompt, text, tuple(ids))))
        outcomes = await asyncio.gather(*calls)
        reward, parts = 0.0, dict[str, float]()
        for name, weight, outcome in zip(self.names, self.weights, outcomes, strict=True):
            if outcome.reward is not None:
                reward += weight * outcome.reward
                parts[name] = outcome.reward
                parts.update({f"{name}/{part}": value for part, value in outcome.parts.items()})
        for name, outcome in zip(self.names, outcomes, strict=True):
            if outcome.reward is None:
                return Scored(None, parts, "reward_error", f"{name}: {outcome.error}")
        return Scored(reward, parts)

    async def _ask_alone(self, answer: Answer) -> Outcome:
        if self.judge is None:
            raise RewardSetupError(f"reward.model={self._config.model} was not loaded; put it in as `judge`")
        (outcome,) = await self.judge.ask([answer])
        return outcome

    async def _call(self, index: int, values: Mapping[str, Any]) -> Outcome:
        bound, seconds = self._functions[index], self._config.timeout_seconds
        try:
            arguments = bound.arguments(values)
        except RewardSetupError as error:
            return Outcome(None, error=str(error))
        if bound.place == "here":
            return _call_here(bound, arguments)
        if bound.place == "loop":
            return await _await(bound, arguments, seconds)
        assert self._pool is not None
        which = self._in_workers.index(index)
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._pool.call, which, arguments, seconds
        )

    def close(self) -> None:
        """End the worker processes, running calls included, and the reward model's thread."""
        if self.judge is not None:
            self.judge.close()
        if self._pool is not None and self._threads is not None:
            self._pool.close()
            self._threads.shutdown()


def _values(prompt: Prompt, text: str, ids: Sequence[int], stop_reason: StopReason) -> dict[str, Any]:
    """Everything a reward may ask for by name. The names of `GIVEN` win over columns; `row` still has those."""
    values: dict[str, Any] = {str(name): value for name, value in prompt.row.items() if str(name).isidentifier()}
    values.pop("answer", None)
    if prompt.answer is not None:
        values["answer"] = prompt.answer
    return values | {
        "response": text,
        "completion": text,
        "prompt": prompt.text,
        "messages": [dict(message) for message in prompt.messages],
        "row": dict(prompt.row),
        "tokens": list(ids),
        "stop_reason": stop_reason,
    }


def _call_here(bound: RewardFunction, arguments: Mapping[str, Any]) -> Outcome:
    try:
        return Outcome(*read_reward(bound.function(**arguments)))
    except Exception as error:  # whatever a reward raises is that sample's error, kept with its traceback
        return Outcome(None, error=error_text(error))


async def _await(bound: RewardFunction, arguments: Mapping[str, Any], seconds: float) -> Outcome:
    if bound.own_limit:
        return Outcome(await bound.function(**arguments, seconds=seconds))
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return Outcome(*read_reward(await bound.function(**arguments)))
    except Exception as error:  # see _call_here; a cancelled run still ends, as that is no Exception
        if limit.expired():
            return Outcome(None, error=f"no result within {seconds:g} seconds (reward.timeout_seconds)", timed_out=True)
        return Outcome(None, error=error_text(error))
