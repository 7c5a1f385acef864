"""What calls become: rows of exact ids, each sampled token trained once, whatever the agent does with its history."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from serving import END, Model, Said, session_of
from talking import CHATML, chat_with, shown

from partita.records import Row
from partita.rollout.served.requests import ApiError, Asked, plain_message
from partita.rollout.served.session import Session

CHAT = chat_with(CHATML, END)
HI = {"role": "user", "content": "Hi"}
MORE = {"role": "user", "content": "More"}
ASSISTANT = "<|im_start|>assistant\n"


def a(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def chat(*messages: dict[str, Any], **more: Any) -> Asked:
    return Asked(messages=tuple(plain_message(one, "message") for one in messages), **more)


def talk(
    do: Callable[[Session, Model], Awaitable[None]], *lines: Said | Exception, **limits: int
) -> tuple[Session, Model]:
    """Both after `do`."""

    async def whole() -> tuple[Session, Model]:
        model = Model(CHAT, lines)
        session = session_of(model, **limits)
        await do(session, model)
        return session, model

    return asyncio.run(whole())


def parts(row: Row) -> list[tuple[str, bool]]:
    """The row's text in runs of trained and other tokens."""
    found: list[tuple[list[int], bool]] = []
    for one, own in zip(row.ids, row.trained, strict=True):
        if not found or found[-1][1] != own:
            found.append(([], own))
        found[-1][0].append(one)
    return [(shown(CHAT, ids), own) for ids, own in found]


def test_a_conversation_that_goes_on_is_one_row() -> None:
    async def do(session: Session, model: Model) -> None:
        first = await session.ask(chat(HI))
        assert (first.message, first.finish_reason) == (a("A"), "stop")
        second = await session.ask(chat(HI, a("A"), MORE))
        assert second.usage == {
            "prompt_tokens": len(model.calls[1].ids),
            "completion_tokens": 3,
            "total_tokens": len(model.calls[1].ids) + 3,
        }

    session, model = talk(do, "A", "BB")
    (row,) = session.rows()
    assert parts(row) == [
        (f"<|im_start|>user\nHi{END}\n{ASSISTANT}", False),
        (f"A{END}", True),
        (f"\n<|im_start|>user\nMore{END}\n{ASSISTANT}", False),
        (f"BB{END}", True),
    ]
    assert model.calls[1].ids == row.ids[:-3]
    own = [at for at, trained in enumerate(row.trained) if trained]
    assert [row.behaviour_logprobs[at] for at in own] == [-1.0, -1.01, -2.0, -2.01, -2.02]
    assert [row.versions[at] for at in own] == [1, 1, 2, 2, 2]
    assert {row.versions[at] for at in range(len(row.ids)) if at not in own} == {-1}
    assert session.transcript == "A\nuser\nMore\nassistant\nBB" and session.answers == 2


def test_what_was_sampled_is_never_encoded_again() -> None:
    broken = [*CHAT.encode("é")[:1], *CHAT.encode("x")]  # half a letter: its ids cannot be found from its text

    async def do(session: Session, model: Model) -> None:
        first = await session.ask(chat(HI))
        await session.ask(chat(HI, first.message, MORE))

    session, _ = talk(do, broken, "B")
    (row,) = session.rows()
    assert CHAT.encode(CHAT.decode(broken)) != broken
    opening = len(CHAT.opening([HI]))
    assert row.ids[opening : opening + 2] == broken
    assert row.ids[opening + 2 : opening + 4] == [CHAT.stop_ids[0], *CHAT.encode("\n")]  # its turn is ended for it


@pytest.mark.parametrize(
    "history",
    [
        [HI, a("A "), MORE],  # the answer, edited
        [{"role": "user", "content": "Hello"}, a("A"), MORE],  # the question, edited
        [{"role": "system", "content": "In short: Hi, A."}, MORE],  # a summary
        [HI, a("A"), MORE, a("made up"), MORE],  # words put into its mouth
    ],
)
def test_another_history_is_another_row(history: list[dict[str, Any]]) -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI))
        await session.ask(chat(*history))

    session, model = talk(do, "A", "B")
    first, second = session.rows()
    assert parts(first)[-1] == (f"A{END}", True)
    assert model.calls[1].ids == CHAT.opening(history)
    assert parts(second) == [(shown(CHAT, CHAT.opening(history)), False), (f"B{END}", True)]


def test_a_sub_agent_has_a_row_and_the_first_row_goes_on_after_it() -> None:
    sub = {"role": "system", "content": "You check."}

    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI))
        await session.ask(chat(sub, HI))
        await session.ask(chat(sub, HI, a("S"), MORE))
        await session.ask(chat(HI, a("A"), MORE))

    main, other = talk(do, "A", "S", "T", "B")[0].rows()
    assert [said for said, own in parts(main) if own] == [f"A{END}", f"B{END}"]
    assert [said for said, own in parts(other) if own] == [f"S{END}", f"T{END}"]


def test_the_same_call_again_is_another_draw_and_another_row() -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI))
        await session.ask(chat(HI))
        await session.ask(chat(HI, a("A"), MORE))

    session, model = talk(do, "A", "A", "B")
    name = zlib.crc32(np.asarray(CHAT.opening([HI]), dtype=np.int64).tobytes())
    assert [call.number for call in model.calls[:2]] == [name, name + 1]
    assert [[said for said, own in parts(row) if own] for row in session.rows()] == [
        [f"A{END}"],
        [f"A{END}", f"B{END}"],
    ]


