import json

import pytest

from partita.tasks.conversations import ROLES, NothingToLearn, RowError, RowReader, question_in
from partita.tasks.files import DataError

DRILL = "\n\nHuman: My drill slips on tile. My Assistant: a cheap bit. Any tips?\n\nAssistant: Which tile is it?"
DRILL += "\n\nHuman: Porcelain.\n\nAssistant:"
WREN = "\n\nHuman: Name a bird.\n\nAssistant:"


def said(role, content):
    return {"role": role, "content": content}


def talk(conversation):
    return [(message["role"], message["content"]) for message in conversation.messages]


def learned(conversation):
    return [m["content"] for m, one in zip(conversation.messages, conversation.learned, strict=True) if one]


def read(row, **keys):
    return RowReader(**keys).conversation(row)


def test_openai_messages_of_weight_zero_are_read_and_not_learned():
    messages = [
        said("system", "One word."), said("user", "Colour of grass?"), said("assistant", "Blue.") | {"weight": 0},
        said("user", "Sure?"), said("assistant", "Green.") | {"weight": 1},
    ]  # fmt: skip
    found = read({"messages": messages})
    assert learned(found) == ["Green."]
    assert talk(found)[2] == ("assistant", "Blue.")
    assert all("weight" not in message for message in found.messages)
    assert found.question == found.messages[:4]
    with pytest.raises(RowError, match=r"messages\[1\] has weight 0.5; known are 0 and 1"):
        read({"messages": [said("user", "a"), said("assistant", "b") | {"weight": 0.5}]})


def test_alpaca_joins_instruction_and_input_by_a_line_break():
    found = read({"instruction": "Translate to French.", "input": "cat", "output": "chat"})
    assert talk(found) == [("user", "Translate to French.\ncat"), ("assistant", "chat")] and learned(found) == ["chat"]
    assert talk(read({"instruction": "Say hi.", "input": "", "output": "Hi!"})) == [
        ("user", "Say hi."),
        ("assistant", "Hi!"),
    ]
    row = {"instruction": "And 3?", "output": "6", "system": "Double it.", "history": [["2?", "4"]]}
    found = read(row)
    assert talk(found)[:3] == [("system", "Double it."), ("user", "2?"), ("assistant", "4")]
    assert learned(found) == ["4", "6"]
    with pytest.raises(RowError, match="history holds 2\\?"):
        read(row | {"history": ["2?"]})


def test_sharegpt_learns_every_answer_behind_its_system_message():
    turns = [("human", "2+2?"), ("gpt", "4"), ("human", "And doubled?"), ("gpt", "8")]
    found = read({"conversations": [{"from": a, "value": b} for a, b in turns], "system": "Be brief."})
    assert talk(found)[0] == ("system", "Be brief.") and learned(found) == ["4", "8"]
    found = read({"conversations": [said("user", "a"), said("assistant", "b")], "system": None})
    assert talk(found) == [("user", "a"), ("assistant", "b")]


