"""The calculator example: what it computes and refuses, its questions, its reward, and the conversations that show it."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from tiny_model import byte_tokenizer

from partita.run import load_run_config
from partita.tasks.chat import chat_of
from partita.tasks.conversations import RowReader
from partita.tasks.settings import DatasetConfig
from partita.tasks.tools.calls import FORMATS, ToolCall
from partita.tasks.tools.schema import tools_of
from partita.tasks.tools.showing import showing_of
from partita.tasks.turns import turns_of

sys.path.append(str(Path(__file__).parent.parent / "examples" / "workflows"))  # scripts that are run, not a package
import calculator
import calculator_run

FOLDER = Path(calculator.__file__).parent


@pytest.mark.parametrize(
    "expression, result",
    [
        ("347 * 58 + 12", "20138"), ("(101 + 999) * 99", "108900"), ("-3 - -4", "1"), ("7 / 2", "3.5"), ("1 / 3", "0.3333333333"),
        ("0.1 + 0.2", "0.3"), ("2 ** 10", "1024"), ("2 ** -1", "0.5"), ("17 // 5", "3"), ("17 % 5", "2"), (" 4 ", "4"),
        ("1_000 * 2", "2000"), ("10 ** 30", "1" + "0" * 30),
    ],
)  # fmt: skip
def test_it_computes(expression: str, result: str) -> None:
    assert calculator.calculator(expression) == result


@pytest.mark.parametrize(
    "expression, why",
    [
        ("__import__('os')", "no arithmetic"), ("abs(3)", "no arithmetic"), ("x", "no arithmetic"), ("'a' * 3", "no arithmetic"),
        ("True + 1", "no arithmetic"), ("1j", "no arithmetic"), ("1 if 2 else 3", "no arithmetic"),
        ("(lambda: 1)()", "no arithmetic"),
        ("3 +", "no arithmetic"), ("", "no arithmetic"), ("347 x 58", "no arithmetic"), ("1 < 2", "no arithmetic"),
        ("9 ** 9 ** 9", "exponent"), ("2 ** 0.5", "exponent"), ("2 ** 5000", "exponent"), ("1" * 201, "201 characters"),
        ("(2 ** 3000) * (2 ** 3000)", "too large"), ("1e999", "too large"), ("1\0", "no arithmetic"),
    ],
)  # fmt: skip
def test_it_refuses(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        calculator.calculator(expression)
    with pytest.raises(ZeroDivisionError):
        calculator.calculator("1 / (2 - 2)")


def test_questions_are_different_right_and_apart_from_the_held_out_ones() -> None:
    train, test = calculator.rows("train", 2000, 1), calculator.rows("test", 500, 1)
    assert len({row["question"] for row in train}) == 2000
    numbers = [{(row["expression"].strip("(").split()[0], row["answer"]) for row in rows} for rows in (train, test)]
    assert {row["question"] for row in train}.isdisjoint(row["question"] for row in test)
    assert numbers[0].isdisjoint(numbers[1])
    assert all(Fraction(row["answer"]) == calculator.value(row["expression"]) for row in train)
    assert calculator.rows("train", 50, 1) == train[:50]
    assert {form for _, form in calculator.FORMS} > {"{a} * {b}", "({a} + {c}) * {b}"}


@pytest.mark.parametrize(
    "response, score",
    [
        ("It is 20138.", 1.0), ("It is 20,138.", 1.0), ("347 * 58 + 12 = 20138", 1.0), ("20138.0", 1.0), ("It is 20139.", 0.0),
        ("I do not know.", 0.0), ("", 0.0), ("20138, or 3", 0.0), ("It is -20138.", 0.0),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "20138"}}</tool_call>', 0.0),  # a call is no answer
        ('<tool_call>{"name": "calculator", "arguments": {}}</tool_call>\n\nIt is 20138.', 1.0),
    ],
)  # fmt: skip
def test_the_last_number_after_the_last_call_counts(response: str, score: float) -> None:
    assert calculator.correct(response, "20138") == score


def test_conversations_show_what_the_workflow_shows() -> None:
    made = calculator.conversations(200, 0.2, 1)
    calling = [row["messages"] for row in made if len(row["messages"]) == 5]
    assert 25 < len(calling) < 55 and all(len(row["messages"]) in (3, 5) for row in made)
    system, question, call, result, answer = calling[0]
    tools = tools_of([calculator.calculator])
    chat = chat_of(tokenizer := byte_tokenizer(), DatasetConfig(path="rows"), (tokenizer.eos_token_id,))
    assert showing_of(chat, tools, FORMATS["hermes"]).asked([question]) == [system, question]
    [found] = FORMATS["hermes"].calls(call["content"])
    assert isinstance(found, ToolCall)
    assert calculator.calculator(**tools[0].read(found.arguments)) == result["content"]
    assert answer["content"] == f"It is {result['content']}."
    [row] = turns_of(tokenizer, ()).rows(RowReader().conversation({"messages": calling[0]}))
    learned = tokenizer.decode([one for one, own in zip(row.ids, row.trained, strict=True) if own])
    assert learned == f"{call['content']}<eos>{answer['content']}<eos>"
    held_out = {row["question"] for row in calculator.rows("test", 500, 1)}
    assert held_out.isdisjoint(row["messages"][1]["content"] for row in made)


def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        calculator.main([str(tmp_path / name), "--rows", "20", "--seed", "3"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len((tmp_path / "a").read_text().splitlines()) == 20


def test_what_eval_prints_is_read() -> None:
    text = "runs/x: 0.915 (95 % interval 0.868 to 0.946) on 200 held-out prompts"
    assert str(calculator_run.read_worth(text)) == "0.915 | 0.868 to 0.946"
    with pytest.raises(ValueError, match="printed no interval"):
        calculator_run.read_worth("no")


def test_the_configs_load() -> None:
    config = load_run_config([FOLDER / "calculator.yaml"], []).value
    assert config.rollout.workflow_kwargs["tools"] == ["examples/workflows/calculator.py:calculator"]
    assert config.reward.functions == []


@pytest.mark.slow
def test_the_whole_road_runs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(FOLDER / "calculator_run.py"),
        "--quick",
        "--check-ids",
        "--runs",
        str(tmp_path / "calculator"),
    ]
    ended = subprocess.run(command, cwd=FOLDER.parent.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "| RL |" in ended.stdout and "0 differences in 4 trajectories" in ended.stdout
    assert (
        json.loads((tmp_path / "calculator" / "rl_1" / "metrics.jsonl").read_text().splitlines()[0])["tools/turns"] >= 1
    )
