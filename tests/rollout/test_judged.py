"""What a reward model is asked about together: never a matter of which answer, tool or function was fast."""

import asyncio
import itertools

import pytest
from toy import TableEngine

from partita.engine.api import Sampling
from partita.records import Prompt, Sample
from partita.rollout.episodes import Setting, play
from partita.rollout.workflow import Episode, SingleTurn
from partita.tasks.pool import Outcome
from partita.tasks.reward import Answer, RewardConfig, RewardRuntime

PROMPTS = [(serial, Prompt(f"p{serial}", (serial,), str(serial), {})) for serial in range(3)]


class Counting:
    """A judge that scores by the length of the answer and remembers what came together."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.error = error

    async def ask(self, answers: list[Answer]) -> list[Outcome]:
        self.asked.append([(answer.prompt.uid, answer.text) for answer in answers])
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return [Outcome(float(len(answer.ids))) for answer in answers]

    def close(self) -> None:
        pass


def played(judge: Counting, workflow=None, functions=(), samples=2) -> list[list[Sample]]:
    runtime = RewardRuntime(RewardConfig(model="m"), functions)
    runtime.judge = judge
    setting = Setting(TableEngine(), workflow or SingleTurn(), runtime, Sampling(3), 5, 0, judge)
    try:
        return [group.samples for group in asyncio.run(asyncio.wait_for(play(setting, PROMPTS, samples), 10))]
    finally:
        runtime.close()


def test_all_answers_of_a_round_are_judged_together_in_the_order_of_samples() -> None:
    judge = Counting()
    groups = played(judge)
    assert judge.asked == [[(f"p{serial}", sample.text) for serial in range(3) for sample in groups[serial]]]
    assert all(sample.reward == sample.parts["reward_model"] == sample.length for one in groups for sample in one)


def lists(completions, prompts, **kwargs):
    return [len(completions) + 100.0 * len(set(prompts))] * len(completions)


def test_a_function_that_takes_lists_is_asked_group_by_group() -> None:
    runtime = RewardRuntime(RewardConfig(processes=1), [lists])
    setting = Setting(TableEngine(), SingleTurn(), runtime, Sampling(3), 5, 0, runtime.judge)
    twice = [(serial, PROMPTS[0][1]) for serial in range(2)]  # one prompt, two groups
    groups = asyncio.run(asyncio.wait_for(play(setting, twice, [2, 3]), 10))
    runtime.close()
    assert [group.rewards for group in groups] == [[102.0] * 2, [103.0] * 3]


def stepwise(response, tokens):
    return {"score": 1.0, "steps": [[i, 0.5] for i in range(len(tokens))], "said": response}


def test_steps_and_notes_of_functions_reach_the_samples() -> None:
    runtime = RewardRuntime(RewardConfig(processes=1), [stepwise])
    setting = Setting(TableEngine(), SingleTurn(), runtime, Sampling(3), 5, 0, runtime.judge)
    (group,) = asyncio.run(asyncio.wait_for(play(setting, PROMPTS[:1], 2), 10))
    runtime.close()
    for sample in group.samples:
        assert sample.step_rewards == [(i, 0.5) for i in range(sample.length)]
        assert sample.notes == {"stepwise/said": sample.text}


class Unequal:
    """Samples sleep before they ask, some ask for two scores, some go on after the first."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = itertools.cycle(seconds)

    async def run(self, episode: Episode) -> Sample:
        first = await episode.generate(episode.prompt.ids)
        await asyncio.sleep(next(self.seconds))
        if episode.prompt.uid == "p0":
            await asyncio.gather(
                episode.score("draft", first.ids, first.stop_reason), episode.score("also", (1,), first.stop_reason)
            )
        if episode.prompt.uid != "p1":
            first = await episode.generate(episode.prompt.ids)
            await asyncio.sleep(next(self.seconds))
        scored = await episode.score("final", first.ids, first.stop_reason)
        return Sample([], first.stop_reason, "", scored.reward, dict(scored.parts))


@pytest.mark.parametrize("seconds", [[0.0], [0.02, 0.0, 0.01], [0.0, 0.03], [0.03, 0.02, 0.01, 0.0]])
def test_what_is_judged_together_does_not_depend_on_time(seconds: list[float]) -> None:
    judge = Counting()
    played(judge, Unequal(seconds))
    first = [("p0", "draft"), ("p0", "also")] * 2 + [("p1", "final")] * 2
    assert judge.asked == [first, [("p0", "final")] * 2 + [("p2", "final")] * 2]


def test_slow_functions_do_not_change_what_is_judged_together() -> None:
    async def slow(response):
        await asyncio.sleep(0.02 * (len(response) % 3))
        return 1.0

    judge = Counting()
    groups = played(judge, functions=[slow])
    assert [len(one) for one in judge.asked] == [6]
    assert all(sample.reward == 1.0 + sample.length for one in groups for sample in one)


def test_an_answer_that_was_given_up_is_not_judged() -> None:
    class Impatient:
        async def run(self, episode: Episode) -> Sample:
            if episode.prompt.uid == "p0":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(episode.score("given up", (1,), "stop"), 0.01)
            await asyncio.sleep(0.05)
            scored = await episode.score("kept", (1,), "stop")
            return Sample([], "stop", "", scored.reward)

    judge = Counting()
    played(judge, Impatient(), samples=1)
    assert judge.asked == [[("p0", "kept"), ("p1", "kept"), ("p2", "kept")]]


def test_a_judge_that_breaks_is_heard_of() -> None:
    with pytest.raises(RuntimeError, match="the judge is gone"):
        played(Counting(RuntimeError("the judge is gone")))
