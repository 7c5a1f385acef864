"""The assistant's message, its calls, and the events of a stream."""

import json

import pytest

from partita.engine.api import Completion
from partita.rollout.served.answers import Answered, chat_events, message_of
from partita.rollout.served.requests import Asked
from partita.tasks.tools.calls import FORMATS

HERMES = FORMATS["hermes"]
CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("plain", "plain", []),
        (CALL, None, ["f"]),
        (f"First. {CALL}\n{CALL}", "First.", ["f", "f"]),
        (f"<think>{CALL}?</think>\nNo.", f"<think>{CALL}?</think>\nNo.", []),
        (f"<think>so</think>\n{CALL}", "<think>so</think>", ["f"]),
        (f"{CALL}<tool_call>broken", f"{CALL}<tool_call>broken", []),
    ],
)
def test_messages(text: str, content: str | None, names: list[str]) -> None:
    message = message_of(text, 7, HERMES)
    assert message["content"] == content
    calls = message.get("tool_calls", [])
    assert [call["function"]["name"] for call in calls] == names
    assert [call["id"] for call in calls] == [f"call_00000007_{at}" for at in range(len(names))]
    assert all(json.loads(call["function"]["arguments"]) == {"a": "é"} for call in calls)


def test_without_tools_nothing_is_a_call() -> None:
    assert message_of(CALL, 0, None) == {"role": "assistant", "content": CALL}


def test_llama_calls_have_no_words_around_them() -> None:
    message = message_of('{"name": "f", "parameters": {}}', 0, FORMATS["llama3"])
    assert message["content"] is None and message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_a_stream_of_calls_numbers_them() -> None:
    completion = Completion((1, 2), (-1.0, -2.0), (0, 0), "stop", CALL)
    events = list(chat_events(Answered(7, 3, completion, message_of(CALL + CALL, 7, HERMES)), Asked()))
    parts = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert events[-1] == b"data: [DONE]\n\n"
    assert [call["index"] for call in parts[1]["choices"][0]["delta"]["tool_calls"]] == [0, 1]
    assert parts[2]["choices"][0]["finish_reason"] == "tool_calls"
