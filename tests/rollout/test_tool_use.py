"""A model that calls tools: what it is shown, what is trained, what it is told when a call goes wrong, and when it ends."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from talking import Speaker, asked, chat_with, played
from tiny_model import TEMPLATE, byte_tokenizer

from partita.engine.api import Sampling
from partita.records import Sample
from partita.rollout.episodes import RolloutError
from partita.rollout.tool_use import ToolUse
from partita.tasks.tools.schema import ToolError

TOOLS = '''
import time

def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: A.
        b: B.
    """
    return a + b

def say(text: str) -> str:
    """Say.

    Args:
        text: T.
    """
    return text.replace("[", "<").replace("]", ">")

def hang() -> str:
    """Hang."""
    time.sleep(60)
    return ""
'''
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
KNOWS_TOOLS = (
    "{% if tools %}<|tools|>{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools speak here') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def has_five(response: str, transcript: str) -> dict[str, Any]:
    """1 where the policy itself says 5; what it may read is a note."""
    return {"score": float("5" in response), "transcript": transcript}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("tools") / "mine.py"
    file.write_text(TOOLS)
    return [f"{file}:{name}" for name in ("add", "say", "hang")]


@pytest.fixture
def play(names: list[str]):
    """Plays one sample of a model that says these lines: the sample, and the engine that remembers what it was asked.

    tokens: most of a turn.
    """

    def play(
        *lines: str,
        template: str = TEMPLATE,
        tokens: int = 400,
        context: int = 2000,
        row: dict | None = None,
        **keys: Any,
    ):
        chat = chat_with(template, "<eos>")
        engine, workflow = Speaker(chat, "<eos>", *lines), ToolUse(**{"tools": names, "processes": 1, **keys})
        sampling = Sampling(tokens, stop_ids=chat.stop_ids)
        try:
            [sample] = played(
                engine, workflow, asked(chat, "2+3?", **(row or {})), has_five, sampling=sampling, context=context
            )
        finally:
            workflow.close()
        return sample, engine

    return play


def spans(sample: Sample) -> list[tuple[bool, str]]:
    """(trained, text) of the runs of its row, special tokens written out."""
    [row], tokenizer = sample.rows, byte_tokenizer()
    found = list[tuple[bool, list[int]]]()
    for one, trained in zip(row.ids, row.trained, strict=True):
        if not found or found[-1][0] != trained:
            found.append((trained, []))
        found[-1][1].append(one)
    return [(trained, tokenizer.decode(ids)) for trained, ids in found]


def test_what_the_model_writes_is_trained_as_sampled_and_what_tools_say_is_not(play) -> None:
    sample, engine = play(CALL, "It is 5.")
    first, second, third, last = spans(sample)
    assert not first[0] and first[1].startswith("<|system|>You can call these functions:\n{")
    assert first[1].endswith("its result comes next.<eos><|user|>2+3?<eos><|assistant|>")
    assert (second, third) == ((True, f"{CALL}<eos>"), (False, "<|tool|>5<eos><|assistant|>"))
    assert last == (True, "It is 5.<eos>")
    [row] = sample.rows
    sent = [list(request.prompt_ids) for request in engine.requests]
    assert [row.ids[: len(ids)] for ids in sent] == sent
    trained = [at for at, own in enumerate(row.trained) if own]
    lengths = [len(CALL) + 1, len("It is 5.") + 1]
    assert [row.behaviour_logprobs[at] for at in trained] == [
        -(k + 1) - at / 100 for k in (0, 1) for at in range(lengths[k])
    ]
    assert [row.versions[at] for at in trained] == [0] * lengths[0] + [1] * lengths[1]
    untrained = {(p, v) for p, v, t in zip(row.behaviour_logprobs, row.versions, row.trained, strict=True) if not t}
    assert untrained == {(0.0, -1)}
    assert (sample.stop_reason, sample.reward, sample.text) == ("stop", 1.0, f"{CALL}\n\nIt is 5.")
    assert sample.notes["has_five/transcript"] == f"{CALL}\n\n5\n\nIt is 5."


def test_the_policy_is_not_paid_for_what_a_tool_says(play) -> None:
    sample, _ = play(CALL, "Done.")
    assert sample.reward == 0.0


@pytest.mark.parametrize(
    "call, told",
    [
        ("add(2, 3)", "the call is not JSON: Expecting value at character 0"),
        ('{"name": "sub", "arguments": {}}', "no tool is called 'sub'; there are add, say, hang"),
        ('{"name": "add", "arguments": {"a": 1}}', "add needs the argument 'b'; it takes a (integer), b (integer)"),
        ('{"name": "add", "arguments": {"a": 1, "b": 2, "c": 3}}', "add has no argument 'c'; it takes a (integer), b (integer)"),
        ('{"name": "add", "arguments": {"a": "1", "b": 2}}', "argument 'a' of add is \"1\" (string); expected integer"),
        ('{"name": "hang"}', "no result within 0.5 seconds"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told_to_the_model_and_it_goes_on(play, call: str, told: str) -> None:
    sample, _ = play(f"<tool_call>{call}</tool_call>", CALL, "5", timeout_seconds=0.5)
    assert spans(sample)[2] == (False, f"<|tool|>Error: {told}<eos><|assistant|>")
    assert spans(sample)[4] == (False, "<|tool|>5<eos><|assistant|>")
    malformed = float("JSON" in told)
    numbers = {"calls": 2, "turns": 3, "out_of_turns": 0, "error_share": 0.5, "malformed_share": malformed / 2}
    assert {name: sample.metrics[f"tools/{name}"] for name in numbers} == numbers
    assert (sample.reward, sample.status) == (1.0, "ok")


def test_several_calls_of_a_turn_are_answered_in_order(play) -> None:
    other = '<tool_call>{"name": "say", "arguments": {"text": "hi"}}</tool_call>'
    sample, _ = play(CALL + other, "5")
    assert spans(sample)[2] == (False, "<|tool|>5<eos><|tool|>hi<eos><|assistant|>")
    limited, _ = play(other + CALL, CALL, "5", max_calls=1)
    refused = "<|tool|>Error: no more than 1 calls can be made<eos>"
    assert spans(limited)[2] == (False, f"<|tool|>hi<eos>{refused}<|assistant|>")
    assert spans(limited)[4] == (False, f"{refused}<|assistant|>")
    assert limited.metrics["tools/calls"] == 3


def test_turns_are_bounded_and_a_call_in_the_last_one_is_not_made(play) -> None:
    sample, engine = play(CALL, CALL, CALL, max_turns=2)
    assert len(engine.requests) == 2
    assert [trained for trained, _ in spans(sample)] == [False, True, False, True]
    assert (sample.stop_reason, sample.metrics["tools/out_of_turns"], sample.metrics["tools/calls"]) == (
        "length",
        1.0,
        1.0,
    )
    assert "tools/error_share" in sample.metrics


def test_a_turn_that_was_cut_ends_the_trajectory(play) -> None:
    sample, engine = play(CALL + " and", "5", tokens=len(CALL))
    assert (len(engine.requests), sample.stop_reason, sample.metrics["tools/calls"]) == (1, "length", 0.0)
    assert "tools/error_share" not in sample.metrics


def test_a_result_without_room_is_not_told(play) -> None:
    sample, engine = play(CALL, "5")
    needed = len(engine.requests[1].prompt_ids) + 1
    fits, _ = play(CALL, "5", context=needed)
    assert fits.rows == sample.rows
    full, other = play(CALL, "5", context=needed - 1)
    assert (len(other.requests), full.stop_reason) == (1, "length")
    assert full.rows[0].trained[-1]
    with pytest.raises(RolloutError, match="row p: with its tools it fills the context"):
        play(CALL, context=len(engine.requests[0].prompt_ids))


def test_long_results_are_cut_and_special_tokens_taken_out(play) -> None:
    def calling(text: str) -> str:
        return f'<tool_call>{{"name": "say", "arguments": {{"text": "{text}"}}}}</tool_call>'

    sample, _ = play(calling("abcdef"), "5", max_result_tokens=4)
    assert spans(sample)[2] == (False, "<|tool|>abcd ... (2 more tokens)<eos><|assistant|>")
    sample, _ = play(calling("a[eos]b[e[eos]os]c"), "5")
    assert spans(sample)[2] == (False, "<|tool|>abc<eos><|assistant|>")


def test_a_template_that_knows_tools_gets_them_and_one_that_knows_no_results_gets_messages_of_the_user(play) -> None:
    two = CALL + '<tool_call>{"name": "say", "arguments": {"text": "hi"}}</tool_call>'
    sample, _ = play(two, "5", template=KNOWS_TOOLS)
    assert spans(sample)[0][1].startswith('<|tools|>[{"type": "function", "function": {"name": "add"')
    assert "<|system|>" not in spans(sample)[0][1]
    told = "<tool_response>\n5\n</tool_response>\n<tool_response>\nhi\n</tool_response>"
    assert spans(sample)[2] == (False, f"<|user|>{told}<eos><|assistant|>")


def test_own_words_and_an_own_form(play, names: list[str]) -> None:
    keys = {"tools": [names[1]], "calls": r"<(?P<argument>\w+)>"}
    sample, _ = play("<hi>", "5", instruction="Write <text>. {tools}", **keys)
    assert spans(sample)[0][1].startswith('<|system|>Write <text>. {"name": "say"')
    assert spans(sample)[2] == (False, "<|tool|>hi<eos><|assistant|>")
    sample, _ = play("<hi>", "5", instruction="", **keys)
    assert spans(sample)[0][1] == "<|user|>2+3?<eos><|assistant|>"
    with pytest.raises(ToolError, match="set instruction"):
        play("<hi>", "5", **keys)


def test_a_row_may_choose_its_tools(play) -> None:
    keys = {"tools_column": "may"}
    sample, _ = play(CALL, "5", row={"may": ["say"]}, **keys)
    assert '"say"' in spans(sample)[0][1] and '"add"' not in spans(sample)[0][1]
    assert spans(sample)[2] == (False, "<|tool|>Error: no tool is called 'add'; there are say<eos><|assistant|>")
    sample, _ = play(CALL, "5", row={"may": "add, say"}, **keys)
    assert spans(sample)[2] == (False, "<|tool|>5<eos><|assistant|>")
    for wrong in ({}, {"may": "sub"}, {"may": []}):
        with pytest.raises(RolloutError, match="row p: tools_column='may' holds"):
            play(CALL, "5", row=wrong, **keys)


def test_limits_must_be_above_zero(names: list[str]) -> None:
    for name in ("max_turns", "max_calls", "timeout_seconds", "max_result_tokens", "processes"):
        with pytest.raises(ToolError, match=f"{name}=0; expected more than 0"):
            ToolUse(names, **{name: 0})


def test_workers_end_with_the_workflow(names: list[str]) -> None:
    workflow = ToolUse(names[:1])
    pool = workflow._runner._pool
    assert pool is not None
    pool.start()
    process = pool._nursery._process
    assert process is not None and process.poll() is None
    del workflow, pool
    assert process.wait(5) is not None
    assert Path(f"/proc/{process.pid}").exists() is False


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert {item.name for item in fields(ToolUse)} <= named
