"""Functions as tools: what a model is told, what is refused, and which arguments fit."""

import enum
from typing import Any, Literal

import pytest

from partita.tasks.tools.schema import ArgumentError, Tool, ToolError, tool_of, tools_of


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", place: tuple[float, float] | None = None) -> str:
    """The weather of a city.

    Args:
        city: Its name.
        days: How many of them.
        unit: Of temperatures.
        place: Latitude and
            longitude.

    Returns:
        A sentence.
    """
    return city


class Pair:
    """No JSON."""


class Colour(enum.Enum):
    """Values of JSON."""

    RED = "red"


def described(annotation: Any) -> Tool:
    def f(x):
        """F.

        Args:
            x: X.
        """

    f.__annotations__ = {"x": annotation}
    return tool_of(f)


def test_the_schema_of_a_signature_and_its_docstring() -> None:
    assert tool_of(weather).schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "integer", "description": "How many of them."},
                    "unit": {"type": "string", "enum": ["C", "F"], "description": "Of temperatures."},
                    "place": {
                        "type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "nullable": True,
                        "description": "Latitude and longitude.",
                    },
                },
                "required": ["city"],
            },
        },
    }  # fmt: skip


def test_arguments_arrive_as_json_has_them() -> None:
    read = tool_of(weather).read
    assert read({"city": "Oslo"}) == {"city": "Oslo"}
    full = {"city": "Oslo", "days": 3.0, "unit": "F", "place": [59, 10.5]}
    assert read(full) == {"city": "Oslo", "days": 3, "unit": "F", "place": [59, 10.5]}
    assert type(read(full)["days"]) is int
    assert read({"city": "", "place": None}) == {"city": "", "place": None}


@pytest.mark.parametrize(
    "given, told",
    [
        ({}, "weather needs the argument 'city'; it takes city (string), days (integer)"),
        ({"town": "Oslo"}, "weather has no argument 'town'; it takes city (string)"),
        ({"city": 7}, "argument 'city' of weather is 7 (integer); expected string"),
        ({"city": None}, "argument 'city' of weather is null (null); expected string"),
        ({"city": "a", "days": "3"}, "argument 'days' of weather is \"3\" (string); expected integer"),
        ({"city": "a", "days": 1.5}, "argument 'days' of weather is 1.5 (number); expected integer"),
        ({"city": "a", "days": True}, "argument 'days' of weather is true (boolean); expected integer"),
        ({"city": "a", "unit": "K"}, "argument 'unit' of weather is \"K\"; expected one of [\"C\", \"F\"]"),
        ({"city": "a", "place": [1]}, "argument 'place' of weather has 1 items; expected 2"),
        ({"city": "a", "place": [1, "x"]}, "argument 'place' of weather, at 1, is \"x\" (string); expected number"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_to_the_model(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError) as error:
        tool_of(weather).read(given)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    "annotation, fits, fails",
    [
        (list[int], [[], [1, 2.0]], [[1.5], "1", None]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, []]),
        (int | str, [1, "1"], [1.5, None, [1]]),
        (list[int] | dict[str, str], [[1], {"a": "b"}], [["a"], {"a": 1}]),
        (float, [1, 1.5], [True, "1"]),
        (bool, [True], [1, "true"]),
        (Any, [None, 1, {"a": [1]}], []),
        (Colour, ["red"], ["blue", 1]),
        (Literal[1, "a"], [1, "a"], [True, 2]),
    ],
)
def test_types(annotation: Any, fits: list[Any], fails: list[Any]) -> None:
    tool = described(annotation)
    assert [tool.read({"x": value})["x"] for value in fits] == fits
    for value in fails:
        with pytest.raises(ArgumentError, match="argument 'x' of f"):
            tool.read({"x": value})


def test_what_cannot_be_a_tool(tmp_path) -> None:
    def plain(x: int) -> int:
        return x

    def half(x: int, y: int) -> int:
        """Half.

        Args:
            x: X.
        """
        return x

    def untyped(x) -> int:
        """U.

        Args:
            x: X.
        """
        return x

    def many(*x: int) -> int:
        """M.

        Args:
            x: X.
        """
        return 1

    refused = {
        plain: "no docstring",
        half: "no description for the argument 'y'",
        untyped: "missing a type",
        many: "'x' without",
    }
    for function, why in refused.items():
        with pytest.raises(ToolError, match=rf"tool '{function.__name__}' .*{why}"):
            tool_of(function)
    for annotation, why in ((Pair, "custom class"), (list[Pair], "custom class")):
        with pytest.raises(ToolError, match=why):
            described(annotation)
    import torch

    with pytest.raises(ToolError, match="no call can write as JSON"):
        described(list[torch.Tensor])
    with pytest.raises(ToolError, match="is a Pair, not a function"):
        tool_of(Pair())  # type: ignore[arg-type]
    with pytest.raises(ToolError, match="no such file"):
        tool_of(f"{tmp_path}/none.py:f")
    with pytest.raises(ToolError, match="two tools are called 'weather'"):
        tools_of([weather, weather])
    with pytest.raises(ToolError, match="no tool is named"):
        tools_of([])


def test_a_name_is_kept_for_the_worker(tmp_path) -> None:
    (tmp_path / "t.py").write_text('def now(zone: str = "UTC"):\n    """Now.\n\n    Args:\n        zone: Z.\n    """\n')
    [tool] = tools_of([f"{tmp_path}/t.py:now"])
    assert (tool.name, tool.source, tool.required) == ("now", f"{tmp_path}/t.py:now", [])
    assert tool_of(weather).source is None
