import asyncio
import json
import time

import pytest

from partita.records import Prompt
from partita.tasks.graders.builtin import BUILTINS
from partita.tasks.graders.code import UnfinishedError, code_tests, find_program
from partita.tasks.graders.code_rows import BadTestsError
from partita.tasks.reward import RewardConfig, RewardRuntime

SUM = {
    "question": "Read n, then n integers on one line. Print their sum.",
    "input_output": '{"inputs": ["3\\n1 2 3\\n", "1\\n-5\\n"], "outputs": ["6\\n", "-5\\n"]}',
    "starter_code": "",
}
CLIP = {
    "question": "Write clip_at(xs, top): every element at most top.",
    "input_output": '{"fn_name": "clip_at", "inputs": [[[5, 9, 2], 4], [[], 1]], "outputs": [[[4, 4, 2]], [[]]]}',
    "starter_code": "def clip_at(xs, top):\n    pass",
}


def block(code, mark="python"):
    return f"Here it is:\n\n```{mark}\n{code}\n```\n"


RIGHT = "n = int(input())\nprint(sum(map(int, input().split())))"


@pytest.mark.parametrize(
    ("response", "reward", "share"),
    [
        (block(RIGHT), 1, 1.0),
        (block("n = int(input())\nprint(sum(map(int, input().split())), end='')"), 1, 1.0),
        (block("n = int(input())\nprint(abs(sum(map(int, input().split()))))"), 0, 0.5),
        (block("print(0)") + block(RIGHT), 1, 1.0),
        (block(RIGHT) + block("print(0)"), 0, 0.0),
        (block("import os; os._exit(0)"), 0, 0.0),
        (block("n = int(input())\nprint('Sum:', sum(map(int, input().split())))"), 0, 0.0),
        (block("print(sum("), 0, 0.0),
        (RIGHT, 0, 0.0),
        ("", 0, 0.0),
        (block("from __future__ import annotations\n" + RIGHT), 1, 1.0),
        (block(RIGHT + "\nexit()"), 1, 1.0),
        (block(RIGHT + "\nexit(1)"), 0, 0.0),
    ],
)
def test_whole_programs(response, reward, share):
    assert code_tests(response, SUM)["score"] == reward
    assert code_tests(response, SUM, fraction=True)["score"] == share
    assert code_tests(response, SUM)["passed"] == share


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def clip_at(xs, top):\n    return [min(x, top) for x in xs]", 1),
        ("class Solution:\n    def clip_at(self, xs: List[int], top: int):\n        return [min(x, top) for x in xs]", 1),
        ("def clip_at(xs, top):\n    return tuple(min(x, top) for x in xs)", 1),
        ("def clip_at(xs, top):\n    print('a note')\n    return [min(x, top) for x in xs]", 1),
        ("def clip_at(xs, top):\n    return None", 0),
        ("def clip(xs, top):\n    return [min(x, top) for x in xs]", 0),
        ("def clip_at(xs, top):\n    return (min(x, top) for x in xs)", 0),
        ("def clip_at(xs, top):\n    import os; os._exit(0)", 0),
        ("def clip_at(xs, top):\n    return print", 0),
    ],
)  # fmt: skip
def test_functions(code, reward):
    assert code_tests(block(code), CLIP)["score"] == reward


@pytest.mark.parametrize(
    ("response", "row", "failure"),
    [
        (block("print(0)"), SUM, "test 1 of 2: printed '0\\n', expected '6\\n'"),
        (block(RIGHT.replace("sum(", "abs(sum(") + ")"), SUM, "test 2 of 2: printed '5\\n', expected '-5\\n'"),
        (block("1 / 0"), SUM, "test 1 of 2: ended with exit code 1"),
        (block("import ctypes; ctypes.string_at(0)"), SUM, "test 1 of 2: ended with signal 11 (SIGSEGV)"),
        (block("print('x' * 10_000)"), SUM, "test 1 of 2: printed '" + "x" * 99 + "..., expected '6\\n'"),
        (block("def clip_at(xs, top): return xs"), CLIP, "test 1 of 2: clip_at returned [5, 9, 2], expected [[4, 4, 2]]"),
        (block("def clip_at(xs, top): return print"), CLIP, "test 1 of 2: ended with exit code 1"),
        (block("def f(x): return 1"), {"test_list": ["assert f(1) == 2, 'no'"]}, "test 1 of 1: 'AssertionError: no'"),
        ("print(0)", SUM, "no closed block marked as python, and none without a mark"),
    ],
)  # fmt: skip
def test_a_note_says_which_test_was_not_passed_and_why(response, row, failure):
    assert code_tests(response, row)["failure"] == failure


def test_a_right_program_has_no_such_note():
    assert code_tests(block(RIGHT), SUM) == {"score": 1.0, "passed": 1.0, "tests": 2, "late": 0, "program": 1.0}


def test_a_hanging_program_is_wrong_within_its_limit():
    started = time.monotonic()
    found = code_tests(block("while True: pass"), SUM, test_seconds=1.0)
    assert found == {
        "score": 0.0, "passed": 0.0, "tests": 2, "late": 1.0, "program": 1.0, "failure": "test 1 of 2: ran out of time",
    }  # fmt: skip
    assert time.monotonic() - started < 6


