"""Episodes with an environment: rewards at the turns they belong to, ends, failures, and environments of gymnasium."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from talking import CHATML, Speaker, asked, chat_with, played, shown

from partita.engine.api import Sampling
from partita.records import Group
from partita.rollout.environment import Environment
from partita.rollout.multi_turn import MultiTurn
from partita.rollout.summary import summarise
from partita.tasks.reward import RewardErrors, guard_errors
from partita.train.batch import collate

CHAT = chat_with(CHATML, "<|im_end|>")
LINES = ("1", "22", "3")


class Count:
    """Ends with the word 3; each step is worth the length of what was said."""

    seeds: ClassVar[list[int]] = []

    def __init__(self, opening: str | None = None, pause: float = 0.0) -> None:
        self.opening, self.pause = opening, pause

    def reset(self, row: Mapping[str, Any], seed: int) -> str | None:
        self.seeds.append(seed)
        return self.opening

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause)
        return f"not {action}", float(len(action)), action == "3", False, {}


def speaker(*lines: str) -> Speaker:
    return Speaker(CHAT, "<|im_end|>", *(lines or LINES))


def test_the_reward_is_the_sum_of_the_steps_each_at_the_last_token_of_its_turn() -> None:
    engine = speaker()
    [sample] = played(engine, MultiTurn(Count), asked(CHAT))
    assert (sample.reward, sample.parts, sample.stop_reason, sample.status) == (4.0, {"environment": 4.0}, "stop", "ok")
    assert sample.step_rewards == [(1, 1.0), (4, 2.0), (6, 1.0)]  # two tokens, three, two, with the end of each turn
    text = shown(CHAT, sample.rows[0].ids)
    assert "assistant\n1<|im_end|>\n<|im_start|>user\nnot 1<|im_end|>" in text and text.endswith("3<|im_end|>")
    batch = collate([Group(0, asked(CHAT), [sample])], seed=1, version=0).batch
    assert batch.step_rewards_T.nan_to_num(0.0).tolist() == [0, 1, 0, 0, 2, 0, 1]
    assert summarise([Group(0, asked(CHAT), [sample])])["turns/mean"].mean == 3


def test_the_turn_limit_cuts_an_episode_with_the_rewards_so_far() -> None:
    [sample] = played(speaker(), MultiTurn(Count, max_turns=2), asked(CHAT))
    assert (sample.reward, sample.stop_reason, sample.text) == (3.0, "length", "1\n\n22")
    assert sample.rows[0].trained[-1]  # nobody is told what nobody answers


def test_a_turn_that_is_cut_is_judged_and_is_the_last() -> None:
    [sample] = played(speaker("12345", "3"), MultiTurn(Count), asked(CHAT), sampling=Sampling(4))
    assert (sample.reward, sample.stop_reason, sample.text) == (4.0, "length", "1234")


@pytest.mark.parametrize("rows", ["one", "rerendered"])
def test_a_reset_may_add_to_the_prompt_or_bring_a_conversation(rows) -> None:
    engine = speaker("3")
    played(engine, MultiTurn(Count, {"opening": "Between 1 and 3."}, rows=rows), asked(CHAT))
    assert "user\nHi\n\nBetween 1 and 3.<|im_end|>" in shown(CHAT, engine.requests[0].prompt_ids)
    whole = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    engine = speaker("3")
    played(engine, MultiTurn(Count, {"opening": whole}, rows=rows), asked(CHAT))
    assert list(engine.requests[0].prompt_ids) == CHAT.opening(whole)
    engine = speaker("3")
    played(engine, MultiTurn(Count, rows=rows), asked(CHAT))
    assert engine.requests[0].prompt_ids == asked(CHAT).ids


def test_the_task_s_reward_sees_what_the_policy_wrote_and_the_transcript_by_name() -> None:
    async def wrote(response: str) -> float:
        return float("not" in response)

    async def there(transcript: str) -> float:
        return float(transcript == "1\n\nnot 1\n\n22\n\nnot 22\n\n3")

    [sample] = played(speaker(), MultiTurn(Count, reward="task"), asked(CHAT), wrote, there)
    assert sample.parts == {"wrote": 0.0, "there": 1.0} and sample.reward == 1.0


def test_without_a_reward_anywhere_the_sample_says_what_to_name() -> None:
    [sample] = played(speaker(), MultiTurn(Count, reward="task"), asked(CHAT))
    assert sample.status == "reward_error" and "reward.functions" in sample.error


def test_all_samples_of_a_group_meet_the_same_world_and_another_group_another() -> None:
    Count.seeds = []
    played(speaker(), MultiTurn(Count), asked(CHAT), samples=3)
    first = list(Count.seeds)
    assert len(first) == 3 and len(set(first)) == 1 and 0 <= first[0] < 2**32
    played(speaker(), MultiTurn(Count), asked(CHAT))
    assert Count.seeds[-1] == first[0]
    played(speaker(), MultiTurn(Count), asked(CHAT), seed=2)
    played(speaker(), MultiTurn(Count), asked(CHAT), stream=1)
    assert len(set(Count.seeds)) == 3


def test_slow_environments_run_side_by_side() -> None:
    began = time.monotonic()
    samples = played(speaker(), MultiTurn(Count, {"pause": 0.2}), asked(CHAT), samples=8)
    assert [sample.reward for sample in samples] == [4.0] * 8
    assert time.monotonic() - began < 4.0  # one after another they would take 4.8 s


class Broken(Count):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def reset(self, row, seed):
        if self.how == "reset":
            raise RuntimeError("no board")

    def step(self, action):
        if self.how == "raises" and action == "22":
            raise ValueError("no such move")
        if self.how == "ends":
            raise StopIteration
        if self.how == "slow":
            time.sleep(1.0)
        return {
            "four": ("x", 1.0, False, {}), "nan": ("x", float("nan"), False, False, {}), "text": (7, 1.0, False, False, {}),
            "nothing": ("x", None, True, False, {}),
        }.get(self.how, ("x", 1.0, False, False, {}))  # fmt: skip


FAULTS = {
    "reset": "environment: in reset: RuntimeError: no board",
    "raises": "environment: in step: ValueError: no such move",
    "ends": "environment: in step: StopIteration",
    "slow": "environment: in step: no result within 0.2 seconds",
    "four": "environment: step returned ('x', 1.0, False, {}); expected (observation, reward, terminated, truncated, info)",
    "nan": "environment: step returned the reward nan; expected a finite number",
    "text": '"step\'s observation" is a int',
    "nothing": "environment: no step had a reward; rollout.workflow_kwargs.reward=task",
}


@pytest.mark.parametrize("how", FAULTS)
def test_what_goes_wrong_in_an_environment_is_an_error_of_its_sample(how) -> None:
    engine, workflow = speaker(), MultiTurn(Broken, {"how": how}, timeout_seconds=0.2 if how == "slow" else 60.0)
    good, bad = played(engine, MultiTurn(Count), asked(CHAT)), played(engine, workflow, asked(CHAT))
    [sample] = bad
    assert (sample.reward, sample.status) == (None, "reward_error")
    assert FAULTS[how] in sample.error
    group = Group(0, asked(CHAT), [*good, sample])
    rollout = collate([group], seed=1, version=0)
    assert rollout.batch.valid_S.tolist() == [True, False]
    metrics = summarise([group])
    assert metrics["environment/error_share"].mean == metrics["reward/error_share"].mean == 0.5
    assert guard_errors(group.samples, 0.5) == 0.5
    with pytest.raises(RewardErrors, match="environment"):
        guard_errors(group.samples, 0.4)


def test_an_environment_of_gymnasium_works_as_it_is() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Echo(gymnasium.Env):
        observation_space = gymnasium.spaces.Text(64, charset="abcdefghijklmnopqrstuvwxyz 0123456789")
        action_space = gymnasium.spaces.Text(64, charset="abcdefghijklmnopqrstuvwxyz 0123456789")

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.secret = str(self.np_random.integers(10)) if options is None else options["secret"]
            return "say the number", {}

        def step(self, action):
            return f"{action} it is not", float(action == self.secret), action == self.secret, False, {}

    engine = speaker("1", "22", "3")
    make = lambda: gymnasium.wrappers.PassiveEnvChecker(Echo())  # noqa: E731
    [sample] = played(engine, MultiTurn(make), asked(CHAT, secret="22"))
    assert (sample.reward, sample.stop_reason, sample.text) == (1.0, "stop", "1\n\n22")
    assert "Hi\n\nsay the number" in shown(CHAT, sample.rows[0].ids) and "1 it is not" in shown(
        CHAT, sample.rows[0].ids
    )
    limited = lambda: gymnasium.wrappers.TimeLimit(Echo(), 1)  # noqa: E731
    [cut] = played(speaker("1", "22"), MultiTurn(limited), asked(CHAT, secret="22"))
    assert (cut.reward, cut.stop_reason, cut.text) == (0.0, "length", "1")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_turns": 0}, "at least 1"),
        ({"reward": "both"}, "environment or task"),
        ({"rows": "many"}, "one, rerendered"),
    ],
)
def test_values_that_cannot_work_are_refused(keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        MultiTurn(Count, **keys)
    with pytest.raises(ValueError, match="expected a class or a function"):
        MultiTurn("math:pi")


def test_the_protocol_is_what_the_tests_implement() -> None:
    environment: Environment = Count()
    assert environment.reset({}, 0) is None
