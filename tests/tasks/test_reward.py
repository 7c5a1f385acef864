import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from partita.records import Prompt, Sample
from partita.tasks.binding import RewardSetupError
from partita.tasks.dataset import TaskRow
from partita.tasks.graders.math import math_correct
from partita.tasks.pool import PoolError
from partita.tasks.reward import FunctionOptions, RewardConfig, RewardErrors, RewardRuntime, Scored, guard_errors
from partita.tasks.worker import children

ROW = {"question": "6*7?", "answer": "6*7=42\n#### 42", "level": 3}
MESSAGES = ({"role": "user", "content": "Put the answer in \\boxed{}. 6*7?"},)
PROMPT = Prompt("1", (5, 6), "<|user|>Put the answer in \\boxed{}. 6*7?", ROW, MESSAGES, "42")
TASK_ROW = TaskRow("1", MESSAGES, "42", ROW)


def score(*functions, responses=("42",), prompt=PROMPT, **keys):
    """Scores of all responses, asked for at the same time."""
    runtime = RewardRuntime(RewardConfig(**{"processes": 2, "timeout_seconds": 5.0, **keys}), functions)

    async def run():
        return await asyncio.gather(*(runtime.score(prompt, text, (8, 9), "stop") for text in responses))

    try:
        return asyncio.run(run())
    finally:
        runtime.close()


def test_a_function_gets_what_it_asks_for_by_name():
    def everything(response, completion, answer, prompt, messages, row, tokens, stop_reason, level, extra=5):
        assert response == completion == "42" and answer == "42" and level == 3 and extra == 5
        assert prompt == PROMPT.text and messages == list(MESSAGES) and row == ROW
        assert tokens == [8, 9] and stop_reason == "stop"
        return True

    assert score(everything) == [Scored(1.0, {"everything": 1.0})]


def test_the_rest_of_the_columns_goes_to_keywords():
    def rest(response, **columns):
        assert columns == {"question": "6*7?", "level": 3}
        return 1.0

    assert score(rest)[0].reward == 1.0


def test_only_the_response_is_scored():
    def boxed(response):
        return 0.1 * ("\\boxed" in response)

    assert score(boxed)[0].reward == 0.0  # the prompt has a box, the response has none


def test_built_in_graders_know_a_thought_that_the_prompt_opened():
    opened = Prompt("1", (5,), "<user>6*7?<assistant><think>\n", ROW, MESSAGES, "42")
    responses = ("maybe \\boxed{42}", "maybe \\boxed{41}</think> \\boxed{42}")
    assert [one.reward for one in score(math_correct, responses=responses, prompt=opened)] == [0.0, 1.0]
    assert [one.reward for one in score(math_correct, responses=responses)] == [1.0, 1.0]
    options = {"regex_format": FunctionOptions(kwargs={"pattern": "[^<]*</think>.*"})}
    found = score(functions=["regex_format", "think_answer_format"], responses=("a</think><answer>1</answer>",),
                  prompt=opened, options=options)  # fmt: skip
    assert found[0].parts == {"regex_format": 1.0, "think_answer_format": 1.0}  # the pattern reads what was written


def test_the_weighted_sum_and_its_parts():
    def right(response, answer):
        return response == answer

    def style(response):
        return {"score": 0.5, "length": len(response), "pred": "forty-two"}

    parts = {"right": 1.0, "style": 0.5, "style/length": 2.0}
    assert score(right, style, weights=[2.0, 0.5]) == [Scored(2.25, parts, notes={"style/pred": "forty-two"})]
    same = score(right, right)[0]
    assert same.parts == {"right": 1.0, "right#2": 1.0} and same.reward == 2.0


def test_names_of_all_kinds_work_together(tmp_path):
    (tmp_path / "mine.py").write_text("def short(response):\n    return 1.0 if len(response) < 5 else 0.0\n")
    found = score(functions=["math_correct", "last_number_correct", f"{tmp_path}/mine.py:short"])
    assert found == [Scored(3.0, {"math_correct": 1.0, "last_number_correct": 1.0, "short": 1.0})]


def test_awaited_rewards_come_back_in_order_and_overlap():
    awake = asyncio.Event()
    waiting = list[str]()

    async def sleepy(response):
        waiting.append(response)
        if len(waiting) == 3:  # one after the other, nobody would ever wake the first
            awake.set()
        await awake.wait()
        await asyncio.sleep(float(response))
        return float(response)

    def plain(response):
        return 1.0

    found = score(sleepy, plain, responses=("0.3", "0.2", "0.1"))
    assert [scored.reward for scored in found] == pytest.approx([1.3, 1.2, 1.1])


