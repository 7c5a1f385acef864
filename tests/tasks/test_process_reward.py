"""A process reward model: its values are those of its own class, and stand at the policy's tokens where steps end."""

import asyncio

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForTokenClassification, PreTrainedTokenizerFast

from partita.models.load import ModelLoadError
from partita.models.process import load_process_model
from partita.models.quiet import quiet
from partita.records import Prompt
from partita.tasks.process_reward import ProcessReward
from partita.tasks.reward import Answer, RewardConfig, RewardRuntime, RewardSetupError

PROMPT = Prompt("1", (1,), "<user>6*7?", {}, ({"role": "user", "content": "6*7?"},))
BOS = 257


def byte_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<eos>": 256, "<bos>": BOS}
    backend = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>")


def saved(folder, labels=2) -> str:
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, num_labels=labels,
        )  # fmt: skip
        LlamaForTokenClassification(config).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    return str(folder)


def decode(ids) -> str:
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def answer(text: str) -> Answer:
    return Answer(PROMPT, text, (*text.encode(), 256))


def alone(path: str, text: str, at: list[int]) -> list[float]:
    """By transformers: a batch of one without padding."""
    with quiet(), torch.no_grad():
        hf = LlamaForTokenClassification.from_pretrained(path)
        logits = hf(input_ids=torch.tensor([[BOS, *text.encode()]])).logits[0]
    values = logits[:, 0].sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)[:, 1]
    return values[at].tolist()


def judged(path: str, answers: list[Answer], **keys):
    runtime = RewardRuntime(RewardConfig(process_model=path, **keys))
    runtime.put_in(ProcessReward(load_process_model(path), decode, keys.get("process_steps", "lines"), "\n"))

    async def run():
        return await asyncio.gather(*(runtime.score(one.prompt, one.text, one.ids, "stop") for one in answers))

    try:
        assert runtime.names == ["process_model"] and runtime.judge is not None
        return asyncio.run(run())
    finally:
        runtime.close()


@pytest.mark.parametrize("labels", [1, 2])
def test_values_are_those_of_the_model_s_own_class(tmp_path, labels):
    path = saved(tmp_path / "prm", labels)
    texts = ["6*7=42\n\nso 42", "one", "ab\nc\n"]
    read = ["6*7?6*7=42\nso 42\n", "6*7?one\n", "6*7?ab\nc\n"]  # a separator behind every step
    at = [[11, 17], [8], [7, 9]]
    ends = [[7, 13], [3], [2, 5]]  # of the policy's own tokens
    found = judged(path, [answer(text) for text in texts], process_model_weight=2.0)
    for scored, text, places, tokens in zip(found, read, at, ends, strict=True):
        values = alone(path, text, places)
        assert [token for token, _ in scored.step_rewards] == tokens
        assert [value for _, value in scored.step_rewards] == pytest.approx([2 * value for value in values], abs=1e-5)
        assert scored.reward == pytest.approx(2 * sum(values) / len(values), abs=1e-5)
        assert scored.parts == {"process_model": pytest.approx(scored.reward / 2)}


def test_what_cannot_be_read_is_an_error_of_that_sample(tmp_path):
    path = saved(tmp_path / "prm")
    long, empty, good = judged(path, [answer("a" * 80), answer("\n"), answer("ok")])
    assert long.error == "process_model: 86 tokens of prompt and steps; it reads 64 at most"
    assert empty.error == "process_model: the response has no step"
    assert good.status == "ok"


def test_other_models_are_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="3 labels; a process reward model has two"):
        load_process_model(saved(tmp_path / "three", 3))
    folder = tmp_path / "causal"
    LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=8).save_pretrained(folder)
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM gives no value for each token"):
        load_process_model(str(folder))


def test_settings_that_cannot_work(tmp_path):
    with pytest.raises(ValueError, match=r"process_steps='\(' is no regular expression"):
        RewardConfig(process_model="m", process_steps="(")
    with pytest.raises(ValueError, match="process_separator is empty"):
        RewardConfig(process_model="m", process_separator="")
    assert RewardConfig(process_model="m").gives_steps and RewardConfig(process_model="m").complete
    runtime = RewardRuntime(RewardConfig(process_model="m"))
    with pytest.raises(RewardSetupError, match=r"reward.process_model=m was not loaded"):
        asyncio.run(runtime.score(PROMPT, "a", (1,), "stop"))
    runtime.close()
