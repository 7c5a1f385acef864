"""What a client may ask, how it is told what it may not, and which messages say the same."""

from typing import Any

import pytest

from partita.engine.api import Sampling
from partita.rollout.served.requests import ApiError, plain_message, read_chat, read_text

HI = [{"role": "user", "content": "Hi"}]
RUN = Sampling(max_new_tokens=8, temperature=1.0)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_a_chat_with_everything_that_is_served() -> None:
    asked = read_chat(
        {
            "model": "any", "messages": HI, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 9, "max_completion_tokens": 7,
            "stop": "x", "n": 1, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 0,
            "temperature": 1, "top_p": 1.0, "top_k": -1, "presence_penalty": 0, "seed": None, "user": "me",
            "response_format": {"type": "text"},
        },
        RUN, "error",
    )  # fmt: skip
    assert asked.messages == ({"role": "user", "content": "Hi"},) and asked.tools == (TOOL,)
    assert (asked.max_tokens, asked.stop, asked.logprobs, asked.stream, asked.stream_usage) == (
        7,
        ("x",),
        True,
        True,
        True,
    )
    assert asked.set_aside == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant", "content": "A"}]}, "messages"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [{}]}, *HI]}, "messages[1].tool_calls[0]"),
        ({"messages": HI, "prompt": "Hi"}, "prompt"),
        ({"messages": HI, "n": 2}, "n"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_tokens": "9"}, "max_tokens"),
        ({"messages": HI, "stream": 1}, "stream"),
        ({"messages": HI, "stop": [""]}, "stop"),
        ({"messages": HI, "stop": ["x"] * 17}, "stop"),
        ({"messages": HI, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": HI, "tools": [{"name": "f"}]}, "tools"),
        ({"messages": HI, "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_refused_names_its_key(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        read_chat(body, RUN, "ignore")
    assert (error.value.status, error.value.param) == (400, param)
    assert error.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"temperature": 0.2}, "temperature=0.2: the run samples with temperature=1.0"),
        ({"top_p": 0.9}, "top_p=0.9: the run samples with top_p=1.0"),
        ({"top_k": 5}, "top_k=5: the run samples with top_k=0"),
        ({"frequency_penalty": 1}, "frequency_penalty=1: the run samples with frequency_penalty=0"),
        ({"seed": 7}, "seed=7: the run samples with seed=None"),
        ({"best_of": 3}, "best_of=3: the run samples with best_of=1"),
        ({"guided_regex": "a+"}, "guided_regex='a.'"),
    ],
)
def test_another_sampling_is_refused_or_set_aside(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ApiError, match=why):
        read_chat({"messages": HI, **given}, RUN, "error")
    assert read_chat({"messages": HI, **given}, RUN, "ignore").set_aside == given


def test_the_run_own_temperature_is_none_of_it() -> None:
    run = Sampling(8, temperature=0.7, top_k=20)
    assert read_chat({"messages": HI, "temperature": 0.7, "top_k": 20}, run, "error").set_aside == {}
    assert read_chat({"messages": HI, "temperature": 1.0}, run, "ignore").set_aside == {"temperature": 1.0}


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    assert read_chat({"messages": HI, "tools": [TOOL], "tool_choice": "none"}, RUN, "error").tools == ()


@pytest.mark.parametrize(("prompt", "read"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))])
def test_prompts_of_texts(prompt: Any, read: Any) -> None:
    asked = read_text({"prompt": prompt, "logprobs": 1, "echo": False}, RUN, "error")
    assert (asked.prompt, asked.logprobs, asked.messages) == (read, True, ())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": "a", "messages": HI}, "messages"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": 5}, "logprobs"),
    ],
)
def test_what_is_refused_of_texts(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        read_text(body, RUN, "ignore")
    assert error.value.param == param


def test_messages_that_say_the_same_are_equal() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    spoken = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None}
    sent = {
        "role": "assistant",
        "tool_calls": [call | {"function": {"name": "f", "arguments": '{"a":1}'}}],
        "content": "",
    }
    assert plain_message(spoken, "m") == plain_message(sent, "m")
    assert plain_message(spoken, "m")["tool_calls"][0]["function"]["arguments"] == {
        "a": 1
    }  # as chat templates take them
    parts = {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}
    assert plain_message(parts, "m") == plain_message(HI[0], "m")
    assert plain_message({"role": "developer", "content": "x"}, "m") == {"role": "system", "content": "x"}
