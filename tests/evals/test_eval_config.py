"""The section `evaluator`: what it takes from the run, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest

from partita.config import ConfigError
from partita.engine.api import Sampling
from partita.evals.config import EvaluatorConfig, asked_for

USUAL = Sampling(64, temperature=0.9, top_k=5, top_p=0.95, stop_ids=(7,))
NOTHING: dict[str, Any] = dict.fromkeys(
    ("n_prompts", "n_samples", "k", "temperature", "top_p", "max_new_tokens", "by", "correct_by", "answer_of")
)


def test_what_is_not_said_is_as_in_the_run() -> None:
    assert EvaluatorConfig().sampling(USUAL) == replace(USUAL, temperature=0.0)
    assert EvaluatorConfig(n_samples=4).sampling(USUAL) == USUAL
    own = EvaluatorConfig(n_samples=4, temperature=0.6, top_p=1.0, top_k=0, max_new_tokens=9)
    assert own.sampling(USUAL) == Sampling(9, temperature=0.6, top_k=0, top_p=1.0, stop_ids=(7,))


@pytest.mark.parametrize(
    ("samples", "sizes"), [(1, (1,)), (3, (1,)), (4, (1, 4)), (16, (1, 4, 16)), (100, (1, 4, 16, 64))]
)
def test_sizes_that_are_not_said(samples: int, sizes: tuple[int, ...]) -> None:
    assert EvaluatorConfig(n_samples=samples).sizes == sizes


def test_sizes_are_ascending_and_told_once() -> None:
    assert EvaluatorConfig(n_samples=8, k=[8, 1, 8]).sizes == (1, 8)


def test_greedy_with_several_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="all 4 samples of a prompt would be the same"):
        EvaluatorConfig(n_samples=4, temperature=0.0)
    with pytest.raises(ConfigError, match=r"gconfig\.temperature=0 is greedy"):
        EvaluatorConfig(n_samples=4).sampling(replace(USUAL, temperature=0.0))


@pytest.mark.parametrize("sizes", [[8], [], [1, 5]])
def test_sizes_beyond_the_samples_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"between 1 and n_samples=4"):
        EvaluatorConfig(n_samples=4, k=sizes)


def test_the_command_line_adds_to_the_section() -> None:
    section = EvaluatorConfig(freq_steps=5, n_prompts=3, n_samples=2, k=[1, 2], temperature=0.7)
    assert asked_for(section, NOTHING) == section
    given = asked_for(section, NOTHING | {"k": "1, 8", "n_prompts": 9})
    assert (given.n_samples, given.k, given.temperature, given.n_prompts) == (8, [1, 8], 0.7, 9)
    fewer = asked_for(section, NOTHING | {"n_samples": 1})
    assert (fewer.k, fewer.sizes) == (None, (1,))


def test_greedy_evaluations_of_a_run_do_not_forbid_several_samples() -> None:
    assert asked_for(EvaluatorConfig(temperature=0.0), NOTHING | {"n_samples": 4}).sampling(USUAL).temperature == 0.9
    with pytest.raises(ConfigError, match="evaluator: temperature=0 is greedy"):
        asked_for(EvaluatorConfig(), NOTHING | {"n_samples": 4, "temperature": 0.0})


@pytest.mark.parametrize("words", ["1,x", "0", "", "1;4", "9" * 5000, "²"])
def test_sizes_on_the_command_line_are_whole_numbers(words: str) -> None:
    with pytest.raises(ConfigError, match="expected whole numbers from 1 on, as 1,4,16"):
        asked_for(EvaluatorConfig(), NOTHING | {"k": words})