def test_with_a_fraction_a_late_test_does_not_end_the_others():
    code = "n = int(input())\nwhile n == 3: pass\nprint(sum(map(int, input().split())))"
    found = code_tests(block(code), SUM, fraction=True, test_seconds=1.0)
    assert (found["score"], found["late"]) == (0.5, 1)


def test_asserts_and_check_functions():
    row = {"test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 5"]}
    assert code_tests(block("def add(a, b): return a + b"), row) == {
        "score": 0.0, "passed": pytest.approx(2 / 3), "tests": 3, "late": 0.0, "program": 1.0,
        "failure": "test 3 of 3: 'AssertionError: '",
    }  # fmt: skip
    row = {
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]",
        "entry_point": "double",
    }
    assert code_tests(block("def double(x): return x * 2"), row)["score"] == 1.0
    assert code_tests(block("def double(x): return x + 2"), row)["score"] == 0.0


def test_options_change_what_is_run():
    tests = json.dumps({"inputs": ["1", "2", "3"], "outputs": ["1.0", "2.0", "x"]})
    assert code_tests(block("print(float(input()) + 0.01)"), {}, tests, max_tests=2)["score"] == 0.0
    assert code_tests(block("print(float(input()) + 0.01)"), {}, tests, max_tests=2, tolerance=0.1)["score"] == 1.0
    assert code_tests(block("print(half(2 * int(input())))"), {}, tests, max_tests=2)["score"] == 0.0
    assert (
        code_tests(block("print(half(2 * int(input())))"), {}, tests, max_tests=2, prelude="def half(x): return x / 2")[
            "score"
        ]
        == 1.0
    )
    hungry = block("x = bytearray(300 << 20)\nprint(float(input()))")
    assert code_tests(hungry, {}, tests, max_tests=2)["score"] == 1.0
    assert code_tests(hungry, {}, tests, max_tests=2, memory_mb=200)["score"] == 0.0


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (block("a"), "a\n"),
        (block("a", "py") + block("b", "Python"), "b\n"),
        (block("a") + "It prints\n```\n6\n```", "a\n"),
        (block("a") + block("b", "cpp"), "a\n"),
        (block("b", "cpp"), None),
        (block("a", "") + block("b", ""), "b\n"),
        ("1. So:\n\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
        ("```python\nnever closed", None),
        ("```python\nnever closed\n```python\na\n```", "a\n"),
        ("```" + "\n```x" * 30_000, None),
        ("```python\n\n```", None),
        ("```python3 title=\"x\"\na\n```", "a\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("<think>" + block("a") + "</think>" + block("b"), "b\n"),
        ("<think>" + block("a") + "</think> I give up", None),
        ("<think>" + block("a"), None),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
    ],
)  # fmt: skip
def test_the_last_python_block_is_the_program(response, program):
    assert find_program(response) == program


def test_a_row_without_tests_is_an_error_and_no_wrong_answer():
    with pytest.raises(BadTestsError, match="input_output is empty"):
        code_tests(block(RIGHT), {"question": "Draw a cat.", "input_output": ""})
    with pytest.raises(BadTestsError, match=r"test_list\[0\] cannot be run: SyntaxError"):
        code_tests(block("def add(a, b): return a + b"), {"test_list": ["assert add(1, 2) =="]})


def test_a_lack_of_time_is_no_wrong_answer():
    with pytest.raises(
        UnfinishedError, match=r"only 1 of 2 tests were run within 0 seconds \(reward.timeout_seconds\)"
    ):
        code_tests(block(RIGHT), SUM, limit_seconds=0.0)
    assert code_tests(block("print(0)"), SUM, limit_seconds=0.0)["score"] == 0.0


def test_many_at_a_time_on_an_event_loop():
    async def score():
        right = [BUILTINS["code_tests"].on_loop(response=block(RIGHT), row=SUM, seconds=60.0) for _ in range(6)]
        wrong = [BUILTINS["code_tests"].on_loop(response=block("print(0)"), row=SUM, seconds=60.0) for _ in range(6)]
        return await asyncio.gather(*right, *wrong)

    assert [found["score"] for found in asyncio.run(score())] == [1.0] * 6 + [0.0] * 6


def test_as_a_reward_it_has_parts_options_and_errors():
    config = RewardConfig(functions=["code_tests"], options={})

    def scored(response, row):
        runtime = RewardRuntime(config)
        found = asyncio.run(runtime.score(Prompt("1", (), "", row), response, (), "stop"))
        runtime.close()
        return found

    half = scored(block("n = int(input())\nprint(abs(sum(map(int, input().split()))))"), SUM)
    assert (half.status, half.reward, half.parts["code_tests/passed"]) == ("ok", 0.0, 0.5)
    assert half.notes == {"code_tests/failure": "test 2 of 2: printed '5\\n', expected '-5\\n'"}
    assert scored(block("import os; os.kill(os.getppid(), 9)"), SUM).status == "ok"
    failed = scored(block(RIGHT), {"input_output": ""})
    assert (failed.status, failed.reward) == ("reward_error", None) and "the row has no tests" in failed.error
