"""What is said of tools in messages, where the template says nothing."""

import json

from talking import CHATML, chat_with

from partita.tasks.tools.calls import FORMATS
from partita.tasks.tools.runner import ToolResult
from partita.tasks.tools.schema import tools_of
from partita.tasks.tools.showing import INTRODUCTION, describe, showing_of, with_system

ASKED = {"role": "user", "content": "?"}


def now(zone: str = "UTC") -> str:
    """The time.

    Args:
        zone: Where.
    """
    return zone


def test_a_line_of_json_for_each_tool_and_how_to_call() -> None:
    first, line, *how = describe(tools_of([now]), FORMATS["hermes"]).split("\n")
    assert first == INTRODUCTION
    assert json.loads(line)["name"] == "now" and "required" not in json.loads(line)["parameters"]
    assert how[1] == '<tool_call>{"name": NAME, "arguments": {NAME: VALUE}}</tool_call>'


def test_the_system_message() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert with_system([ASKED], "T") == [{"role": "system", "content": "T"}, ASKED]
    assert with_system([system, ASKED], "T") == [{"role": "system", "content": "Be brief.\n\nT"}, ASKED]
    assert with_system([system, ASKED], "") == [system, ASKED]
    assert system["content"] == "Be brief."


def test_a_template_that_shows_every_role_shows_results_and_no_tools() -> None:
    showing = showing_of(chat_with(CHATML, "<|im_end|>"), tools_of([now]), FORMATS["llama3"])
    assert showing.system.endswith(FORMATS["llama3"].how)
    assert showing.told([("now", ToolResult("9"))]) == [{"role": "tool", "name": "now", "content": "9"}]


def test_without_a_template_tools_are_told_in_words() -> None:
    showing = showing_of(chat_with(None, "<eos>", chat_template="none"), tools_of([now]), FORMATS["hermes"])
    text = showing.chat.decode(showing.chat.opening(showing.asked([ASKED])))
    assert text.startswith(INTRODUCTION) and text.endswith("\n\n?")
