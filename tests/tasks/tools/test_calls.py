"""Calls in what a model wrote: read, malformed, or none."""

import pytest

from partita.tasks.tools.calls import FORMATS, CallFormat, Malformed, ToolCall, call_format
from partita.tasks.tools.schema import ToolError, tools_of


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: A.
        b: B.
    """
    return a + b


def look(word: str) -> str:
    """Look.

    Args:
        word: W.
    """
    return word


def square(x: int) -> int:
    """Square.

    Args:
        x: X.
    """
    return x * x


SHAPE = 'a call is an object with "name", a text, and "arguments", an object'
HERMES, LLAMA = FORMATS["hermes"], FORMATS["llama3"]


def seen(format_: CallFormat, text: str) -> list[object]:
    """(name, arguments) of calls, and the words about malformed ones."""
    return [(one.name, one.arguments) if isinstance(one, ToolCall) else one.why for one in format_.calls(text)]


@pytest.mark.parametrize(
    "text, found",
    [
        ("The answer is 4.", []),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', [("add", {"a": 1, "b": 2})]),
        ('I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\nSo', [("add", {"a": 1})]),
        ('<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{"name":"g"}</tool_call>', [("f", {}), ("g", {})]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})]),
        ('<think><tool_call>{"name": "f"}</tool_call></think>No.', []),
        ('<think>so</think><tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ('<tool_call>{"name": "f"', ["<tool_call> is not closed by </tool_call>"]),
        ('<tool_call>{"name": "f"}<tool_call>{"name": "g"}</tool_call>', ["<tool_call> is not closed by </tool_call>", ("g", {})]),
        ("<tool_call>add(1, 2)</tool_call>", ["the call is not JSON: Expecting value at character 0"]),
        ('<tool_call>{"name": "f"} {}</tool_call>', ["the call is not JSON: Extra data at character 14"]),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', ["the call is not JSON: NaN is no JSON"]),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", ["the call is not JSON: nested too deeply"]),
        ("<tool_call>[1]</tool_call>", [SHAPE]),
        ('<tool_call>{"name": 3}</tool_call>', [SHAPE]),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ["the arguments of f are not an object"]),
        (
            '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
            ["the arguments of f are not JSON: Expecting value at character 0"],
        ),
    ],
)  # fmt: skip
def test_hermes(text: str, found: list[object]) -> None:
    assert seen(HERMES, text) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("4", []),
        ('{"name": "add", "parameters": {"a": 1, "b": 2}}', [("add", {"a": 1, "b": 2})]),
        ('<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', [("f", {})]),
        ('{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', [("f", {"a": 1}), ("g", {})]),
        ('{"name": "f", "arguments": {"a": 1}}', [("f", {"a": 1})]),
        ('{"name": "Ann", "age": 7}', []),  # an answer that is JSON
        ('{"answer": 4}', []),
        ('So: {"name": "f", "parameters": {}}', []),
        (
            '{"name": "f", "parameters": {',
            ["the call is not JSON: Expecting property name enclosed in double quotes at character 29"],
        ),
        ('{"name": "f", "parameters": 3}', ["the arguments of f are not an object"]),
    ],
)  # fmt: skip
def test_llama3(text: str, found: list[object]) -> None:
    assert seen(LLAMA, text) == found


def test_a_regular_expression() -> None:
    one = call_format(r"<calc>(?P<argument>.*?)</calc>", tools_of([look]))
    assert seen(one, "<calc>1 +\n2</calc> and <calc></calc>") == [("look", {"word": "1 +\n2"}), ("look", {"word": ""})]
    number = call_format(r"\[(?P<argument>.*?)\]", tools_of([square]))
    assert seen(number, "[7] [x]") == [
        ("square", {"x": 7}),
        "the argument of square is not JSON: Expecting value at character 0",
    ]
    two = call_format(r"(?P<name>\w+)\((?P<arguments>\{.*?\})\)", tools_of([add, look]))
    assert seen(two, 'add({"a": 1}) up({})') == [("add", {"a": 1}), ("up", {})]
    assert one.how == ""


@pytest.mark.parametrize(
    "pattern, why",
    [
        ("qwen", "expected hermes, llama3, or a regular expression"),
        ("(?P<argument>", "is no regular expression"),
        ("(?P<name>a)", "expected arguments or argument"),
        ("(?P<arguments>a)", "has no group name, and there are 2 tools"),
        ("(?P<name>a)(?P<argument>b)", "add has not exactly one"),
    ],
)
def test_expressions_that_cannot_be_used(pattern: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        call_format(pattern, tools_of([add, look]))


def test_malformed_is_told_from_none() -> None:
    assert HERMES.calls("tool_call") == []
    assert isinstance(HERMES.calls("<tool_call>")[0], Malformed)
