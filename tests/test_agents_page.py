"""The page about agents names every key and every error, and its example is the one that is trained."""

import ast
import re
from dataclasses import fields
from pathlib import Path

from partita.rollout.served.workflow import Agent

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "workflows" / "agent.py").read_text(encoding="utf-8")


def test_every_key_stands_in_the_table_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.partition("| key of `rollout.workflow_kwargs`")[2], re.MULTILINE)
    )
    assert list(rows) == [item.name for item in fields(Agent)]
    shown = {
        item.name: {None: "null"}.get(item.default, item.default)
        for item in fields(Agent)
        if item.name not in ("agent", "kwargs")
    }
    assert {name: rows[name].strip() for name in shown} == {
        name: f"{value:g}" if isinstance(value, int | float) else value for name, value in shown.items()
    }


def test_every_code_of_an_error_is_named() -> None:
    source = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "partita" / "rollout" / "served").glob("*.py")
    )
    codes = set(re.findall(r'code="(\w+)"', source)) - {"model_not_found"}  # OpenAI's own
    assert codes and {code for code in codes if f"`{code}`" not in PAGE} == set()


def test_the_example_is_the_file_and_knows_nothing_of_partita() -> None:
    (shown,) = re.findall(
        r"^```python\n# examples/workflows/agent.py[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    code = ast.parse(EXAMPLE)
    (function,) = [node for node in code.body if isinstance(node, ast.FunctionDef)]
    function.body = function.body[1:]  # without its docstring
    assert ast.unparse(ast.parse(shown)) == ast.unparse(function)
    imported = [node for node in ast.walk(code) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imported] == ["from openai import OpenAI"]
