"""A judge against a real server that is slow, busy, broken or gone, as the responses say."""

import asyncio
import json
import time

import pytest
from judge_server import Running, serving

from partita.records import Prompt
from partita.tasks.dataset import TaskRow
from partita.tasks.judges import client
from partita.tasks.judges.settings import BudgetConfig, JudgeConfig
from partita.tasks.reward import RewardConfig, RewardRuntime, RewardSetupError, Scored

PROMPT = Prompt("1", (1,), "<user>6*7?", {"level": 3}, ({"role": "user", "content": "6*7?"},), "42")
ASKED = "Is {response} right for {prompt}? It should be {answer}."


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "PAUSE", 0.01)
    with serving() as running:
        yield running


def judge_of(server: Running, **keys) -> JudgeConfig:
    return JudgeConfig(**{"base_url": server.url, "model": "m", "prompt": ASKED, "retries": 2, **keys})


def score(config: JudgeConfig, responses: list[str], folder=None, functions=(), **keys) -> tuple[list[Scored], dict]:
    """Scores of responses asked at once, and the metrics of it."""
    runtime = RewardRuntime(RewardConfig(judges={"good": config}, **keys), functions)
    runtime.judges.keep(folder)

    async def run() -> list[Scored]:
        return await asyncio.gather(*(runtime.score(PROMPT, text, (1, 2), "stop") for text in responses))

    try:
        found = asyncio.run(run())
        return found, {name: total for name, (total, _) in runtime.judges.take_counts().items()}
    finally:
        runtime.close()


def rewards(found: list[Scored]) -> list[float | None]:
    return [one.reward for one in found]


def test_scores_come_back_in_order_beside_those_of_functions(server):
    def plain(response):
        return 1.0

    found, counts = score(judge_of(server, weight=10.0), ["0.3 0.6", "0.2 0.4", "0.1 0.2"], functions=[plain])
    assert rewards(found) == pytest.approx([4.0, 3.0, 2.0])
    assert server.stats()["most_open"] == 3  # at once, and back in another order
    assert found[0].parts == {"plain": 1.0, "good": 0.3}
    assert (counts["judge/good/requests"], counts["judge/good/tokens_in"]) == (3, 300)
    assert counts["judge/good/seconds"] > 1.1  # of all requests together
    (body, *_) = server.stats()["bodies"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 1024)


def test_never_more_requests_are_open_than_allowed(server):
    found, _ = score(judge_of(server, concurrency=3), [f"0.{i} 0.05" for i in range(1, 10)] + ["500*1 0.5 0.05"] * 3)
    assert rewards(found) == pytest.approx([i / 10 for i in range(1, 10)] + [0.5] * 3)
    assert server.stats()["most_open"] == 3


def test_faults_that_pass_are_tried_again_and_none_becomes_a_number(server):
    passing = ["429/0*2 0.1", "500*1 0.2", "reset*1 0.3", "garbage*1 0.4", "wrong*2 0.5", "mute*1 0.6", "408*1 1"]
    lasting = ["500", "garbage", "wrong", "mute", "reset", "400 0.5"]
    found, counts = score(judge_of(server), passing + lasting)
    assert rewards(found) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0] + [None] * 6
    errors = [one.error for one in found[7:]]
    assert all(one.status == "reward_error" for one in found[7:])
    told = [
        "answered 500: scripted 500",
        "what is not JSON: <html>",
        "not a chat completion",
        "no JSON object with the field 'score', but 'I will not say.'",
        "/chat/completions: ",
        "answered 400: scripted 400",
    ]
    for error, words in zip(errors, told, strict=True):
        assert error.startswith("good: ") and words in error, error
    assert "after 3 tries" in errors[0] and "tries" not in errors[5]
    assert counts["judge/good/retries"] == 2 + 1 + 1 + 1 + 2 + 1 + 1 + 5 * 2
    assert "judge/good/tokens_in" not in counts  # some replies did not say


