"""What is asked: words out of columns, conversations, examples, and what may not be put around a prompt."""

import json

import pytest
from task_rows import BAKERY, COUNTDOWN

from partita.tasks.dataset import ColumnsConfig, DataError, DatasetConfig
from partita.tasks.settings import BOXED_INSTRUCTION

NO_ANSWER = ColumnsConfig(answer=None)


def test_a_template_makes_the_users_words_out_of_columns(load):
    rows = load(COUNTDOWN, template="Make {target} out of {nums}. Use \\boxed{} and {{nums}}.", columns=NO_ANSWER).rows
    assert rows[0].messages == ({"role": "user", "content": "Make 33 out of [3, 7, 12]. Use \\boxed{} and {nums}."},)
    assert rows[0].row == COUNTDOWN[0]
    (row,) = load([{"a": {"b": "x"}, "answer": 1}], template="{a.b}?", instruction="Short.").rows
    assert row.messages[0]["content"] == "x?\nShort."
    with pytest.raises(DataError, match=r"row 1: no 'numbs' \(near: nums\)"):
        load(COUNTDOWN, template="{numbs}", columns=NO_ANSWER)
    with pytest.raises(DataError, match=r"row 1: 'nums' is null, and template needs it"):
        load([{"nums": None}], template="{nums}", columns=NO_ANSWER)
    with pytest.raises(ValueError, match=r"template and columns.prompt=x: prompts come from one of the two"):
        DatasetConfig(template="{a}", columns=ColumnsConfig(prompt="x"))


def test_examples_are_earlier_turns_before_every_prompt(load, tmp_path):
    shots = [
        {"question": "1+1?", "answer": "1+1=2 #### 2"},
        {"question": "2+2?", "response": "Four.", "answer": "#### 4"},
    ]
    (tmp_path / "shots.json").write_text(json.dumps(shots))
    for examples in (shots, str(tmp_path / "shots.json")):
        loaded = load(BAKERY, examples=examples, instruction="Think.", system="Be brief.")
        said = [(message["role"], message["content"]) for message in loaded.rows[1].messages]
        assert said == [
            ("system", "Be brief."),
            ("user", "1+1?\nThink."),
            ("assistant", "1+1=2 #### 2"),
            ("user", "2+2?\nThink."),
            ("assistant", "Four."),
            ("user", f"{BAKERY[1]['question']}\nThink."),
        ]
        assert loaded.rows[1].shots == 4 and "2 examples before each prompt" in loaded.notes
    with pytest.raises(DataError, match=r"examples: row 1: no answer: an example has a column response, or answer"):
        load(BAKERY, examples=[{"question": "1+1?"}])
    with pytest.raises(DataError, match=r"examples: row 1: no 'question'"):
        load(BAKERY, examples=[{"qestion": "1+1?"}])


def test_rows_of_other_layouts_are_prompts_too(load):
    alpaca = {"instruction": "Translate.", "input": "cat", "output": "chat"}
    assert load([alpaca], columns=ColumnsConfig(answer="output")).rows[0].messages[0]["content"] == "Translate.\ncat"
    chat = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    pair = {"chosen": "\n\nHuman: Name a bird.\n\nAssistant: Wren.", "rejected": "..."}
    for row, asked in (({"conversations": chat}, "2+2?"), (pair, "Name a bird.")):
        with pytest.raises(DataError, match="last_answer=drop leaves it out"):
            load([row], columns=NO_ANSWER)
        (found,) = load([row], columns=NO_ANSWER, last_answer="drop").rows
        assert found.messages == ({"role": "user", "content": asked},)


def test_a_prompt_in_a_chat_template_takes_nothing_into_it(load):
    asked = "<｜User｜>How long?<｜Assistant｜><think>\n"
    rows = [{"prompt": asked, "answer": "#### 12"}, {"prompt": "What does <｜User｜> mean?", "answer": "#### 1"}]
    first, second = load(rows).rows
    assert first.templated and first.messages == (
        {"role": "user", "content": asked},
    )  # not even the instruction of auto
    assert not second.templated and second.messages[0]["content"].endswith(BOXED_INSTRUCTION)
    for name, value in (
        ("instruction", "Think."),
        ("system", "Brief."),
        ("examples", [{"prompt": "a", "answer": "b"}]),
    ):
        with pytest.raises(
            DataError, match=rf"row 1: is written in a chat template .*{name} cannot be put; set {name}=null"
        ):
            load(rows, **{name: value})
    plain = load(rows, templated="ignore").rows[0]
    assert not plain.templated and plain.messages[0]["content"] == f"{asked}\n{BOXED_INSTRUCTION}"


def test_conversations_stay_as_they_are_and_get_no_second_instruction(load):
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": None},
        {"role": "assistant", "tool_calls": [{"name": "add"}]},
        {"role": "tool", "content": "3"},
    ]
    (row,) = load([{"messages": talk, "answer": "#### 3"}], instruction=None).rows
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool"]
    assert row.messages[1] == {"role": "user", "content": "Hi"} and row.messages[2]["content"] == ""
    told = load([{"messages": talk, "answer": "3"}], instruction="Use \\boxed{}.").rows[0]
    assert told.messages[1]["content"] == "Hi\nUse \\boxed{}." and told.messages[3]["content"] == "3"
    with pytest.raises(DataError, match=r"ends with a message of 'assistant'"):
        load([{"messages": talk[:3], "answer": "3"}])
    with pytest.raises(DataError, match=r"has a system message of its own"):
        load([{"messages": talk, "answer": "3"}], system="Think.")
    system = load([{"prompt": "Hi", "answer": "3"}], system="Think.").rows[0].messages
    assert [message["content"] for message in system] == ["Think.", "Hi"]
