"""Static batches through a family's own attention and cache give what the slot cache gives."""

import pytest

from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.models.attention import ATTENTION, register
from partita.models.packed import PackedModel, weights

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
    engine = LocalEngine(PackedModel(tiny(seed=0), kind="plain"), tokenizer, slots=2, context=128)
    futures = engine.submit(
        [Request(p, Sampling(n), Draw(3, 0, n, 0)) for p, n in ((PROMPTS[0], 100), (PROMPTS[1], 90))]
    )
    engine.publish(weights(PackedModel(tiny(seed=1), kind="plain")), version=4)
    for future, n in zip(futures, (100, 90), strict=True):
        completion = future.result(60)
        assert len(completion.ids) == n
        assert completion.versions[-1] == 4
    engine.close()