def test_a_server_that_hangs(server):
    found, _ = score(judge_of(server, timeout_seconds=3, retries=1), ["hang*1 0.7", "hang 0.5"])
    assert found[0].reward == 0.7
    assert "after 2 tries: no reply within 3 seconds (reward.judges.good.timeout_seconds)" in found[1].error


def test_a_busy_server_is_left_alone_as_long_as_it_asks_for(server):
    found, _ = score(judge_of(server, concurrency=1), ["429/0.6*1 0.1", "0.2"])
    assert rewards(found) == [0.1, 0.2]
    times = server.stats()["times"]
    assert times[1] - times[0] > 0.55


def test_requests_per_minute(server):
    score(judge_of(server, requests_per_minute=240), ["0.1", "0.2", "0.3", "0.4"])
    times = sorted(server.stats()["times"])
    assert times[3] - times[0] > 0.5  # a quarter of a second each


@pytest.mark.parametrize("fault", ["401", "403", "404"])
def test_what_can_never_work_ends_the_run_with_the_server_s_words(server, fault):
    with pytest.raises(RewardSetupError, match=f"reward.judges.good: .*answered {fault}: scripted {fault}"):
        score(judge_of(server), [fault, f"{fault} 0.5"])


def test_the_key_goes_to_the_server_and_nowhere_else(server, monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-123")
    config = judge_of(server, api_key_env="JUDGE_KEY")
    found, _ = score(config, ["0.5", "mute"], folder=tmp_path)
    with pytest.raises(RewardSetupError) as told:
        score(config, ["leak"], folder=tmp_path)
    assert set(server.stats()["keys"]) == {"Bearer sk-secret-123"}
    assert "bad key Bearer [key]" in str(told.value)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert written and b"secret" not in written
    assert "secret" not in repr(config) + found[1].error
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(RewardSetupError, match="api_key_env=JUDGE_KEY: no such environment variable"):
        score(config, [])


def test_a_second_run_asks_nothing(server, tmp_path):
    config = judge_of(server, cache_dir=str(tmp_path / "shared"))
    responses = ["0.1", "0.2", "0.1", "500*1 0.4"]
    first, counts = score(config, responses, folder=tmp_path / "a")
    assert (counts["judge/good/requests"], counts["judge/good/cache_hits"]) == (4, 1)
    second, counts = score(config, responses, folder=tmp_path / "b")
    assert first == second
    assert (counts["judge/good/requests"], counts["judge/good/cache_hits"]) == (0, 4)
    assert server.stats()["requests"] == 4
    score(judge_of(server, cache_dir=str(tmp_path / "shared"), temperature=0.5), responses)
    assert server.stats()["requests"] == 7  # another request


def test_without_a_cache_everything_is_asked(server, tmp_path):
    score(judge_of(server, cache=False), ["0.1", "0.1"], folder=tmp_path)
    score(judge_of(server, cache=False), ["0.1"], folder=tmp_path)
    assert server.stats()["requests"] == 3


def test_a_line_that_a_kill_cut_short_is_asked_again(server, tmp_path):
    score(judge_of(server), ["0.1", "0.2"], folder=tmp_path)
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-20])
    for _ in range(2):
        assert rewards(score(judge_of(server), ["0.1", "0.2"], folder=tmp_path)[0]) == [0.1, 0.2]
    assert server.stats()["requests"] == 3
    assert json.loads((tmp_path / "judges" / "good.json").read_text())["requests"] == 3


def test_the_budget_holds_over_a_resume(server, tmp_path):
    config = judge_of(server, concurrency=1, budget=BudgetConfig(max_requests=3, on_reached="reward_error"))
    found, _ = score(config, ["0.1", "0.2"], folder=tmp_path)
    assert rewards(found) == [0.1, 0.2]
    found, _ = score(config, ["0.1", "0.2", "0.3", "0.4", "0.5"], folder=tmp_path)
    assert rewards(found) == [0.1, 0.2, 0.3, None, None]
    assert found[4].error == "good: reward.judges.good.budget.max_requests=3 is reached (3 used)"
    assert server.stats()["requests"] == 3