def test_an_unknown_role_is_named_with_the_known_ones_and_can_be_mapped():
    row = {"conversations": [{"from": "bing", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}
    with pytest.raises(RowError, match=r"conversations\[0\] is said by 'bing'; known roles: assistant, .*user; add it"):
        read(row)
    assert talk(read(row, roles={**ROLES, "bing": "user"})) == [("user", "Hello"), ("assistant", "Hi")]


def test_a_conversation_without_an_answer_has_nothing_to_learn():
    for row in (
        {"messages": [said("user", "Anyone there?")]},
        {"messages": [said("user", "a"), said("assistant", " ")]},
        {"prompt": "a", "completion": ""},
        {"instruction": "a", "output": "\n"},
        {"text": " "},
    ):
        with pytest.raises(NothingToLearn, match=r"no answer|empty text"):
            read(row)


def test_two_readings_of_one_row_are_asked_about():
    row = {"text": "plain text", "messages": [said("user", "a"), said("assistant", "b")]}
    with pytest.raises(RowError, match=r"messages and text could all be .*; set layout to one of messages, text"):
        read(row)
    assert learned(read(row, layout="messages")) == ["b"]
    assert learned(read(row, layout="text")) == ["plain text"]
    assert learned(read(row | {"text": None})) == ["b"]  # columnar files fill what a row lacks with null
    with pytest.raises(
        RowError, match="the filled columns are text, messages; expected prompt, completion; set columns"
    ):
        read(row, layout="completion")
    with pytest.raises(
        RowError, match="the filled columns are question; expected messages; conversations; instruction"
    ):
        read({"question": "a", "answer": None})


def test_a_prompt_of_text_is_the_users_as_in_sampling():
    for name in ("completion", "response"):
        found = read({"prompt": "6*7?", name: " 42"})
        assert talk(found) == [("user", "6*7?"), ("assistant", " 42")] and not found.bare
    found = read({"prompt": [said("system", "s"), said("user", "a")], "completion": [said("assistant", "b")]})
    assert talk(found) == [("system", "s"), ("user", "a"), ("assistant", "b")]
    with pytest.raises(DataError, match="'prompt' is empty"):
        read({"prompt": " ", "completion": "a"})
    with pytest.raises(RowError, match="completion is a int; expected a list of messages"):
        read({"prompt": "a", "completion": 42})


def test_a_completion_of_several_messages_learns_all_answers_and_a_tool_call_is_one():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    told = [call, said("tool", "3"), said("assistant", "It is 3.")]
    prompt = [said("user", "0+1?"), said("assistant", "1"), said("user", "1+2?")]
    found = read({"prompt": prompt, "completion": told})
    assert found.learned == (False, False, False, True, False, True)
    with pytest.raises(RowError, match="has tools, which are not rendered"):
        read({"prompt": prompt, "completion": told, "tools": [{"name": "add"}]})
    assert read({"prompt": prompt, "completion": told, "tools": []}) == found


def test_a_completion_that_repeats_its_prompt_is_the_whole_conversation():
    whole = [said("user", "Q "), said("assistant", "old"), said("user", "R"), said("assistant", "new")]
    found = read({"prompt": [said("system", "s"), *whole[:3]], "completion": whole})
    assert talk(found) == [("system", "s"), *((m["role"], m["content"]) for m in whole)]
    assert learned(found) == ["new"]
    assert learned(read({"prompt": "Q", "completion": whole})) == ["old", "new"]
    with pytest.raises(RowError, match="completion has turns of the user that prompt has not"):
        read({"prompt": "Another", "completion": whole})


def test_columns_may_have_other_names_and_a_system_message_can_be_set():
    columns = {"prompt": "question", "completion": "answer"}
    found = read({"question": "1+1?", "answer": "#### 2", "text": None}, columns=columns, system="Think.")
    assert talk(found) == [("system", "Think."), ("user", "1+1?"), ("assistant", "#### 2")]
    with pytest.raises(RowError, match="no column 'answer' for completion; it has question"):
        read({"question": "1+1?"}, columns=columns)
    with pytest.raises(RowError, match="two system messages, of `system` and a message; take one out"):
        read({"messages": [said("system", "s"), said("user", "a"), said("assistant", "b")]}, system="Think.")
    with pytest.raises(RowError, match="two system messages, of its column system and `system`"):
        read({"instruction": "a", "output": "b", "system": "s"}, system="Think.")


def test_messages_that_are_none_are_named():
    for messages, words in [
        ([], "messages is an empty list"),
        ("hello", "messages is a str; expected a list"),
        ([{"role": "user"}, said("assistant", "b")], r"messages\[0\] \(user\) has no content"),
        ([{"content": "a"}], r"messages\[0\] has no role"),
        (
            [said("user", [{"type": "image_url"}])],
            "messages\\[0\\] \\(user\\) has a part of type 'image_url'; only text",
        ),
        ([said("user", [1])], "content of type list, not text"),
        ([said("user", "a\ud83d")], "half a character at 1"),
    ]:
        with pytest.raises(DataError, match=words):
            read({"messages": messages})
    found = read({"messages": {"role": ["user", "assistant"], "content": ["a", "b"]}})  # as some parquet files have it
    assert talk(found) == [("user", "a"), ("assistant", "b")]


def test_a_text_is_bare():
    found = read({"text": "plain text"})
    assert found.bare and learned(found) == ["plain text"] and found.question == found.messages


def compare(chosen, rejected, **more):
    return RowReader().comparison({"chosen": chosen, "rejected": rejected, **more})


def test_a_pair_of_transcripts_is_split_before_its_last_answers():
    found = compare(f"{DRILL} Sure, use a diamond bit and go slowly.", f"{DRILL} Sure, press harder.")
    asked = [
        ("user", "My drill slips on tile. My Assistant: a cheap bit. Any tips?"), ("assistant", "Which tile is it?"),
        ("user", "Porcelain."),
    ]  # fmt: skip
    assert talk(found.chosen) == [*asked, ("assistant", "Sure, use a diamond bit and go slowly.")]
    assert talk(found.rejected) == [*asked, ("assistant", "Sure, press harder.")]
    assert found.chosen.learned == found.rejected.learned == (False, False, False, True)
    answers = (" Sure, use a diamond bit and go slowly.", " Sure, press harder.")
    assert compare(*answers, prompt=DRILL, response=answers[0]) == found
    assert compare(*(DRILL + answer for answer in answers), prompt=DRILL) == found
    assert RowReader(columns={"messages": "chosen"}).conversation({"chosen": DRILL + answers[0]}).learned[1::2] == (
        True,
        True,
    )


def test_transcripts_that_are_no_pair_are_refused():
    with pytest.raises(RowError, match="differ before their last messages: they answer different questions"):
        compare(
            "\n\nHuman: Plan a picnic.\n\nAssistant: Where?\n\nHuman: The lake.\n\nAssistant: Take a boat.",
            "\n\nHuman: Plan a picnic.\n\nAssistant: When?\n\nHuman: Noon.\n\nAssistant: Take hats.",
        )
    with pytest.raises(NothingToLearn, match="an empty answer"):
        compare(f"{WREN} Wren.", WREN)
    with pytest.raises(NothingToLearn, match="chosen and rejected are the same"):
        compare(f"{WREN} Wren.", f"{WREN} Wren. ")
    with pytest.raises(RowError, match="two turns of Human in a row"):
        compare(f"\n\nHuman: a{WREN} b", f"{WREN} b")
    with pytest.raises(RowError, match="rejected goes on with turns of its own"):
        compare(" Wren.", " Owl.\n\nHuman: More.\n\nAssistant: Hawk.", prompt=WREN)
    with pytest.raises(NothingToLearn, match="no answer of the assistant at the end"):
        compare(f"{WREN} Wren.\n\nHuman: a", f"{WREN} Wren.\n\nHuman: b")


def test_pairs_of_messages_with_and_without_a_prompt():
    asked, good, bad = said("user", "Sky?"), said("assistant", "Blue."), said("assistant", "Green.")
    found = compare([asked, good], [asked, bad])
    assert talk(found.chosen) == [("user", "Sky?"), ("assistant", "Blue.")] and found.margin is None
    assert found.chosen.question == found.rejected.question == (asked,)
    assert compare([good], [bad], prompt=[asked]) == found
    assert compare("Blue.", "Green.", prompt="Sky?") == found
    assert compare([good], [bad], prompt="Sky?") == found
    # The whole conversation beside its prompt: the question is not asked twice.
    assert compare([asked, good], [asked, bad], prompt="Sky?") == found
    with pytest.raises(RowError, match="differ before their last messages"):
        compare([asked, good, asked, good], [asked, bad, asked, bad])
    with pytest.raises(RowError, match="chosen is a bare text, and there is no prompt"):
        compare("Blue.", "Green.")
    with pytest.raises(RowError, match="no rejected; a preference has the columns chosen and rejected"):
        compare("Blue.", None)


def test_a_margin_is_a_number():
    assert compare("a", "b", prompt="c", margin=0.5).margin == 0.5
    assert compare("a", "b", prompt="c", margin="3").margin == 3.0  # text, as CSV has it
    assert compare("a", "b", prompt="c", margin="").margin is None
    for margin in (True, "much", float("nan"), [1]):
        with pytest.raises(RowError, match="not a number"):
            compare("a", "b", prompt="c", margin=margin)


@pytest.mark.parametrize(("label", "good"), [(True, True), (False, False), (1, True), ("False", False), ("1", True)])
def test_a_judged_answer_is_good_or_bad(label, good):
    found = RowReader().judgement({"prompt": "a", "completion": "b", "label": label})
    assert found.good is good and talk(found.conversation) == [("user", "a"), ("assistant", "b")]


def test_only_the_last_answer_is_judged_and_a_label_must_be_one():
    messages = [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")]
    assert learned(RowReader().judgement({"messages": messages, "label": True}).conversation) == ["d"]
    reader = RowReader(columns={"label": "liked"})
    assert reader.judgement({"prompt": "a", "completion": "b", "liked": True, "label": None}).good
    for label in (None, 2, "good", 0.5):
        with pytest.raises(RowError, match=r"label is .*, not true or false"):
            RowReader().judgement({"prompt": "a", "completion": "b", "label": label})
    with pytest.raises(NothingToLearn):
        RowReader().judgement({"prompt": "a", "completion": "", "label": True})


def test_content_in_parts_is_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = read({"messages": [said("user", parts), said("assistant", "c")]})
    assert talk(found) == [("user", "ab"), ("assistant", "c")]


def test_columns_are_reached_into_as_in_openais_preferences_and_verls_rows():
    row = {
        "input": {"messages": [said("user", "Hi")]},
        "preferred_output": [said("assistant", "Hello")],
        "non_preferred_output": [said("assistant", "What")],
    }
    columns = {"prompt": "input.messages", "chosen": "preferred_output", "rejected": "non_preferred_output"}
    found = RowReader(columns=columns).comparison(row)
    assert talk(found.chosen) == [("user", "Hi"), ("assistant", "Hello")]
    assert talk(found.rejected)[-1] == ("assistant", "What")
    verl = {"prompt": {"role": ["user"], "content": ["6*7?"]}, "extra_info": {"answer": "6*7=42"}}
    found = RowReader(columns={"completion": "extra_info.answer"}).conversation(verl)
    assert talk(found) == [("user", "6*7?"), ("assistant", "6*7=42")]
    with pytest.raises(
        RowError, match=r"no column 'extra_info.anser' for completion \(near: extra_info.answer\); it has prompt"
    ):
        RowReader(columns={"completion": "extra_info.anser"}).conversation(verl)


def test_preferences_in_alpacas_and_sharegpts_layout():
    row = {"instruction": "Translate.", "input": "cat", "chosen": "chat", "rejected": "chien"}
    found = RowReader().comparison(row)
    assert talk(found.chosen) == [("user", "Translate.\ncat"), ("assistant", "chat")]
    row = {
        "conversations": [
            {"from": "human", "value": "2?"},
            {"from": "gpt", "value": "4"},
            {"from": "human", "value": "3?"},
        ],
        "chosen": {"from": "gpt", "value": "6"},
        "rejected": {"from": "gpt", "value": "7"},
    }
    found = RowReader().comparison(row)
    assert talk(found.rejected) == [("user", "2?"), ("assistant", "4"), ("user", "3?"), ("assistant", "7")]
    assert learned(found.chosen) == ["6"]


@pytest.mark.parametrize(
    ("cell", "asked"),
    [
        ("Hi", [("user", "Hi")]),
        (WREN, [("user", "Name a bird.")]),
        (DRILL, [("user", "My drill slips on tile. My Assistant: a cheap bit. Any tips?"), ("assistant", "Which tile is it?"),
                 ("user", "Porcelain.")]),
        ([{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}], [("user", "2+2?")]),
        ([said("system", "Brief."), said("user", "a"), said("assistant", "b")], [("system", "Brief."), ("user", "a")]),
    ],
)  # fmt: skip
def test_a_prompt_of_any_layout_ends_where_the_assistant_is_to_speak(cell, asked):
    found = question_in(cell, "prompt", drop_answer=True)
    assert [(message["role"], message["content"]) for message in found] == asked


def test_an_answer_at_the_end_of_a_prompt_is_asked_about():
    whole = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    with pytest.raises(DataError, match=r"ends with a message of 'assistant'; .*; last_answer=drop leaves it out"):
        question_in(whole, "conversations", drop_answer=False)
    with pytest.raises(DataError, match="'prompt' ends with a message of 'nobody'"):
        question_in([said("assistant", "Hi")], "prompt", drop_answer=True)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"instruction": {"text": "a"}, "output": "b"}, "instruction is a dict, not text"),
        ({"instruction": "a", "input": 5, "output": "b"}, "input is a int, not text"),
        ({"instruction": "a", "output": "b", "history": 5}, "history holds 5; expected pairs of texts"),
    ],
)
def test_what_alpaca_rows_hold_must_be_text(row, words):
    with pytest.raises(RowError, match=words):
        read(row)