def test_two_ways_on_from_one_answer_train_it_once() -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI))
        await session.ask(chat(HI, a("A"), MORE))
        await session.ask(chat(HI, a("A"), MORE))

    session, model = talk(do, "A", "B", "C")
    first, second = session.rows()
    assert model.calls[1].ids == model.calls[2].ids
    assert [said for said, own in parts(first) if own] == [f"A{END}", f"B{END}"]
    assert [said for said, own in parts(second) if own] == [f"C{END}"]
    assert sum(map(sum, (row.trained for row in session.rows()))) == 6


@pytest.mark.parametrize("turned", [False, True])
def test_calls_at_the_same_time_are_named_by_what_they_ask(turned: bool) -> None:
    async def do(session: Session, model: Model) -> None:
        model.gate = asyncio.Event()
        asked = [chat(HI), chat(MORE)]
        running = [asyncio.ensure_future(session.ask(one)) for one in (reversed(asked) if turned else asked)]
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(*running)

    session, model = talk(do, "A", "A")
    assert {tuple(call.ids): call.number for call in model.calls} == {
        tuple(ids): zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes())
        for ids in (CHAT.opening([HI]), CHAT.opening([MORE]))
    }
    assert [shown(CHAT, row.ids)[17:19] for row in session.rows()] == ["Hi", "Mo"]


def test_of_an_abandoned_call_nothing_stays() -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI))
        model.gate = asyncio.Event()
        left = asyncio.ensure_future(session.ask(chat(HI, a("A"), MORE)))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait({left})
        model.gate.set()
        await session.ask(chat(HI, a("A"), MORE))

    session, _ = talk(do, "A", "lost", "B")
    (row,) = session.rows()
    assert [said for said, own in parts(row) if own] == [f"A{END}", f"B{END}"]


def test_closing_ends_calls_that_wait_and_refuses_others() -> None:
    async def do(session: Session, model: Model) -> None:
        model.gate = asyncio.Event()
        waiting = asyncio.ensure_future(session.ask(chat(HI)))
        await asyncio.sleep(0)
        session.close()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        with pytest.raises(ApiError, match="finished"):
            await session.ask(chat(HI))

    assert talk(do, "A")[0].rows() == []


def test_limits() -> None:
    async def do(session: Session, model: Model) -> None:
        for _ in range(2):
            await session.ask(chat(HI, max_tokens=3, stop=("x",)))
        with pytest.raises(ApiError, match="max_calls=2") as error:
            await session.ask(chat(HI))
        assert error.value.code == "max_calls"

    session, model = talk(do, "long words", "A", max_calls=2)
    assert [(call.most, call.stop) for call in model.calls] == [(3, ("x",))] * 2
    assert session.rows()[0].ids[-3:] == CHAT.encode("lon")

    async def too_long(session: Session, model: Model) -> None:
        with pytest.raises(ApiError, match="no room") as error:
            await session.ask(chat(HI))
        assert (error.value.status, error.value.code) == (400, "context_length_exceeded")

    talk(too_long, context=10)


def test_the_run_allows_no_more_tokens_than_it_does() -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(chat(HI, max_tokens=4096))
        await session.ask(chat(MORE))

    assert [call.most for call in talk(do, "A", "B")[1].calls] == [32, 32]


def test_an_engine_that_fails_is_heard_of() -> None:
    async def do(session: Session, model: Model) -> None:
        with pytest.raises(ApiError) as error:
            await session.ask(chat(HI))
        assert error.value.status == 500
        with pytest.raises(RuntimeError, match="broken"):
            session.crashed.result()

    talk(do, RuntimeError("broken"))


TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}},)


def test_tool_calls_are_read_and_go_on_in_the_same_row() -> None:
    said = 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

    async def do(session: Session, model: Model) -> None:
        first = await session.ask(chat(HI, tools=TOOLS))
        (call,) = first.message["tool_calls"]
        assert (first.finish_reason, first.message["content"]) == ("tool_calls", "Let me see.")
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
        await session.ask(chat(HI, first.message, result, tools=TOOLS))
        await session.ask(chat(HI, first.message, result))  # without the tools it is another conversation

    session, _ = talk(do, said, "2", "3", most=200)
    first, second = session.rows()
    assert [words for words, own in parts(first) if own] == [f"{said}{END}", f"2{END}"]
    assert [words for words, own in parts(second) if own] == [f"3{END}"]
    assert '{"name": "add"' in parts(first)[0][0]  # told of, though this template knows no tools


def test_a_call_that_cannot_be_read_stays_text() -> None:
    async def do(session: Session, model: Model) -> None:
        answered = await session.ask(chat(HI, tools=TOOLS))
        assert answered.message == a("<tool_call>{add}</tool_call>") and answered.finish_reason == "stop"
        assert (await session.ask(chat(MORE, tools=TOOLS))).finish_reason == "length"

    talk(do, "<tool_call>{add}</tool_call>", "x" * 40)


def test_texts_go_on_by_their_ids() -> None:
    async def do(session: Session, model: Model) -> None:
        await session.ask(Asked(prompt="Q: 1", stop=("!",)))
        await session.ask(Asked(prompt="Q: 1 A! B"))  # what was cut off at the stop string is repeated
        await session.ask(Asked(prompt="Q: 1 A! B ends now"))  # behind an end of sequence: another row
        await session.ask(Asked(prompt=tuple(CHAT.encode("Q: 1")), logprobs=True))

    session, model = talk(do, CHAT.encode(" A!"), " ends", "C", "D")
    rows = session.rows()
    assert parts(rows[0]) == [("Q: 1", False), (" A!", True), (" B", False), (f" ends{END}", True)]
    assert [parts(row)[-1] for row in rows[1:]] == [(f"C{END}", True), (f"D{END}", True)]
    assert model.calls[2].ids == CHAT.encode("Q: 1 A! B ends now")
