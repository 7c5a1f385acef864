"""Agents in processes of their own against the served policy: what they return, and everything that goes wrong with them."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from serving import END, Echo
from talking import CHATML, asked, chat_with

from partita.engine.api import Sampling
from partita.records import Prompt, Sample
from partita.rollout.episodes import RolloutError, Setting, play
from partita.rollout.served.workflow import Agent, AgentError
from partita.tasks.reward import RewardConfig, RewardRuntime

pytestmark = pytest.mark.slow
CHAT = chat_with(CHATML, END)
FILE = Path(__file__).parent / "agents.py"


def engine(says: Any = lambda prompt, sample: str(sample), **more: Any) -> Echo:
    return Echo(CHAT, says, **more)


def played(
    agent: Any, on: Echo, samples: int = 2, prompt: Prompt | None = None, reward: Any = None, **keys: Any
) -> list[Sample]:
    """The samples of one group; agent: the name of one in agents.py, or an object."""
    workflow = Agent(f"{FILE}:{agent}" if isinstance(agent, str) else agent, **keys)
    scorer = RewardRuntime(RewardConfig(processes=1), [reward] if reward else [], needed=False)
    sampling = Sampling(32, stop_ids=CHAT.stop_ids)
    setting = Setting(on, workflow, scorer, sampling, seed=1, stream=0, chat=CHAT)
    try:
        [group] = asyncio.run(asyncio.wait_for(play(setting, [(0, prompt or asked(CHAT, answer="4"))], samples), 120))
        return group.samples
    finally:
        scorer.close()
        workflow.close()


def test_all_calls_of_an_agent_are_one_sample() -> None:
    on = engine(lambda prompt, sample: "yes!" if "Sure?" in prompt else "no")
    first, second = played("twice", on)
    assert [first.reward, second.reward] == [4.0, 4.0]
    assert first.parts == {"agent": 4.0} and first.notes == {"agent/final": "yes!"}
    assert first.metrics == {"agent/calls": 2.0, "agent/rows": 1.0, "agent/draft": 2.0}
    (row,) = first.rows
    assert sum(row.trained) == len("no") + 1 + len("yes!") + 1
    assert (first.stop_reason, first.text, first.status) == ("stop", "yes!", "ok")
    assert [len(sent) for sent in on.rounds] == [2, 2]  # both samples, twice


def test_no_sample_waits_for_a_place() -> None:
    on = engine()
    samples = played("twice", on, samples=64)
    assert [sample.reward for sample in samples] == [float(len(str(k))) for k in range(64)]
    assert [len(sent) for sent in on.rounds] == [64, 64]


def reward(response: str, transcript: str) -> float:
    return float(response.endswith("1 4 blue")) + 10.0 * (transcript == "1")


def test_a_text_is_scored_by_the_task() -> None:
    samples = played("awaited", engine(), reward=reward, kwargs={"colour": "blue"}, prompt=asked(CHAT, answer="4"))
    assert [sample.text for sample in samples] == ["0 4 blue", "1 4 blue"]
    assert [sample.reward for sample in samples] == [0.0, 11.0]


def test_an_agent_that_fails_is_a_reward_error_of_its_sample() -> None:
    first, second = played("raising", engine())
    assert (first.status, first.reward, second.status, second.reward) == ("reward_error", None, "ok", 1.0)
    assert first.error.startswith("the agent ValueError: no luck") and "agents.py" in first.error
    assert sum(first.rows[0].trained) == 2 and first.metrics["agent/calls"] == 1.0


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ("silent", "the agent made no call"),
        ("forgetful", "the agent returned None"),
        ("dying", "the agent its process ended: exit code 3"),
    ],
)
def test_others_that_come_to_nothing(agent: str, why: str) -> None:
    for sample in played(agent, engine()):
        assert sample.status == "reward_error" and sample.error.startswith(why)
        assert len(sample.rows) == 1 and sample.length == (0 if agent == "silent" else 2)


def test_an_agent_that_never_ends_is_killed_and_the_others_go_on(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    first, second = played("endless", engine(), timeout_seconds=4.0, prompt=asked(CHAT, file=str(file)))
    assert (first.status, second.status, second.reward) == ("reward_error", "ok", 1.0)
    assert "did not end within 4 seconds" in first.error and "1 calls" in first.error
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_waiting_for_the_model_is_not_the_agents_time() -> None:
    slow = engine(delay=lambda prompt: 2.5)
    assert [sample.status for sample in played("twice", slow, timeout_seconds=4.0)] == ["ok", "ok"]


def test_calls_at_the_same_time_give_the_same_sample_whatever_their_order() -> None:
    def says(prompt: str, sample: int) -> str:
        return f"{prompt[17]}{sample}"

    def draws(on: Echo) -> set[tuple[int, int]]:
        return {(request.draw.sample, request.draw.call) for sent in on.rounds for request in sent}

    one, other = engine(says), engine(says)
    first, second = played("parallel", one), played("parallel", other)
    assert draws(one) == draws(other) and len(draws(one)) == 8
    for sample, again in zip(first, second, strict=True):  # rows stand in the order in which they came
        assert sorted(row.ids for row in sample.rows) == sorted(row.ids for row in again.rows)
        assert len(sample.rows) == 4


def test_a_call_that_its_client_gives_up_leaves_nothing() -> None:
    on = engine(
        lambda prompt, sample: "yes" if "again" in prompt else "lost", delay=lambda p: 0.0 if "again" in p else 1.0
    )
    (sample,) = played("impatient", on, samples=1)
    assert sample.reward == 3.0 and [sum(row.trained) for row in sample.rows] == [4]


def test_another_temperature_is_ignored_and_said_or_refused() -> None:
    with pytest.warns(UserWarning, match=r"temperature=0\.3"):
        assert [sample.reward for sample in played("hot", engine())] == [1.0, 1.0]
    for sample in played("hot", engine(), on_override="error"):
        assert sample.status == "reward_error" and "HTTP Error 400" in sample.error


def test_an_engine_that_breaks_ends_the_run() -> None:
    def says(prompt: str, sample: int) -> str:
        raise RuntimeError("broken")

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="broken"):
        played("twice", engine(says))
    assert time.monotonic() - began < 30


def test_an_agent_that_is_an_object() -> None:
    from agents import said

    bonus = 2.0
    samples = played(lambda base_url, messages: bonus + int(said(base_url, messages)["content"]), engine())
    assert [sample.reward for sample in samples] == [2.0, 3.0]


def test_the_openai_client_alone() -> None:
    (sample,) = played("with_client", engine(lambda prompt, _: "yes!" if "Sure?" in prompt else "no"), samples=1)
    assert sample.reward == 4.0, sample.error
    assert len(sample.rows) == 1 and sample.metrics["agent/usage"] == len(asked(CHAT).ids) + 3


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"agent": f"{FILE}:nobody"}, "has no 'nobody'"),
        ({"agent": f"{FILE}:twice", "kwargs": {"base": 1}}, r"kwargs\.base: .* \(near: base_url\)"),
        ({"agent": f"{FILE}:twice", "timeout_seconds": 0}, "timeout_seconds=0; expected a number above 0"),
        ({"agent": f"{FILE}:twice", "max_calls": "many"}, "max_calls='many'; expected a number above 0"),
        ({"agent": f"{FILE}:twice", "on_override": "warn"}, "expected one of error, ignore"),
        ({"agent": f"{FILE}:twice", "calls": "mistral"}, "expected one of hermes, llama3"),
    ],
)
def test_a_workflow_that_cannot_be(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(AgentError, match=why):
        Agent(**keys)


def test_a_column_that_is_not_there_ends_the_run() -> None:
    with pytest.raises(RolloutError, match="asks for 'answer', which row p does not have"):
        played("awaited", engine(), prompt=asked(CHAT))


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nowhere_to_be_found\ndef agent(base_url): ...\n")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        Agent(f"{tmp_path}/bad.py:agent")
    (tmp_path / "slow.py").write_text(
        "import os, time\nif os.getppid() == PARENT: time.sleep(60)\ndef agent(): ...\n".replace(
            "PARENT", str(os.getpid())
        )
    )
    with pytest.raises(AgentError, match=r"start_seconds=0\.5"):
        Agent(f"{tmp_path}/slow.py:agent", start_seconds=0.5)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(AgentError, match=r"pip install 'partita\[agents\]'"):
        Agent(f"{FILE}:twice")
