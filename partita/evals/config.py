"""The section `evaluator`: which held-out prompts, how they are sampled, and what is measured on the samples.

Left out: the data and the rewards; these are `valid_dataset` and `reward`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from partita.config import ConfigError, key
from partita.config.errors import Problem
from partita.engine.api import Sampling


@dataclass(frozen=True)
class EvaluatorConfig:
    """Evaluation on `valid_dataset`. Its random numbers are its own: training is the same with and without it."""

    freq_steps: int | None = key(None, "train steps between evaluations; null evaluates never during training", ge=1)
    n_prompts: int = key(64, "prompts per evaluation, the first of valid_dataset", ge=1)
    n_samples: int = key(1, "samples per prompt", ge=1)
    k: list[int] | None = key(
        None, "which pass@k and maj@k to measure; null: 1, 4, 16, 64 as far as n_samples goes", ge=1
    )
    temperature: float | None = key(
        None, "sampling temperature; 0 is greedy, for one sample only; null: 0 for one sample, else gconfig's", ge=0
    )
    top_k: int | None = key(None, "as in gconfig, whose value null takes", ge=0)
    top_p: float | None = key(None, "as in gconfig, whose value null takes", gt=0, le=1)
    max_new_tokens: int | None = key(None, "most tokens of a response; null: the largest of the run's stages", ge=1)
    correct_by: str | None = key(
        None,
        "the part of the reward that says whether a sample is right, as math_correct or my_reward/acc; null: that of a built-in "
        "grader where the reward has one, else the reward itself",
    )
    correct_threshold: float = key(1.0, "from which value on that part, or the reward, is right")
    answer_of: str | None = key(
        None,
        "how maj@k finds the answer in a response: math, number, line (Answer:), choice, text, tags (<answer>), source, or "
        "path/file.py:function; null: as the reward function does, where it is a built-in one",
    )
    by: str | None = key(
        None, "a column of the rows: what is measured is also told for each of its values, as level or type"
    )

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.n_samples > 1:
            raise ValueError(
                f"temperature=0 is greedy: all {self.n_samples} samples of a prompt would be the same and tell no more than one; "
                "use n_samples=1, or a temperature above 0"
            )
        if self.k is not None and (not self.k or max(self.k) > self.n_samples):
            raise ValueError(
                f"k={self.k}: each must lie between 1 and n_samples={self.n_samples}; pass@k is undefined for fewer than k samples"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The k of pass@k and maj@k, ascending."""
        return tuple(sorted(set(self.k))) if self.k else tuple(k for k in (1, 4, 16, 64) if k <= self.n_samples)

    def sampling(self, usual: Sampling) -> Sampling:
        """How the run samples, changed by what this section says. Raises ConfigError where several samples would be greedy."""
        heat = self.temperature
        if heat is None:
            heat = 0.0 if self.n_samples == 1 else usual.temperature
        if heat == 0 and self.n_samples > 1:
            what = f"gconfig.temperature=0 is greedy: all {self.n_samples} samples of a prompt would be the same"
            raise ConfigError([Problem("evaluator.temperature", f"{what}; set it above 0, or n_samples=1")])
        given = {"top_k": self.top_k, "top_p": self.top_p, "max_new_tokens": self.max_new_tokens}
        return replace(usual, temperature=heat, **{name: value for name, value in given.items() if value is not None})


def asked_for(section: EvaluatorConfig, given: Mapping[str, Any]) -> EvaluatorConfig:
    """A run's section with what a command line gives; None gives nothing, `k` is text as 1,4,16. Raises ConfigError.

    As many samples as the largest k, where only that is given. More than one is never greedy unless it is said so: the run's
    0 was for its own evaluations.
    """
    sizes = None if given["k"] is None else _sizes(given["k"])
    samples = max(sizes) if sizes is not None and given["n_samples"] is None else given["n_samples"]
    merged = vars(section) | {name: value for name, value in given.items() if value is not None}
    if samples is not None:
        merged |= {"n_samples": samples, "k": sizes}
        if given["temperature"] is None and section.temperature == 0:
            merged["temperature"] = None
    try:
        return EvaluatorConfig(**merged)
    except ValueError as error:
        raise ConfigError([Problem("evaluator", str(error))]) from error


def _sizes(words: str) -> list[int]:
    if not all(re.fullmatch(r"\s*0*[1-9]\d{0,8}\s*", word, re.ASCII) for word in words.split(",")):
        raise ConfigError([Problem("evaluator.k", f"{words[:80]!r}: expected whole numbers from 1 on, as 1,4,16")])
    return [int(word) for word in words.split(",")]
