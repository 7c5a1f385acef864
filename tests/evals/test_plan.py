"""Evaluations of a training run: what becomes a metric, and that nothing else is touched."""

import asyncio
import warnings

import pytest
from toy import FirstToken, TableEngine

from partita.engine.api import Sampling
from partita.evals.answers import ANSWERS
from partita.evals.evaluate import Evaluator
from partita.evals.measures import Measures
from partita.evals.plan import EvalPlan
from partita.records import Prompt
from partita.rollout.workflow import SingleTurn

PROMPTS = tuple(Prompt(f"v{i}", (i,), str(i), {"half": "low" if i < 3 else "high"}) for i in range(6))
SAMPLING = Sampling(4, temperature=1.0, stop_ids=(7,))


def measured(measures: Measures | None, samples: int = 4, engine: TableEngine | None = None) -> dict[str, float]:
    evaluator = Evaluator(engine or TableEngine(), SingleTurn(), FirstToken(), seed=4)
    return asyncio.run(EvalPlan(evaluator, PROMPTS, SAMPLING, measures).measured(samples))


def test_the_reward_alone_by_default() -> None:
    assert set(measured(None)) == {"eval/error_share", "eval/reward", "eval/reward_low", "eval/reward_high"}


def test_measures_become_metrics_beside_the_same_reward() -> None:
    plain, found = measured(None), measured(Measures((1, 4), answer_of=ANSWERS["number"], by="half"))
    assert plain.items() <= found.items()
    assert {"eval/avg@4", "eval/pass@4", "eval/maj@4", "eval/pass@4_low", "eval/pass@4_high"} <= found.keys()
    assert found["eval/avg@4"] == found["eval/reward"] <= found["eval/pass@4"]
    assert "eval/pass@1" not in found  # that is avg@4
    halves = [found["eval/avg@4/low"], found["eval/avg@4/high"]]
    assert sum(halves) / 2 == pytest.approx(found["eval/avg@4"])
    assert 0 < found["eval/truncated"] <= 1
    assert found["eval/answered"] == 1.0
    assert 1 <= found["eval/response_length"] <= 4


def test_the_same_weights_give_the_same_metrics_from_a_stream_of_their_own() -> None:
    engine = TableEngine()
    measures = Measures((1, 2))
    assert measured(measures, engine=engine) == measured(measures, engine=engine)
    assert {request.draw.stream for sent in engine.rounds for request in sent} == {1}


def test_what_cannot_be_measured_is_a_warning_and_the_reward_stays() -> None:
    def fails(prompt: Prompt, response: str) -> str:
        raise ValueError("no")

    with pytest.warns(UserWarning, match="no maj@k: answer_of failed on 24 responses"):
        found = measured(Measures((1, 2), answer_of=fails))
    assert "eval/pass@2" in found and "eval/maj@2" not in found
    with pytest.warns(UserWarning, match="no sample has the part other of the reward; parts: first"):
        assert set(measured(Measures((1,), part="other"))) == set(measured(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured(Measures((1, 2)))  # that nothing votes is as it was asked for
