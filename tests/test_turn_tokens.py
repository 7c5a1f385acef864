"""A turn from template to training row: what is trained is what the template would have written, its end included once."""

import asyncio

import pytest
from chains import reciter
from tiny_model import TEMPLATE, byte_tokenizer

from partita.engine.api import Sampling
from partita.engine.local import LocalEngine
from partita.models.load import find_stop_ids
from partita.records import Group
from partita.rollout.episodes import Setting, play
from partita.rollout.workflow import SingleTurn
from partita.tasks.dataset import TaskRow
from partita.tasks.prompt import render_prompts
from partita.tasks.reward import RewardConfig, RewardRuntime
from partita.tasks.settings import DatasetConfig
from partita.train.batch import collate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_3 = (
    "<|bos|>{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
# name -> (template, its special tokens, end of turn, what the template writes after the end of a turn)
TEMPLATES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", "\n"),
    "llama 3, BOS in the template": (LLAMA_3, ["<|bos|>", "<|start|>", "<|end|>", "<|eot_id|>"], "<|eot_id|>", ""),
    "plain roles": (TEMPLATE, [], "<eos>", ""),
}
QUESTION = {"role": "user", "content": "40 + 2?"}
ANSWER = {"role": "assistant", "content": "42"}


def tokenizer_of(name: str):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template, special, *_ = TEMPLATES[name]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    if "<|bos|>" in special:
        tokenizer.bos_token = "<|bos|>"
    return tokenizer


def turn(tokenizer, end: str) -> Group:
    """The question as a prompt, answered by a model that writes 42 and the end of its turn."""
    row = TaskRow(uid="q", messages=(QUESTION,), answer="42", row={"question": "40 + 2?"})
    rendered = render_prompts([row], tokenizer, DatasetConfig(path="rows"), context=256, reserve=16).prompts
    four, two, stop = (tokenizer.convert_tokens_to_ids(t) for t in ("4", "2", end))
    model = reciter(len(tokenizer), {rendered[0].ids[-1]: four, four: two, two: stop})
    engine = LocalEngine(model, tokenizer, slots=1, context=256)

    async def right(response: str, answer: str) -> float:
        return float(response == answer)

    sampling = Sampling(16, stop_ids=find_stop_ids(tokenizer, ()))
    setting = Setting(engine, SingleTurn(), RewardRuntime(RewardConfig(), [right]), sampling, seed=0, stream=0)
    try:
        return asyncio.run(play(setting, [(0, rendered[0])], 1))[0]
    finally:
        engine.close()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_trained_row_is_the_rendered_conversation_up_to_the_end_of_turn(name: str) -> None:
    tokenizer, (*_, end, after) = tokenizer_of(name), TEMPLATES[name]
    group = turn(tokenizer, end)
    [[row]] = collate([group], seed=1, version=0).rows
    whole = tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=True, return_dict=False)
    assert row.ids + tokenizer(after, add_special_tokens=False)["input_ids"] == whole
    assert tokenizer.convert_ids_to_tokens(row.ids[-1]) == end
    assert row.trained[-1]
    assert sum(row.trained) == 3  # 4, 2 and the end of the turn: no header of a next turn
    sampled_from = row.ids[: row.trained.index(True)]
    assert sampled_from == list(group.prompt.ids)
    assert tokenizer.decode(whole[len(sampled_from) :]).startswith("42" + end)
    [sample] = group.samples
    assert (sample.text, sample.stop_reason, sample.reward) == ("42", "stop", 1.0)


def test_a_beginning_that_the_template_writes_stands_once() -> None:
    tokenizer = tokenizer_of("llama 3, BOS in the template")
    [[row]] = collate([turn(tokenizer, "<|eot_id|>")], seed=1, version=0).rows
    assert row.ids.count(tokenizer.bos_token_id) == 1
    assert row.ids[0] == tokenizer.bos_token_id
