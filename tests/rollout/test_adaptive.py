"""More samples for prompts that the policy is undecided about."""

import asyncio
import json
import math
from typing import Any

import pytest
from toy import EOS, FirstToken, TableEngine

from partita.config import ConfigError
from partita.engine.api import Sampling
from partita.engine.config import AdaptiveN, GenerationConfig
from partita.records import Group, Prompt, Row, Sample
from partita.rollout.adaptive import AdaptiveSizes, entropy_score, variance_score
from partita.rollout.episodes import Setting, play
from partita.rollout.rollouts import Refill, Retry, Rollouts
from partita.rollout.workflow import SingleTurn
from partita.run import load_run_config
from partita.tasks.cursor import Cursor

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(EOS,))
PROMPTS = tuple(Prompt(f"p{token}", (token,), str(token), {}) for token in range(4))


def group(rewards: list[float | None], logprobs: tuple[float, ...] = (-1.0,), uid: str = "p") -> Group:
    """Samples of these rewards; each has a prompt token and one trained token per log-prob."""
    samples = []
    for reward in rewards:
        n = len(logprobs)
        row = Row([0] * (n + 1), [False] + [True] * n, [0.0, *logprobs], [-1] + [0] * n)
        samples.append(Sample([row], "stop", "", reward, status="ok" if reward is not None else "reward_error"))
    return Group(0, Prompt(uid, (0,), "", {}), samples)


def test_scores_by_hand() -> None:
    assert entropy_score(group([1.0, None], (-0.5, -1.5, -4.0))) == pytest.approx(2.0)
    assert entropy_score(group([1.0], (-0.5, -math.inf))) == pytest.approx(0.5)
    assert entropy_score(group([1.0], ())) is None
    assert variance_score(group([1.0, 0.0, 0.0, 0.0])) == pytest.approx(3 / 16)
    assert variance_score(group([-1.0, 1.0, None])) == pytest.approx(1.0)
    assert variance_score(group([None])) is None
    assert variance_score(group([0.7] * 8)) == 0.0


def test_entropy_is_estimated_without_bias() -> None:
    engine = TableEngine()
    engine.table[0, 3] = 2.0
    setting = Setting(engine, SingleTurn(), FirstToken(), Sampling(max_new_tokens=1), seed=2, stream=0)
    [played] = asyncio.run(play(setting, [(0, PROMPTS[0])], 1000))
    p_3 = math.exp(2) / (math.exp(2) + 7)
    p_other = 1 / (math.exp(2) + 7)
    exact = -p_3 * math.log(p_3) - 7 * p_other * math.log(p_other)
    assert entropy_score(played) == pytest.approx(exact, abs=0.1)  # three standard errors


def test_unseen_prompts_count_as_the_mean_of_the_known() -> None:
    sizes = AdaptiveSizes(2, 8, "variance")
    assert sizes.sizes(["a", "b", "c"], 4) == [4, 4, 4]  # nobody is known
    sizes.observe([group([1.0, 0.0], uid="a"), group([1.0, 1.0], uid="b")])
    assert sizes.known == {"a": 0.25, "b": 0.0}
    assert sizes.sizes(["a", "b", "new"], 4) == [6, 2, 4]  # scores 1/4, 0, 1/8: of the 6 beyond 2 each, 4, 0, 2
    sizes.observe([group([None, None], uid="a")])
    assert sizes.known["a"] == 0.25  # nothing was learnt about it
    sizes.observe([group([0.0, 0.0], uid="a"), group([0.0, 1.0], uid="a")])
    assert sizes.known["a"] == 0.25  # the last rollout counts


def test_a_group_gets_the_number_of_samples_at_its_place() -> None:
    engine = TableEngine()
    setting = Setting(engine, SingleTurn(), FirstToken(), SAMPLING, seed=5, stream=0)
    started = list(zip([7, 8, 9], PROMPTS, strict=False))
    groups = asyncio.run(play(setting, started, [1, 3, 2]))
    assert [(g.serial, g.prompt.uid, len(g.samples)) for g in groups] == [(7, "p0", 1), (8, "p1", 3), (9, "p2", 2)]
    [sent] = engine.rounds
    assert [(r.draw.serial, r.draw.sample) for r in sent] == [(7, 0), (8, 0), (8, 1), (8, 2), (9, 0), (9, 1)]
    [other] = asyncio.run(play(setting, started[1:2], 2))  # fewer of them, in other company: the same draws
    assert [s.rows for s in other.samples] == [s.rows for s in groups[1].samples[:2]]


