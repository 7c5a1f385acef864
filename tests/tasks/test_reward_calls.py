"""Options of single functions: their own limits and arguments, further tries, and calls that are made once."""

import asyncio
import time
from pathlib import Path

import pytest
from scoring import score

from partita.records import Prompt
from partita.run import load_run_config
from partita.tasks import reward_calls
from partita.tasks.reward import FunctionOptions, RewardConfig, RewardRuntime, RewardSetupError, Scored
from partita.tasks.reward_readings import NOT_APPLICABLE
from partita.trainer import QUICKSTART

PROMPT = Prompt("1", (1,), "6*7?", {"level": 3}, (), "42")
CALLS = """
from pathlib import Path

def noted(file):
    with open(file, "a") as out: out.write("x")
    return len(Path(file).read_text())

def flaky(response, file, good=3):
    if noted(file) < good: raise ConnectionError("busy")
    return 1.0

def mute(response, file):
    noted(file)

def dies(response, file):
    import os
    if noted(file) < 2: os._exit(1)
    return 1.0

async def slow(response, file):
    import asyncio
    if noted(file) < 2: await asyncio.sleep(60)
    return 1.0

def length(response, file):
    noted(file)
    return len(response)

def lengths(completions, file):
    noted(file)
    return [len(c) for c in completions]
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scores responses by one function of the file, and says how often it was called."""
    monkeypatch.setattr(reward_calls, "PAUSE", 0.01)
    (tmp_path / "calls.py").write_text(CALLS)
    seen = tmp_path / "seen"

    def scored(
        name: str, responses: list[str], option: FunctionOptions | None = None, **keys
    ) -> tuple[list[Scored], int]:
        option = option or FunctionOptions()
        options = {name: FunctionOptions(**{**vars(option), "kwargs": {"file": str(seen), **option.kwargs}})}
        seen.write_text("")
        found = score([f"{tmp_path}/calls.py:{name}"], PROMPT, responses, options=options, **keys)
        return found, len(seen.read_text())

    return scored


def test_a_call_that_fails_is_made_again_where_that_is_allowed(calls):
    (found,), made = calls("flaky", ["a"])
    assert (found.status, made) == ("reward_error", 1)
    assert found.error.startswith("flaky: ConnectionError: busy\nTraceback")
    (found,), made = calls("flaky", ["a"], retries=2)
    assert (found, made) == (Scored(1.0, {"flaky": 1.0}), 3)
    (found,), made = calls("flaky", ["a"], FunctionOptions(retries=1), retries=5)
    assert (found.status, made) == ("reward_error", 2)
    assert found.error.startswith("flaky: after 2 tries: ConnectionError: busy\n")


@pytest.mark.parametrize("name", ["dies", "slow"])
def test_a_worker_that_ended_and_a_limit_that_passed_are_tried_again(calls, name):
    (found,), made = calls(name, ["a"], FunctionOptions(timeout_seconds=0.3), retries=1)
    assert (found.reward, made) == (1.0, 2)


def test_what_is_no_reward_is_not_asked_for_again(calls):
    (found,), made = calls("mute", ["a"], retries=5)
    assert made == 1
    assert found.error == "mute: returned None (NoneType); expected one finite number"


def test_equal_calls_are_made_once(calls):
    found, made = calls("length", ["a", "bb", "a", "bb", "a"], cache=True)
    assert ([one.reward for one in found], made) == ([1.0, 2.0, 1.0, 2.0, 1.0], 2)
    assert calls("length", ["a", "a"])[1] == 2
    assert calls("length", ["a", "a"], FunctionOptions(cache=False), cache=True)[1] == 2
    assert calls("lengths", ["a", "bb"], FunctionOptions(cache=True))[1] == 1  # one call for the group


def test_a_failure_is_not_remembered(calls, tmp_path):
    functions, seen = [f"{tmp_path}/calls.py:flaky"], tmp_path / "seen"
    seen.write_text("")
    options = {"flaky": FunctionOptions(kwargs={"file": str(seen), "good": 2})}
    runtime = RewardRuntime(RewardConfig(functions=functions, options=options, cache=True))
    found = [asyncio.run(runtime.score(PROMPT, "a", (1,), "stop")).reward for _ in range(3)]
    runtime.close()
    assert (found, len(seen.read_text())) == ([None, 1.0, 1.0], 2)


def test_a_cache_keeps_the_newest_calls_only(calls, monkeypatch):
    monkeypatch.setattr(reward_calls, "REMEMBERED", 2)

    def echo(response):
        return float(response)

    runtime = RewardRuntime(RewardConfig(cache=True), [echo])
    for response in "1234":
        assert asyncio.run(runtime.score(PROMPT, response, (1,), "stop")).reward == float(response)
    assert len(runtime._calls._known) == 2
    runtime.close()


def test_each_function_has_its_own_limit():
    def slow(response):
        time.sleep(0.6)
        return 1.0

    def hang(response):
        while True:
            pass

    started = time.monotonic()
    (found,) = score(
        [slow, hang], PROMPT, ["a"], timeout_seconds=30.0, options={"hang": FunctionOptions(timeout_seconds=0.2)}
    )
    assert time.monotonic() - started < 20.0
    assert found.parts == {"slow": 1.0}
    assert found.error == "hang: no result within 0.2 seconds (reward.timeout_seconds)"