def test_a_margin_beyond_floats_is_no_number():
    with pytest.raises(RowError, match="margin is 1000"):
        RowReader().comparison({"prompt": "c", "chosen": "a", "rejected": "b", "margin": 10**400})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "completion": "b\ud800"},
        {"text": "\ud800"},
        {"instruction": "\ud800", "output": "b"},
        {"messages": [said("user", "a"), said("assistant", "\ud800")]},
        {"messages": "\n\nHuman: a\ud800\n\nAssistant: b"},
    ],
)
def test_half_a_character_is_no_text_whatever_the_layout(row):
    with pytest.raises(DataError, match="has half a character at"):
        read(row)


def test_an_endless_role_is_shown_in_part():
    with pytest.raises(RowError) as told:
        read({"messages": [said("x" * 5000, "a")]})
    assert len(str(told.value)) < 400 and len(told.value.reason) < 120


def test_messages_as_json_text_are_messages_and_printed_ones_an_error():
    asked, said = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
    row = {"messages": json.dumps(asked + said)}
    assert RowReader().conversation(row) == RowReader().conversation({"messages": asked + said})
    pair = {
        "prompt": json.dumps(asked),
        "chosen": json.dumps(said),
        "rejected": json.dumps([{**said[0], "content": "b"}]),
    }
    assert [one["content"] for one in RowReader().comparison(pair).chosen.messages] == ["q", "a"]
    assert question_in(json.dumps(asked), "prompt", drop_answer=False) == tuple(asked)
    assert question_in(json.dumps([{"from": "human", "value": "q"}]), "prompt", drop_answer=False) == tuple(asked)
    with pytest.raises(
        DataError, match=r"'prompt' holds messages as text that is no JSON .*; write them with json.dumps"
    ):
        question_in(str(asked), "prompt", drop_answer=False)
    words = '[{"role": "user"}] is what?'
    assert question_in(words, "prompt", drop_answer=False) == ({"role": "user", "content": words},)
    text = json.dumps(said)  # asked for by a text, it is what the answer is
    assert RowReader().conversation({"prompt": "q", "completion": text}).messages[1]["content"] == text


def test_an_answer_that_answers_nothing_is_named():
    said = {"role": "assistant", "content": "Hello!"}
    rest = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    with pytest.raises(RowError, match=r"begins with an answer of the assistant, which answers nothing; .*weight 0"):
        RowReader().conversation({"messages": [said, *rest]})
    found = RowReader().conversation({"messages": [{**said, "weight": 0}, *rest]})
    assert found.learned == (False, False, True)
    with pytest.raises(RowError, match="an answer alone, and no prompt that it answers"):
        RowReader().comparison({"chosen": [said], "rejected": [{**said, "content": "No."}]})
