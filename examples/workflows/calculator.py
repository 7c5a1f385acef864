"""A calculator that a model may call, and arithmetic that it cannot do in its head: the tool, the task and the reward.

`train_dataset.path=examples/workflows/calculator.py:task` gives the rows, which bring the reward along;
`rollout.workflow_kwargs.tools=[examples/workflows/calculator.py:calculator]` names the tool. As a program it writes conversations
that show the tool, for `partita sft`:

usage: python examples/workflows/calculator.py FILE [--rows 256] [--calling 0.12] [--seed 1]
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import operator
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from partita.tasks.catalog import Task, held_out

LONGEST = 200  # characters of an expression
LARGEST = 4096  # bits of a number on the way
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
# words of a question, and the expression that it asks for
FORMS = (
    ("What is {a} * {b}?", "{a} * {b}"),
    ("What is {a} times {b}?", "{a} * {b}"),
    ("What is {a} * {b} + {c}?", "{a} * {b} + {c}"),
    ("What is {a} * {b} - {c}?", "{a} * {b} - {c}"),
    ("What is ({a} + {c}) * {b}?", "({a} + {c}) * {b}"),
    ("Multiply {a} by {b} and add {c}.", "{a} * {b} + {c}"),
)


def calculator(expression: str) -> str:
    """Computes arithmetic.

    Args:
        expression: Numbers, + - * / and ().
    """
    return shown(value(expression))


def value(expression: str) -> Fraction:
    """What an expression of numbers, + - * / // % ** and brackets comes to, exactly. Nothing else is evaluated.

    Raises ValueError for anything else, for long expressions and for very large numbers; ZeroDivisionError.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {LONGEST} are read")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{expression!r} is no arithmetic") from error
    return _value(tree.body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if node.value == math.inf:  # as Python reads 1e999
            raise ValueError("a number on the way is too large")
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _value(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _bounded(Fraction(OPERATORS[type(node.op)](left, right)))
    raise ValueError(f"{ast.unparse(node)!r} is no arithmetic")


def _check_power(base: Fraction, exponent: Fraction) -> None:
    if exponent.denominator != 1 or abs(exponent) * _bits(base) > LARGEST:
        raise ValueError(f"the exponent {shown(exponent)} is too large or not whole")


def _bounded(number: Fraction) -> Fraction:
    if _bits(number) > LARGEST:
        raise ValueError("a number on the way is too large")
    return number


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def shown(number: Fraction) -> str:
    """A whole number in full, any other with ten digits."""
    return str(number) if number.denominator == 1 else f"{float(number):.10g}"


def correct(response: str, answer: str) -> float:
    """1 where the last number after the last call is the right one. What the calculator says is not in the response."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", response.rpartition("</tool_call>")[2])
    return float(bool(numbers) and Fraction(numbers[-1].replace(",", "")) == Fraction(answer))


def rows(split: Literal["train", "test"], size: int | None, seed: int) -> list[dict[str, Any]]:
    """Different questions with their answers; which numbers are held out is a hash of them, whatever the form."""
    rng, found = random.Random(f"calculator/{split}/{seed}"), dict[str, dict[str, Any]]()
    while len(found) < (1000 if size is None else size):
        a, b, c = (low + int(rng.random() * (high - low)) for low, high in ((101, 1000), (11, 100), (11, 1000)))
        words, form = FORMS[int(rng.random() * len(FORMS))]
        if held_out("calculator", (a, b)) == (split == "test"):
            question, expression = words.format(a=a, b=b, c=c), form.format(a=a, b=b, c=c)
            answer = shown(value(expression))
            found[question] = {"question": question, "answer": answer, "expression": expression}
    return list(found.values())


task = Task("calculator", rows, (correct,))


def conversations(count: int, calling: float, seed: int) -> list[dict[str, Any]]:
    """Conversations to imitate, about questions of the training split. calling: share of those that ask the calculator; the others
    give the right answer at once, which no small model works out in its head.
    """
    # not above: the workers that run the tool import this file, and need none of it
    from partita.tasks.tools.calls import FORMATS
    from partita.tasks.tools.schema import tools_of
    from partita.tasks.tools.showing import describe

    system = {"role": "system", "content": describe(tools_of([calculator]), FORMATS["hermes"])}
    rng = random.Random(f"calculator/sft/{seed}")
    made = list[dict[str, Any]]()
    for row in rows("train", count, seed + 1):
        messages = [system, {"role": "user", "content": row["question"]}]
        if rng.random() < calling:
            call = {"name": "calculator", "arguments": {"expression": row["expression"]}}
            messages.append({"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"})
            messages.append({"role": "tool", "content": row["answer"]})
        messages.append({"role": "assistant", "content": f"It is {row['answer']}."})
        made.append({"messages": messages})
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Write the conversations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--calling", type=float, default=0.12)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(words)
    made = conversations(args.rows, args.calling, args.seed)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
    calls = sum(len(row["messages"]) > 3 for row in made)
    print(f"{args.file}: {len(made)} conversations, {calls} with a call")


if __name__ == "__main__":
    main()
