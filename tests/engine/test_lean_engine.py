"""The engine over fused layers: prompts of many lengths, slots that come and go, weights that change meanwhile."""

import pytest
import torch

from partita.engine import decoder
from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.fused import fuse
from partita.models.lean import LeanModel
from partita.models.packed import PackedModel, weights

PROMPTS = [tuple(3 + (7 * p + 3 * i) % 40 for i in range(length)) for p, length in enumerate((9, 3, 14, 1, 6))]
NORMS = 1e-4  # the families take their norms in float32, whatever the model's precision is


def completions(model, tokenizer, policy):
    """Two rounds over three slots; before the second the weights are others."""
    engine = LocalEngine(model, tokenizer, slots=3, context=64, prefill_tokens=24)
    sampling, found = Sampling(12, temperature=1.0), []
    for version in range(2):
        requests = [Request(p, sampling, Draw(5, version, s, k)) for s, p in enumerate(PROMPTS) for k in range(2)]
        found += [future.result(60) for future in engine.submit(requests)]
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1.1)
        engine.publish(weights(policy), version + 1)
    engine.close()
    return found


@pytest.mark.parametrize("title", ["Llama, tied embeddings (SmolLM2)", "Mistral, sliding window", "Qwen3"])
def test_completions_are_those_over_the_modules(title, tokenizer):
    register()
    found = []
    for lean in (False, True):
        lm = tiny(title)
        fuse(lm)
        lm.set_attn_implementation(ATTENTION)
        policy = PackedModel(lm)
        twin = PackedModel(tiny(title))
        twin.lm.set_attn_implementation(ATTENTION)
        found.append(completions(LeanModel(policy, torch.float64) if lean else twin, tokenizer, policy))
    plain, fused = found
    assert [one.ids for one in fused] == [one.ids for one in plain]
    assert {len(set(one.versions)) for one in fused} == {1} and {one.versions[0] for one in fused} == {0, 1}
    for mine, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(theirs.logprobs), rtol=0, atol=NORMS)


@pytest.mark.parametrize("title", ["Llama, tied embeddings (SmolLM2)", "Mistral, sliding window"])
def test_prompts_that_are_held_once_change_no_completion(title, tokenizer, monkeypatch):
    """Waves of groups over few slots, some slots leave early, and the weights change while some are half done."""
    register()
    found = []
    for held_from in (10**9, 5):
        monkeypatch.setattr(decoder, "HELD_FROM", held_from)
        lm = tiny(title)
        lm.set_attn_implementation(ATTENTION)
        model = PackedModel(lm)
        engine = LocalEngine(model, tokenizer, slots=5, context=64, prefill_tokens=24)
        requests = [
            Request(prompt, Sampling(4 + 3 * k, temperature=1.0), Draw(5, 0, s, k))
            for s, prompt in enumerate(PROMPTS)
            for k in range(4)
        ]
        futures = engine.submit(requests)
        futures[6].result(60)
        engine.publish(weights(model), 1)
        found.append([future.result(60) for future in futures])
        engine.close()
    copied, held = found
    assert [one.ids for one in held] == [one.ids for one in copied]
    for mine, theirs in zip(held, copied, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(theirs.logprobs), rtol=0, atol=1e-5)
