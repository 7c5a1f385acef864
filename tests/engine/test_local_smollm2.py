"""The engine on the embedded pretrained model."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.models.embedded import embedded_folder
from partita.models.load import load_causal_lm

QUESTIONS = ("What is the largest number in this list: {}?", "Write a short story about these numbers: {}")


@pytest.mark.slow
def test_greedy_completions_are_those_of_transformers_token_for_token():
    loaded = load_causal_lm("smollm2-135m", dtype=torch.float32)
    prompts = []
    for p in range(32):
        question = QUESTIONS[p % 2].format(", ".join(str(7 * p + 13 * i) for i in range(1 + p % 9)))
        messages = [{"role": "user", "content": question}]
        rendered = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        prompts.append(tuple(rendered["input_ids"]))
    assert len({len(prompt) for prompt in prompts}) > 8
    engine = LocalEngine(loaded.model, loaded.tokenizer, slots=12, context=loaded.context, prefill_tokens=300)
    sampling = Sampling(32, temperature=0, stop_ids=loaded.stop_ids)
    futures = engine.submit([Request(prompt, sampling, Draw(0, 0, p, 0)) for p, prompt in enumerate(prompts)])
    completions = [future.result(300) for future in futures]
    engine.close()
    plain = AutoModelForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = plain.generate(
        ids, attention_mask=mask, max_new_tokens=32, do_sample=False, eos_token_id=list(loaded.stop_ids), pad_token_id=0
    )
    for completion, expected in zip(completions, out[:, width:].tolist(), strict=True):
        assert list(completion.ids) == expected[: len(completion.ids)]
        assert (completion.stop_reason == "stop") == (completion.ids[-1] in loaded.stop_ids)
        assert completion.stop_reason == "stop" or len(completion.ids) == 32
    assert {completion.stop_reason for completion in completions} == {"stop", "length"}
