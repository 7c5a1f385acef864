"""Static batches through a family's own attention and cache give what the slot cache gives."""

import pytest
import torch

from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.models.attention import ATTENTION, register
from partita.models.packed import PackedModel, weights
from partita.ops.packing import pack
from partita.records import Row

PROMPTS = [(5, 9, 30), (7,), (5, 9, 30, 41, 12, 8), (33, 33)]


@pytest.fixture(scope="module")
def requests():
    samplings = [Sampling(9), Sampling(4), Sampling(14, stop_ids=(11, 20)), Sampling(6, temperature=0)]
    pairs = list(enumerate(zip(PROMPTS, samplings, strict=True)))
    return [Request(prompt, sampling, Draw(3, 0, i, k)) for i, (prompt, sampling) in pairs for k in range(2)]


def _run(lm, tokenizer, requests, kind, padded=True):
    if kind == "packed":
        register()
        lm.set_attn_implementation(ATTENTION)
    engine = LocalEngine(PackedModel(lm, kind=kind, padded=padded), tokenizer, slots=3, context=64)
    completions = [future.result(60) for future in engine.submit(requests)]
    engine.close()
    return completions


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_plain_way_samples_the_same(tiny, tokenizer, requests, family, padded):
    packed = _run(tiny(family), tokenizer, requests, "packed")
    plain = _run(tiny(family), tokenizer, requests, "plain", padded)
    assert [c.ids for c in plain] == [c.ids for c in packed]
    assert [c.stop_reason for c in plain] == [c.stop_reason for c in packed]
    for one, other in zip(plain, packed, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_running_rows_are_computed_anew_with_new_weights(tiny, tokenizer):
    engine = LocalEngine(PackedModel(tiny(seed=0), kind="plain"), tokenizer, slots=3, context=256)
    requests = [Request(PROMPTS[i], Sampling(n), Draw(3, 0, n, 0)) for i, n in enumerate((5, 200, 190))]
    short, *running = engine.submit(requests)
    short.result(60)
    engine.publish(weights(PackedModel(tiny(seed=1), kind="plain")), version=4)
    trainer = PackedModel(tiny(seed=1), kind="plain")
    for request, future in zip(requests[1:], running, strict=True):
        completion = future.result(60)
        assert set(completion.versions) == {0, 4}
        ids = [*request.prompt_ids, *completion.ids]
        trained = [False] * len(request.prompt_ids) + [True] * len(completion.ids)
        row = Row(ids, trained, [0.0] * len(ids), [0] * len(ids))
        with torch.no_grad():
            expected = trainer(pack([[row]], [0]), temperature=1.0).logprobs_T.tolist()
        first = completion.versions.index(4)
        assert completion.logprobs[first:] == pytest.approx(expected[first:], abs=1e-9)
    engine.close()