def rollouts(score: str = "entropy", **changes: Any) -> Rollouts:
    """Four prompts that recur; the policy is certain after token 1 (a right answer) and flat elsewhere."""
    engine = TableEngine()
    engine.follow(t1=3, t3=EOS)
    given = {"adaptive": AdaptiveSizes.of(AdaptiveN(2, 8, score))} | changes  # type: ignore[arg-type]
    prompts = Cursor(PROMPTS, seed=5, shuffle=True)
    return Rollouts(engine, SingleTurn(), prompts, FirstToken(), SAMPLING, n_samples=4, seed=5, **given)


@pytest.mark.parametrize("score", ["entropy", "variance"])
def test_a_decided_prompt_gets_the_fewest_and_the_budget_is_spent(score: str) -> None:
    runner = rollouts(score)
    first = asyncio.run(runner.take(4))
    assert [len(g.samples) for g in first.groups] == [4, 4, 4, 4]
    second = {g.prompt.uid: len(g.samples) for g in asyncio.run(runner.take(4)).groups}
    assert second["p1"] == 2
    assert sum(second.values()) == 16


def test_what_the_filter_drops_is_remembered_too() -> None:
    runner = rollouts("variance", refill=Refill(lambda g: g.prompt.uid != "p1", max_batches=1, refill=False))
    asyncio.run(runner.take(4))
    assert runner.adaptive is not None
    assert runner.adaptive.known.keys() == {"p0", "p1", "p2", "p3"}


def plain(groups: list[Group]) -> list[tuple]:
    return [(g.serial, g.prompt.uid, [(s.rows[0].ids, s.reward) for s in g.samples]) for g in groups]


@pytest.mark.slow
@pytest.mark.parametrize("score", ["entropy", "variance"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_killed_run_goes_on_with_the_same_sizes_and_groups(score: str, cut: int) -> None:
    features = {
        "retry": Retry(2),
        "refill": Refill(lambda g: len(set(g.rewards)) > 1, max_batches=20, refill=True),
        "prompt_limit": 1000,
    }
    whole = rollouts(score, **features)
    want = [asyncio.run(whole.take(3)) for _ in range(5)]
    assert any(step.discarded for step in want) and any(step.dropped for step in want)
    assert len({len(g.samples) for step in want for g in step.started}) > 2
    killed = rollouts(score, **features)
    for _ in range(cut):
        asyncio.run(killed.take(3))
    resumed = rollouts(score, **features)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    got = [asyncio.run(resumed.take(3)) for _ in range(cut, 5)]
    assert [plain(step.started) for step in got] == [plain(step.started) for step in want[cut:]]
    assert [plain(step.groups) for step in got] == [plain(step.groups) for step in want[cut:]]
    assert resumed.state_dict() == whole.state_dict()


def test_scores_of_another_measure_are_not_taken_over() -> None:
    before = rollouts("variance")
    asyncio.run(before.take(4))
    after = rollouts("entropy")
    after.load_state_dict(before.state_dict())
    assert after.adaptive is not None and after.adaptive.known == {}
    same = rollouts("variance")
    same.load_state_dict(before.state_dict())
    assert same.adaptive is not None and len(same.adaptive.known) == 4


def test_off_by_default_and_the_number_must_fit_between_the_bounds() -> None:
    assert AdaptiveSizes.of(GenerationConfig().adaptive_n) is None
    for low, high in ((5, 8), (2, 3)):
        with pytest.raises(ValueError, match=rf"n_samples=4 .* adaptive_n.min={low} and adaptive_n.max={high}"):
            GenerationConfig(n_samples=4, adaptive_n=AdaptiveN(low, high))
    words = ["total_train_steps=1", "gconfig.n_samples=8", "gconfig.adaptive_n.score=variance"]
    assert load_run_config([], words).value.gconfig.adaptive_n == AdaptiveN(2, 16, "variance")
    with pytest.raises(ConfigError, match=r"gconfig.*n_samples=8 .* adaptive_n.max=6"):
        load_run_config([], [*words, "gconfig.adaptive_n.max=6"])
    with pytest.raises(ConfigError, match=r"gconfig\.adaptive_n\.min"):
        load_run_config([], [*words, "gconfig.adaptive_n.min=1"])