def test_each_function_has_its_own_memory(tmp_path):
    # by name: their worker is no copy of this process, and has nothing that other tests freed
    (tmp_path / "sizes.py").write_text(
        'def big(response):\n    return len(b"a" * (200 * 2**20))\n\n\n'
        'def small(response):\n    return len(b"a" * (200 * 2**20))\n'
    )
    options = {"big": FunctionOptions(memory_gb=0.5)}
    named = [f"{tmp_path}/sizes.py:big", f"{tmp_path}/sizes.py:small"]
    (found,) = score(named, PROMPT, ["a"], memory_gb=0.1, options=options)
    assert found.parts == {"big": 200.0 * 2**20}
    assert found.error.startswith("small: memory beyond reward.memory_gb=0.1\nMemoryError")
    with pytest.raises(
        RewardSetupError, match=r"reward.options.last_number_correct.memory_gb: it runs in the training process"
    ):
        own = {"last_number_correct": FunctionOptions(memory_gb=0.5)}
        RewardRuntime(RewardConfig(functions=["last_number_correct"], options=own))


def test_arguments_of_the_config_win_over_columns_and_defaults():
    def f(response, level, bonus=0.0, **rest):
        return level + bonus + rest["more"]

    options = {"f": FunctionOptions(kwargs={"level": 10, "bonus": 0.5, "more": 100})}
    assert score([f], PROMPT, ["a"], options=options)[0].reward == 110.5
    assert RewardRuntime(RewardConfig(options=options), [f]).check() == ()


def test_arguments_reach_built_in_functions():
    options = {"last_number_correct": FunctionOptions(kwargs={"answer": "7"})}
    assert score(["last_number_correct"], PROMPT, ["7"], options=options)[0].reward == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"g": FunctionOptions()}, r"reward.options.g: no reward function is called so \(near: ff\)|there are: ff"),
        (
            {"ff": FunctionOptions(kwargs={"bonsu": 1})},
            r"reward.options.ff.kwargs.bonsu: .*no such parameter \(near: bonus\)",
        ),
        ({"ff": FunctionOptions(one_by_one=True)}, "reward.options.ff.one_by_one: .*one response at a time already"),
        (
            {"ff": FunctionOptions(style="verl", steps=True)},
            "reward.options.ff.steps: only a function in Partita's own style",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, words):
    def ff(response, bonus=0.0):
        return 1.0

    with pytest.raises(RewardSetupError, match=words):
        RewardRuntime(RewardConfig(options=options), [ff])


def test_an_argument_that_is_given_by_place_already_is_refused():
    def f(prompt, completions, prompt_ids, completion_ids, **data):
        return 1.0

    options = {"f": FunctionOptions(kwargs={"prompt": "x"})}
    with pytest.raises(
        RewardSetupError, match=r"reward.options.f.kwargs.prompt: the function gets this by place, as areal"
    ):
        RewardRuntime(RewardConfig(options=options), [f])


def test_options_are_read_from_the_command_line():
    words = ["reward.functions=[a.py:f]", "+reward.options.f.timeout_seconds=3", "+reward.options.f.kwargs.wrong=-0.5"]
    given = load_run_config([QUICKSTART], [*words, "+reward.options.f.style=trl", "reward.retries=2"]).value.reward
    assert given.options == {"f": FunctionOptions("trl", {"wrong": -0.5}, 3.0)}
    assert (given.retries, given.cache) == (2, False)


def test_step_rewards_are_weighted_and_stand_at_tokens_of_the_response():
    def judged(response):
        return {"score": 1.0, "steps": [[0, 0.5], [3, -1.0]]}

    def other(response):
        return {"score": 0.0, "steps": [[3, 2.0]]}

    (found,) = score([judged, other], PROMPT, ["a"], weights=[1.0, 0.5])
    assert found.step_rewards == [(0, 0.5), (3, -1.0), (3, 1.0)]
    (found,) = score([judged], PROMPT, ["a"], tokens=3)
    assert found.error == "judged: returned a step at token 3 of a response of 3 tokens, counted from 0"


def test_steps_that_were_promised_must_come():
    def judged(response):
        return {"score": 1.0, "steps": [[0, 0.5]]} if response == "a" else 1.0

    options = {"judged": FunctionOptions(steps=True)}
    good, bad = score([judged], PROMPT, ["a", "b"], options=options)
    assert good.step_rewards == [(0, 0.5)]
    assert bad.error.startswith("judged: returned no steps, and reward.options.judged.steps is set")


def test_own_functions_say_that_they_do_not_apply_by_a_name_for_it():
    def only_b(response):
        return 1.0 if response == "b" else NOT_APPLICABLE

    def always(response):
        return 0.5

    found = score([only_b, always], PROMPT, ["a", "b"])
    assert found == [Scored(0.5, {"always": 0.5}), Scored(1.5, {"only_b": 1.0, "always": 0.5})]
    assert score([only_b], PROMPT, ["a"])[0].status == "not_applicable"
