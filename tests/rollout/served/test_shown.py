"""Tools of a client: in the template's own way where it has one, in plain messages where not."""

from talking import CHATML, SPECIAL, chat_with, shown

from partita.rollout.served.shown import Showings
from partita.tasks.tools.calls import FORMATS

KNOWS = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}</tools>{% endif %}"
    + CHATML.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.a }}]{% endfor %}",
    )
)
SPECIAL[KNOWS] = SPECIAL[CHATML]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
HI = {"role": "user", "content": "Hi"}
CALLED = {
    "role": "assistant", "content": "So:",
    "tool_calls": [{"type": "function", "id": "c", "function": {"name": "add", "arguments": {"a": 1}}}],
}  # fmt: skip
RESULT = {"role": "tool", "content": "2", "tool_call_id": "c"}
ASKS = "<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_knows_tools() -> None:
    chat = chat_with(KNOWS, "<|im_end|>")
    made = Showings(FORMATS["hermes"]).of(chat, [TOOL])
    assert shown(chat, made.opening([HI, CALLED, RESULT])) == (
        "<tools>add </tools><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSo:[add 1]<|im_end|>\n"
        f"<|im_start|>tool\n2{ASKS}"
    )
    assert shown(chat, made.reply(list(chat.stop_ids), [RESULT])) == f"\n<|im_start|>tool\n2{ASKS}"


def test_without_tools_nothing_is_added() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    showings = Showings(FORMATS["hermes"])
    assert showings.of(chat, []).opening([HI]) == chat.opening([HI])
    assert showings.of(chat, []) is showings.of(chat, [])


def test_a_template_that_knows_no_tools() -> None:
    chat = chat_with(CHATML, "<|im_end|>")
    text = shown(chat, Showings(FORMATS["hermes"]).of(chat, [TOOL]).opening([HI, CALLED]))
    assert text.startswith("<|im_start|>system\n") and '"name": "add"' in text
    assert text.endswith(f'So:\n<tool_call>{{"name": "add", "arguments": {{"a": 1}}}}</tool_call>{ASKS}')
