"""Programs with tests as APPS and TACO store them: whole programs and functions, tests as JSON text, one row without any."""

import asyncio
import json
import subprocess
import sys
import textwrap
import time

import pytest

from partita.records import Prompt
from partita.tasks.dataset import ColumnsConfig, DataError, DatasetConfig, load_rows
from partita.tasks.reward import FunctionOptions, RewardConfig, RewardRuntime

ROWS = r"""
{"question": "Read n, then n integers on one line. Print their sum.", "input_output": "{\"inputs\": [\"3\\n1 2 3\\n\", \"1\\n-5\\n\"], \"outputs\": [\"6\\n\", \"-5\\n\"]}", "starter_code": "", "difficulty": "introductory"}
{"question": "Write clip_at(xs, top): every element at most top.", "input_output": "{\"fn_name\": \"clip_at\", \"inputs\": [[[5, 9, 2], 4], [[], 1]], \"outputs\": [[[4, 4, 2]], [[]]]}", "starter_code": "def clip_at(xs, top):\n    pass", "difficulty": "introductory"}
{"question": "Draw a cat.", "input_output": "", "starter_code": "", "difficulty": "interview"}
"""  # noqa: E501


@pytest.fixture
def load(tmp_path):
    def load(**keys):
        (tmp_path / "apps.jsonl").write_text(ROWS)
        columns = ColumnsConfig(prompt="question", answer="input_output")
        return load_rows(DatasetConfig(path=str(tmp_path / "apps.jsonl"), columns=columns, **keys), seed=1)

    return load


def scores(row, responses, **kwargs):
    runtime = RewardRuntime(
        RewardConfig(
            functions=["code_tests"], options={"code_tests": FunctionOptions(kwargs={"test_seconds": 1.0, **kwargs})}
        )
    )
    prompt = Prompt("1", (), "", row.row, row.messages, row.answer)

    async def score():
        return await asyncio.gather(*[runtime.score(prompt, response, (), "stop") for response in responses])

    found = asyncio.run(score())
    runtime.close()
    assert [one.status for one in found] == ["ok"] * len(responses)
    return [one.reward for one in found]


def block(code):
    return f"So:\n```python\n{textwrap.dedent(code)}\n```"


def summing(last):
    return block(f"n = int(input())\nxs = list(map(int, input().split()))\n{last}")


PROGRAMS = [
    (summing("print(sum(xs))"), 1, 1),
    (summing("print(sum(xs), end='')"), 1, 1),
    (summing("print(abs(sum(xs)))"), 0, 0.5),
    (summing("print(0)") + summing("print(sum(xs))"), 1, 1),
    (block("while True: pass"), 0, 0),
    (block("import os; os._exit(0)"), 0, 0),
    (summing("print('Sum:', sum(xs))"), 0, 0),
    (block("print(sum("), 0, 0),
    ("n = int(input())\nprint(sum(map(int, input().split())))", 0, 0),
]
FUNCTIONS = [
    (block("def clip_at(xs, top):\n    return [min(x, top) for x in xs]"), 1),
    (block("class Solution:\n    def clip_at(self, xs, top):\n        return [min(x, top) for x in xs]"), 1),
    (block("def clip_at(xs, top):\n    return tuple(min(x, top) for x in xs)"), 1),
    (block("def clip_at(xs, top):\n    return None"), 0),
]


def test_a_row_without_tests_is_an_error_or_dropped_and_counted(load):
    with pytest.raises(DataError, match=r"1 of 3 rows cannot be used.*\n.*'input_output' is empty"):
        load()
    loaded = load(on_bad_row="skip")
    assert len(loaded.rows) == 2 and any("1 of 3 rows left out" in note for note in loaded.notes)


def test_programs_and_functions_are_judged_by_their_tests(load):
    first, second = load(on_bad_row="skip").rows
    responses, whole, share = zip(*PROGRAMS, strict=True)
    assert scores(first, responses) == list(whole)
    assert scores(second, [response for response, _ in FUNCTIONS]) == [reward for _, reward in FUNCTIONS]
    assert json.loads(first.answer)["outputs"] == ["6\n", "-5\n"]
    assert share == tuple(scores(first, responses, fraction=True))


def test_a_hanging_program_does_not_hold_up_the_others(load):
    started = time.monotonic()
    assert scores(load(on_bad_row="skip").rows[0], [PROGRAMS[0][0], block("while True: pass")]) == [1.0, 0.0]
    assert time.monotonic() - started < 8


@pytest.mark.slow
def test_a_sandbox_that_cannot_start_is_no_wrong_answer():
    program = """
    import asyncio, sys
    from partita.records import Prompt
    from partita.tasks.reward import RewardConfig, RewardRuntime
    sys.executable = "/bin/false"
    runtime = RewardRuntime(RewardConfig(functions=["code_tests"]))
    row = {"input_output": '{"inputs": [""], "outputs": ["1"]}'}
    print(asyncio.run(runtime.score(Prompt("1", (), "", row), "```python\\nprint(1)\\n```", (), "stop")))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "reward=None" in ran.stdout and "status='reward_error'" in ran.stdout, ran.stderr
    assert "the process that contains programs ended with 1" in ran.stdout