def test_one_bad_sample_is_an_error_and_the_others_keep_their_scores():
    def picky(response):
        if response == "bad":
            raise ValueError("no reading of bad")
        return 1.0

    found = score(picky, responses=("a", "bad", "b"))
    assert [scored.reward for scored in found] == [1.0, None, 1.0]
    assert found[1].status == "reward_error"
    assert found[1].error.startswith("picky: ValueError: no reading of bad\nTraceback")


def test_a_hanging_or_dying_reward_is_an_error_within_its_limit():
    def wild(response):
        if response == "hang":
            while True:
                pass
        if response == "die":
            os._exit(1)
        return 1.0

    async def late(response):
        await asyncio.sleep(60 if response == "late" else 0)
        return 1.0

    started = time.monotonic()
    found = score(wild, late, responses=("hang", "die", "late", "ok"), timeout_seconds=0.4)
    assert time.monotonic() - started < 3.0
    assert [scored.reward for scored in found] == [None, None, None, 2.0]
    assert found[0].error == "wild: no result within 0.4 seconds (reward.timeout_seconds)"
    assert "exit code 1" in found[1].error and found[1].parts == {"late": 1.0}
    assert found[2].error.startswith("late: no result within 0.4 seconds")


def test_a_timeout_that_the_reward_raises_itself_is_told_as_such():
    async def judge(response):
        raise TimeoutError("the judge's server")

    assert score(judge)[0].error.startswith("judge: TimeoutError: the judge's server")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1.0", [1.0], {"acc": 1.0}])
def test_what_is_no_number_is_an_error_wherever_the_function_runs(value):
    def worker(response):
        return value

    async def loop(response):
        return value

    for function in (worker, loop):
        (found,) = score(function)
        assert found.reward is None and found.status == "reward_error" and "returned" in found.error


def test_a_missing_column_is_found_before_anything_is_sampled():
    def typo(response, answr):
        return 1.0

    runtime = RewardRuntime(RewardConfig(), [typo])
    with pytest.raises(
        RewardSetupError, match=r"row 1: .*'typo' asks for 'answr'.*\(near: answer\); available: .*level"
    ):
        runtime.check(TASK_ROW)
    runtime.close()
    assert score(typo)[0].status == "reward_error"
    needs_gold = score(math_correct, prompt=Prompt("1", (5,), "x", {"answer": "raw"}, MESSAGES, None))
    assert "asks for 'answer'" in needs_gold[0].error


def test_a_default_that_is_used_is_said_once():
    def lenient(response, tolerance=0.1):
        return 1.0

    runtime = RewardRuntime(RewardConfig(), [lenient])
    assert runtime.check(TASK_ROW, TASK_ROW) == (
        "reward function 'lenient': no column 'tolerance', its default is used",
    )
    runtime.close()


def test_an_import_that_only_fails_in_a_worker_is_found_at_the_start(tmp_path):
    here = os.getpid()
    (tmp_path / "twice.py").write_text(
        f"import os\n\nif os.getpid() != {here}:\n    raise OSError('not here')\n\n"
        "def right(response):\n    return 1.0\n"
    )
    runtime = RewardRuntime(RewardConfig(functions=[f"{tmp_path}/twice.py:right"]))
    with pytest.raises(PoolError, match="OSError: not here"):
        runtime.check(TASK_ROW)
    runtime.close()


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ([], "reward.functions is empty"),
        (["math_corect"], r"'math_corect' is not a built-in reward \(near: math_correct\)"),
        (["os.path:no_such"], "has no 'no_such'"),
        (["os:sep"], "'sep' is a str, not a function"),
    ],
)
def test_functions_that_do_not_exist_are_refused(functions, words):
    with pytest.raises(RewardSetupError, match=words):
        RewardRuntime(RewardConfig(functions=functions))


def test_a_reward_is_called_by_name_only():
    def positional(response, /):
        return 1.0

    with pytest.raises(RewardSetupError, match="'response' is positional-only"):
        RewardRuntime(RewardConfig(), [positional])


