"""Prompts that are already in a chat template: one user marker in the end, whatever model they are for."""

import json

import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import ColumnsConfig, DatasetConfig, load_rows
from partita.tasks.prompt import render_prompts

ROPE = {
    "query_id": "q-17",
    "task": "math",
    "prompt": "<｜User｜>A rope of 36 m is cut in 3 equal parts. How long is one?\nPut the final answer in \\boxed{}."
    "<｜Assistant｜><think>\n",
    "solutions": ["\\boxed{12}", "\\boxed{12.0}"],
}
KNOWN = (
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}"
    "<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
OTHER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def show(tmp_path):
    def show(template, rows=(ROPE,), **keys):
        (tmp_path / "ropes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        config = DatasetConfig(path=str(tmp_path / "ropes.jsonl"), columns=ColumnsConfig(answer=None), **keys)
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = template
        tokenizer.add_special_tokens({"additional_special_tokens": ["<｜User｜>", "<｜Assistant｜>"]})
        return render_prompts(load_rows(config, seed=1).rows, tokenizer, config, context=999)

    return show


def test_a_model_that_knows_the_markers_is_asked_with_the_text_as_it_is(show):
    found = show(KNOWN)
    assert found.prompts[0].text == ROPE["prompt"]
    assert "1 prompts are in this model's chat template already: used as they are" in found.notes
    assert found.prompts[0].row == ROPE  # solutions and all, for the reward


def test_a_model_that_does_not_is_asked_with_the_users_words_and_thinking_stays_on(show):
    found = show(OTHER)
    words = "A rope of 36 m is cut in 3 equal parts. How long is one?\nPut the final answer in \\boxed{}."
    assert found.prompts[0].text == f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert "1 prompts are in another chat template: shown in this model's, once" in found.notes


@pytest.mark.parametrize("template", [KNOWN, OTHER])
def test_there_is_one_user_marker(show, template):
    text = show(template).prompts[0].text
    assert text.count("<｜User｜>") + text.count("<|im_start|>user") == 1
    assert text.count("<think>") == 1


def test_a_prompt_over_the_limit_is_left_out_and_counted_not_cut(show):
    short = {**ROPE, "prompt": "<｜User｜>Hi<｜Assistant｜>"}
    found = show(KNOWN, [ROPE, short], max_length=60)
    assert [prompt.text for prompt in found.prompts] == [short["prompt"]]
    assert any(note.startswith("1 of 2 prompts left out: over 60 tokens") for note in found.notes)