def test_tokens_and_cost_are_limits_too(server):
    prices = {"price_in": 1000.0, "price_out": 10000.0}  # of a million: 0.2 for each request
    for budget in (BudgetConfig(max_tokens=220), BudgetConfig(max_cost=0.4, **prices)):
        runtime = RewardRuntime(RewardConfig(judges={"good": judge_of(server, concurrency=1, budget=budget)}))
        found = [asyncio.run(runtime.score(PROMPT, f"0.{i}", (1,), "stop")) for i in range(1, 4)]
        assert rewards(found[:2]) == [0.1, 0.2] and "is reached" in found[2].error
        assert runtime.judges.ended == found[2].error.removeprefix("good: ")
        counts = runtime.judges.take_counts()
        assert ("judge/good/cost" in counts) == (budget.max_cost is not None)
        if budget.max_cost is not None:
            assert counts["judge/good/cost"][0] == pytest.approx(0.4)
        runtime.close()


def test_a_budget_of_tokens_needs_a_server_that_counts_them(server):
    with pytest.raises(RewardSetupError, match="does not say how many tokens it used"):
        score(judge_of(server, budget=BudgetConfig(max_tokens=1000)), ["mute"])


def test_nobody_there(server):
    found, _ = score(judge_of(server, base_url="http://127.0.0.1:1/v1"), ["0.1"])
    assert "after 3 tries: http://127.0.0.1:1/v1/chat/completions: ConnectError" in found[0].error


def test_close_ends_what_runs(server):
    runtime = RewardRuntime(RewardConfig(judges={"good": judge_of(server, timeout_seconds=30)}))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.score(PROMPT, "hang", (1,), "stop"), 0.3)

    asyncio.run(give_up())
    started = time.monotonic()
    runtime.close()
    assert time.monotonic() - started < 15  # the server goes on for 20


def test_steps_are_scored_at_the_tokens_where_they_end(server):
    config = judge_of(server, steps="lines", prompt="Judge {steps} of {prompt}", weight=2.0)
    runtime = RewardRuntime(RewardConfig(judges={"good": config}))
    text = "0.25 ab\n\n1.0 c\n0.5 d"
    runtime.judges.decode = lambda ids: "".join(map(chr, ids))
    found = asyncio.run(runtime.score(PROMPT, text, tuple(map(ord, text)), "stop"))
    empty = asyncio.run(runtime.score(PROMPT, " \n", (32, 10), "stop"))
    runtime.close()
    assert found.step_rewards == [(8, 0.5), (14, 2.0), (len(text) - 1, 1.0)]
    assert found.reward == pytest.approx(2.0 * 1.75 / 3)
    assert empty.error == "good: the response has no step"
    assert RewardConfig(judges={"good": config}).gives_steps


def test_a_row_without_what_the_prompt_asks_for_is_found_before_the_run(server):
    row = TaskRow("r7", PROMPT.messages, "42", {"level": 3})
    for prompt, words in (
        ("{response} {levl}", r"reward.judges.good.prompt: row r7: no 'levl' \(near: level\); there are level, "),
        ("{prompt}", r"reward.judges.good.prompt has no \{response\}"),
        ("{response} {steps}", "no 'steps'"),
    ):
        runtime = RewardRuntime(RewardConfig(judges={"good": judge_of(server, prompt=prompt)}))
        with pytest.raises(RewardSetupError, match=words):
            runtime.check(row)
        runtime.close()
    runtime = RewardRuntime(RewardConfig(judges={"good": judge_of(server, prompt="{response} {{levl}} {level}")}))
    runtime.check(row)
    runtime.close()


def test_names_are_one_s_own():
    def good(response):
        return 1.0

    config = JudgeConfig(base_url="http://x/v1", model="m", prompt="{response}")
    with pytest.raises(RewardSetupError, match=r"reward.judges.good: a reward function is called so too"):
        RewardRuntime(RewardConfig(judges={"good": config}), [good])
    with pytest.raises(RewardSetupError, match="a judge cannot be called 'mean'"):
        RewardRuntime(RewardConfig(judges={"mean": config}))
    with pytest.raises(ValueError, match="letters, digits and _ only"):
        RewardConfig(judges={"../x": config})