def test_weights_must_match_the_functions():
    with pytest.raises(ValueError, match="weights has 2 values for 1 functions"):
        RewardConfig(functions=["math_correct"], weights=[1.0, 2.0])
    with pytest.raises(RewardSetupError, match="weights has 2 values for 1 functions"):
        RewardRuntime(RewardConfig(weights=[1.0, 2.0]), ["math_correct"])


def test_our_own_graders_start_no_worker():
    runtime = RewardRuntime(RewardConfig(), [math_correct, "last_number_correct", "think_answer_format"])
    assert runtime.names == ["math_correct", "last_number_correct", "think_answer_format"]
    assert runtime.check(TASK_ROW) == ()
    assert asyncio.run(runtime.score(PROMPT, "\\boxed{42}", (), "stop")).reward == 2.0
    runtime.close()


def sample(error=""):
    status = "reward_error" if error else "ok"
    return Sample([], "stop", "", None if error else 1.0, status=status, error=error)


def test_too_many_errors_end_the_run_with_the_first_one():
    assert guard_errors([sample()] * 63 + [sample("f: ValueError: x")], 0.5) == 1 / 64
    assert guard_errors([], 0.5) == 0.0
    assert guard_errors([sample("f: a"), sample()], 0.5) == 0.5
    with pytest.raises(RewardErrors, match=r"2 of 3 samples .*max_error_share=0.5.*\nf: first\nTraceback"):
        guard_errors([sample("f: first\nTraceback"), sample(), sample("f: second")], 0.5)


WILD = """
import os, re, subprocess, time

def wild(response):
    if response == "python":
        while True: pass
    if response == "c": re.match("(a+)+$", "a" * 60 + "b")
    if response == "memory": b"a" * (4 * 2 ** 30)
    if response == "forks":
        os.fork()
        while True: pass
    if response == "starts": subprocess.Popen(["sleep", "61.625"], start_new_session=True)
    return 1.0
"""


def running(words: str) -> bool:
    """Whether a process of this command line is there."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if words.encode() in file.read_bytes():
                return True
    return False


def test_whatever_a_reward_does_the_others_are_scored_and_no_process_is_left(tmp_path):
    (tmp_path / "wild.py").write_text(WILD)
    before = children()
    responses = ("python", "good", "c", "good", "memory", "forks", "good", "starts", "good")
    found = score(functions=[f"{tmp_path}/wild.py:wild"], responses=responses, timeout_seconds=0.5)
    assert children() == before
    assert not running("sleep\0" + "61.625")
    bad = ("python", "c", "memory", "forks")
    assert [one.status == "reward_error" for one in found] == [response in bad for response in responses]
    samples = [Sample([], "stop", "", one.reward, status=one.status, error=one.error) for one in found]
    assert guard_errors(samples, 0.5) == 4 / 9


class Loud(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "raised", [SystemExit(0), Loud(), asyncio.CancelledError(), GeneratorExit()], ids=lambda e: type(e).__name__
)
def test_whatever_an_awaited_reward_raises_is_its_samples_error_and_ends_nothing(raised):
    async def judge(response):
        if response == "bad":
            raise raised
        return 1.0

    good, bad = score(judge, responses=("good", "bad"))
    assert good.reward == 1.0
    assert bad.status == "reward_error" and bad.error.startswith(f"judge: {type(raised).__name__}: ")


def test_a_run_that_is_cancelled_still_cancels_its_awaited_rewards():
    async def slow(response):
        await asyncio.sleep(60)

    runtime = RewardRuntime(RewardConfig(), [slow])

    async def run():
        scoring = asyncio.ensure_future(runtime.score(PROMPT, "42", (), "stop"))
        await asyncio.sleep(0.01)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    asyncio.run(asyncio.wait_for(run(), 5))
    runtime.close()


def test_a_sum_that_is_no_finite_number_is_no_reward():
    async def huge(response):
        return 1e308

    (found,) = score(huge, weights=[10.0])
    assert (found.reward, found.status) == (None, "reward_error")
    assert found.error == "huge: times the weights 10.0 it is no finite number"


def test_a_row_that_cannot_be_copied_is_an_error_of_its_samples():
    async def told(completions, kept):
        return [1.0 for _ in completions]

    (found,) = score(told, prompt=Prompt("1", (5,), "x", {"kept": (i for i in range(3))}, MESSAGES, None))
    assert found.error.startswith("told: cannot be given this row: TypeError: cannot pickle 'generator' object")
