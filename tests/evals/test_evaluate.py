"""An evaluation asks for what it was told to, from its own random stream, and says what it could not score."""

import asyncio
from dataclasses import replace

import pytest
from toy import FirstToken, TableEngine

from partita.engine.api import Sampling
from partita.evals.evaluate import Evaluation, Evaluator
from partita.records import Prompt
from partita.rollout.episodes import RolloutError
from partita.rollout.workflow import SingleTurn
from partita.tasks.reward import Scored

PROMPTS = [Prompt(f"v{i}", (i,), str(i), {}) for i in range(7)]
GREEDY = Sampling(4, temperature=0.0, stop_ids=(7,))


def evaluated(engine: TableEngine, sampling: Sampling, n_samples: int, scorer=None, prompts=PROMPTS) -> Evaluation:
    evaluator = Evaluator(engine, SingleTurn(), scorer or FirstToken(), seed=4)
    return asyncio.run(evaluator.run(prompts, sampling, n_samples))


def test_the_engine_gets_one_request_per_prompt_and_greedy_ones_when_asked_for() -> None:
    engine = TableEngine()
    engine.follow(t0=3, t1=3)
    found = evaluated(engine, GREEDY, 1)
    [sent] = engine.rounds
    assert [request.prompt_ids for request in sent] == [prompt.ids for prompt in PROMPTS]
    assert {request.sampling for request in sent} == {GREEDY}
    assert [len(group.samples) for group in found.groups] == [1] * 7
    assert found.mean.mean == pytest.approx(2 / 7)


def test_samples_are_counted_per_prompt_and_drawn_apart_from_training() -> None:
    engine = TableEngine()
    found = evaluated(engine, replace(GREEDY, temperature=1.0), 3)
    draws = [request.draw for sent in engine.rounds for request in sent]
    assert [(d.seed, d.stream, d.serial, d.sample) for d in draws] == [(4, 1, p, k) for p in range(7) for k in range(3)]
    assert [group.prompt.uid for group in found.groups] == [prompt.uid for prompt in PROMPTS]


class Refuses:
    """Fails on the prompts with these ids."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        failed = prompt.ids[0] in self.ids
        return Scored(None, {}, "reward_error", "found: no") if failed else Scored(1.0)


def test_what_could_not_be_scored_is_left_out_and_counted() -> None:
    found = evaluated(TableEngine(), GREEDY, 2, Refuses(3, 4))
    assert (found.mean.mean, found.errors) == (1.0, 4)
    assert found.rewards.keys() == {"v0", "v1", "v2", "v5", "v6"}
    with pytest.raises(RolloutError, match="no sample could be scored; the first error: found: no"):
        evaluated(TableEngine(), GREEDY, 1, Refuses(*range(7)))
