"""The `reward` section of a config: which functions, judges and models score responses, how they are called, and their limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from partita.config.schema import key, key_factory
from partita.tasks.judges.settings import JudgeConfig, check_border


@dataclass(frozen=True)
class FunctionOptions:
    """How one reward function is called."""

    style: Literal["auto", "partita", "trl", "verl", "areal", "openrlhf"] = key(
        "auto",
        "the tool whose way of calling the function expects; auto: known by the names of its parameters",
    )
    kwargs: dict[str, Any] = key_factory(
        dict, "further arguments for it, by name, as {wrong: -0.5}; they win over columns"
    )
    timeout_seconds: float | None = key(None, "wall-clock limit of one call; null: reward.timeout_seconds", gt=0)
    retries: int | None = key(
        None, "further tries where it raises, overruns its limit or dies; null: reward.retries", ge=0
    )
    cache: bool | None = key(None, "whether equal calls are made once; null: reward.cache")
    memory_gb: float | None = key(None, "what one call may add to a worker's memory; null: reward.memory_gb", gt=0)
    one_by_one: bool = key(False, "a function that takes lists is called for each response alone, with lists of one")
    steps: bool = key(False, "its dict must have steps, for actor.credit=process; without them the reward has failed")


@dataclass(frozen=True)
class RewardConfig:
    """How responses are scored."""

    functions: list[str] = key_factory(
        list,
        "built-in names (as math_correct), path/file.py:function or "
        "package.module:function; empty for the data's own, where no model and no judge is named: a task's reward, math_correct "
        "for #### answers",
    )
    weights: list[float] | None = key(None, "one weight per function; the reward is the weighted sum. null: 1 each")
    options: dict[str, FunctionOptions] = key_factory(
        dict, "how single functions are called, by the name that their metrics have"
    )
    judges: dict[str, JudgeConfig] = key_factory(
        dict, "language models at a server that are asked what a response is worth, by the name that their metrics have"
    )
    model: str | None = key(
        None,
        "a reward model beside the functions: a folder or hub name of a sequence-classification model with one label; it reads "
        "prompt and response in its own chat template and gives the part reward_model",
    )
    model_weight: float = key(1.0, "weight of the reward model's score in the sum")
    model_normalise: bool = key(
        False, "take the mean of reward_stats.json in the model's folder off its scores and divide them by the std"
    )
    process_model: str | None = key(
        None,
        "a process reward model beside them: a folder or hub name of a token-classification model with one or two labels, as TRL's "
        "PRMTrainer writes it; its value of each step is a step reward, their mean the part process_model",
    )
    process_model_weight: float = key(1.0, "weight of its mean in the sum, and of its step rewards")
    process_steps: str = key(
        "lines",
        "what stands between two steps for it: lines, paragraphs, or a regular expression that finds their borders",
    )
    process_separator: str = key("\n", "what it reads after each step; its value is that of the last token of this")
    timeout_seconds: float = key(10.0, "wall-clock limit of one call, waiting for a free worker not counted", gt=0)
    retries: int = key(0, "further tries of a call that raises, overruns its limit or dies, with growing pauses", ge=0)
    cache: bool = key(False, "make equal calls (same function, same arguments) once in a run, and keep what they gave")
    start_seconds: float = key(60.0, "wall-clock limit of importing the reward functions in a worker", gt=0)
    processes: int = key(4, "worker processes at most; they start when needed", ge=1)
    memory_gb: float | None = key(1.0, "what one call may add to a worker's memory; null for no limit", gt=0)
    max_error_share: float = key(
        0.5, "the run stops when more than this share of a step's samples has no reward because of errors", ge=0, le=1
    )

    def __post_init__(self) -> None:
        if self.weights is not None and self.functions and len(self.weights) != len(self.functions):
            raise ValueError(f"weights has {len(self.weights)} values for {len(self.functions)} functions")
        check_border("process_steps", self.process_steps)
        if not self.process_separator:
            raise ValueError("process_separator is empty: the values of steps are read at it")
        if odd := [name for name in self.judges if not re.fullmatch(r"\w+", name)]:  # they name files and metrics
            raise ValueError(f"judges.{odd[0]}: the name of a judge has letters, digits and _ only")

    @property
    def complete(self) -> bool:
        """Whether it scores without any function: then the data's own reward is not used."""
        return self.model is not None or self.process_model is not None or bool(self.judges)

    @property
    def gives_steps(self) -> bool:
        """Whether something is to give rewards of single steps."""
        functions = any(options.steps for options in self.options.values())
        return functions or self.process_model is not None or any(judge.steps for judge in self.judges.values())
