"""The workflow that a config names, made with its arguments, and what is said of a name or an argument that does not work."""

import pytest

from partita.config import ConfigError
from partita.rollout.multi_turn import MultiTurn
from partita.rollout.named import workflow_of
from partita.rollout.workflow import SingleTurn

OWN = """
from partita.rollout.workflow import SingleTurn

class Own:
    def __init__(self, times: int = 1):
        if times < 1:
            raise ValueError("times must be 1 or more")
        self.times = times

    async def run(self, episode):
        return None

class World:
    def reset(self, row, seed): ...
    def step(self, action): ...

def make(times):
    return Own(times)

ready = Own(3)
number = 5

class Other:
    async def arun_episode(self, engine, data): ...
"""


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return str(file)


def test_built_in_names_classes_factories_and_objects_make_workflows(own) -> None:
    assert isinstance(workflow_of("single_turn", {}), SingleTurn)
    made = workflow_of("multi_turn", {"environment": f"{own}:World", "max_turns": 3})
    assert isinstance(made, MultiTurn) and made.max_turns == 3
    made.close()
    assert workflow_of(f"{own}:Own", {"times": 2}).times == 2
    assert workflow_of(f"{own}:make", {"times": 2}).times == 2
    assert workflow_of(f"{own}:ready", {}).times == 3
    assert isinstance(workflow_of("partita.rollout.workflow:SingleTurn", {}), SingleTurn)
    assert isinstance(workflow_of("partita.rollout.workflow.SingleTurn", {}), SingleTurn)
    assert isinstance(workflow_of(SingleTurn, {}), SingleTurn)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("multi_turns", {}, r"rollout.workflow: .*near: multi_turn.*single_turn, multi_turn, retry, tools, agent"),
        ("OWN:Nothing", {}, r"rollout.workflow: .* has no 'Nothing'; it has: Other, Own, "),
        ("OWN:number", {}, r"rollout.workflow: .*number is a int; expected a class with run"),
        (
            "OWN:Other",
            {},
            r"rollout.workflow: .*Other makes a Other, which has no method `async def run\(self, episode\)`",
        ),
        (
            "OWN:Own",
            {"time": 2},
            r"rollout.workflow_kwargs.time: .* takes no such argument. Near: times. It takes: times",
        ),
        ("OWN:make", {}, r"rollout.workflow_kwargs.times: .*make needs it"),
        ("OWN:Own", {"times": 0}, r"rollout.workflow_kwargs: .*times must be 1 or more"),
        ("OWN:ready", {"times": 1}, r"is a workflow already and takes no arguments: times"),
        ("multi_turn", {}, r"rollout.workflow_kwargs.environment: multi_turn needs it"),
        ("multi_turn", {"environment": "OWN:Worlds"}, r"rollout.workflow_kwargs: multi_turn: .* has no 'Worlds'"),
    ],
)
def test_what_does_not_work_is_named(own, name, kwargs, message) -> None:
    placed = {key: value.replace("OWN", own) if isinstance(value, str) else value for key, value in kwargs.items()}
    with pytest.raises(ConfigError, match=message):
        workflow_of(name.replace("OWN", own), placed)
