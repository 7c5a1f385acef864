"""The engine on tiny real models: tokens as transformers, log-probs as training, samples whatever the slots."""

import threading
import time
from concurrent.futures import Future

import pytest
import torch

from partita.engine import decoder
from partita.engine.api import Completion, Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.engine.text import decode
from partita.models.attention import ATTENTION, register
from partita.models.packed import PackedModel, weights
from partita.ops.packing import pack
from partita.records import Row

PROMPTS = [tuple(3 + (7 * p + 3 * i) % 40 for i in range(length)) for p, length in enumerate((9, 3, 14, 1, 6))]
WAIT = 60.0


def _packed(lm) -> PackedModel:
    register()
    lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm)


@pytest.fixture
def start(tokenizer):
    """Engines that are closed when the test ends."""
    engines = []

    def make(lm, slots=4, context=64, **options) -> LocalEngine:
        engines.append(LocalEngine(_packed(lm), tokenizer, slots=slots, context=context, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def _results(futures: list[Future[Completion]]) -> list[Completion]:
    return [future.result(WAIT) for future in futures]


def _group(prompt, sampling, serial, n):
    return [Request(prompt, sampling, Draw(11, 0, serial, k)) for k in range(n)]


def _hf_greedy(lm, prompt, new):
    ids = torch.tensor([prompt])
    out = lm.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


def _trainer_logprobs(model, prompt, completion, temperature):
    n = len(completion.ids)
    row = Row(
        ids=[*prompt, *completion.ids],
        trained=[False] * len(prompt) + [True] * n,
        behaviour_logprobs=[0.0] * (len(prompt) + n),
        versions=[-1] * (len(prompt) + n),
    )
    with torch.no_grad():
        return model(pack([[row]], [0]), temperature=temperature).logprobs_T


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3"])
def test_greedy_is_that_of_transformers(tiny, start, family):
    sampling = Sampling(20, temperature=0)  # sliding windows of 5 are crossed in prompts and in completions
    engine = start(tiny(family), slots=3, prefill_tokens=16)
    futures = engine.submit([Request(prompt, sampling, Draw(0, 0, p, 0)) for p, prompt in enumerate(PROMPTS)])
    plain = tiny(family)
    for prompt, completion in zip(PROMPTS, _results(futures), strict=True):
        assert completion.ids == _hf_greedy(plain, prompt, 20)
        assert completion.stop_reason == "length"


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_trainer(tiny, start, family, temperature):
    engine = start(tiny(family))
    sampling = Sampling(15, temperature=temperature, top_k=20)
    futures = engine.submit([r for p, prompt in enumerate(PROMPTS) for r in _group(prompt, sampling, p, 2)])
    trainer = _packed(tiny(family))
    for i, completion in enumerate(_results(futures)):
        expected = _trainer_logprobs(trainer, PROMPTS[i // 2], completion, temperature)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-9)


def test_samples_do_not_depend_on_slots_or_order(tiny, start):
    mixed = [Sampling(7), Sampling(18, temperature=0.8, stop_ids=(9, 12)), Sampling(12, top_p=0.9, min_new_tokens=4)]
    requests = [r for p, prompt in enumerate(PROMPTS) for r in _group(prompt, mixed[p % 3], p, 3)]
    rounds = {slots: _results(start(tiny(), slots=slots, prefill_tokens=20).submit(requests)) for slots in (1, 3, 64)}
    backwards = _results(start(tiny(), slots=3).submit(requests[::-1]))[::-1]
    for other in (rounds[3], rounds[64], backwards):
        assert [c.ids for c in other] == [c.ids for c in rounds[1]]
        assert [c.stop_reason for c in other] == [c.stop_reason for c in rounds[1]]
        assert all(c.logprobs == pytest.approx(d.logprobs, abs=1e-9) for c, d in zip(other, rounds[1], strict=True))
    assert len({c.ids for c in rounds[1][:3]}) == 3  # samples of a group differ
    assert any(c.stop_reason == "stop" for c in rounds[1])


def test_equal_requests_in_float32_give_equal_bits(tiny, start):
    requests = [r for p, prompt in enumerate(PROMPTS) for r in _group(prompt, Sampling(12, stop_ids=(9,)), p, 2)]
    first, second = (_results(start(tiny(dtype=torch.float32)).submit(requests)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("held_from", [5, 1000])
def test_what_an_engine_did_before_changes_no_bit(tiny, start, monkeypatch, held_from):
    monkeypatch.setattr(decoder, "HELD_FROM", held_from)
    fresh, used = (start(tiny(dtype=torch.float32), context=200) for _ in range(2))
    _results(used.submit(_group(PROMPTS[2] * 5, Sampling(120), 9, 6)))
    requests = [r for p, prompt in enumerate(PROMPTS) for r in _group(prompt, Sampling(30, stop_ids=(9,)), p, 2)]
    assert _results(used.submit(requests)) == _results(fresh.submit(requests))


def test_a_prompt_is_computed_once_per_group_and_finished_slots_leave_at_once(tiny, start):
    engine = start(tiny(), slots=4)
    _results(engine.submit(_group(PROMPTS[0], Sampling(6), 0, 6)))  # more than the slots: two wait for the prompt
    stats = engine.stats()
    assert stats.prompt_tokens == len(PROMPTS[0])
    assert stats.tokens == 36
    assert stats.peak_slots == 4
    assert stats.decode_steps == 10  # the first token comes from the prefill: five steps for four, five for two


def test_every_declared_stop_id_stops(tiny, start, tokenizer):
    for seed in range(40):  # a model whose completions end in different ways within three tokens
        lm = tiny(seed=seed)
        engine = start(lm)
        free = _results(engine.submit(_group(PROMPTS[0], Sampling(3), seed, 3)))
        if len({c.ids[1] for c in free} | {c.ids[2] for c in free}) == 6:
            break
    stop_ids = (free[0].ids[2], free[1].ids[2])
    stopped = _results(engine.submit(_group(PROMPTS[0], Sampling(3, stop_ids=stop_ids), seed, 3)))
    assert [c.stop_reason for c in stopped] == ["stop", "stop", "length"]  # although all are as long as allowed
    assert [c.ids for c in stopped] == [c.ids for c in free]
    assert stopped[0].text == decode(tokenizer, free[0].ids[:2])
    assert stopped[2].text == decode(tokenizer, free[2].ids)


def test_stop_strings_keep_the_tokens_and_cut_the_text(tiny, start):
    engine = start(tiny())
    [free] = _results(engine.submit(_group(PROMPTS[2], Sampling(20), 5, 1)))
    stop = free.text[8:10]
    [stopped] = _results(engine.submit(_group(PROMPTS[2], Sampling(20, stop_strings=(stop,)), 5, 1)))
    assert stopped.stop_reason == "stop"
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert len(stopped.logprobs) == len(stopped.versions) == len(stopped.ids) < 20
    [late] = _results(engine.submit(_group(PROMPTS[2], Sampling(20, 18, stop_strings=(stop,)), 5, 1)))
    assert (late.stop_reason, len(late.ids), late.text) == ("stop", 18, stopped.text)


def test_completions_end_at_the_context(tiny, start):
    engine = start(tiny(), context=12)
    short, full, empty = engine.submit(
        [Request(p, Sampling(20), Draw(0, 0, 0, 0)) for p in (PROMPTS[0], PROMPTS[2], ())]
    )
    assert short.result(WAIT).stop_reason == "length"
    assert len(short.result().ids) == 12 - len(PROMPTS[0])
    with pytest.raises(ValueError, match="14 tokens leaves no room in a context of 12"):
        full.result(WAIT)
    with pytest.raises(ValueError, match="without prompt ids"):
        empty.result(WAIT)


def test_new_weights_in_the_middle_of_a_completion(tiny, start):
    old, new = tiny(seed=0), tiny(seed=1)
    engine = start(tiny(seed=0), slots=3, context=512)
    prompt = PROMPTS[0]
    short, *futures = engine.submit([*_group(prompt, Sampling(5), 2, 1), *_group(prompt, Sampling(300), 0, 3)])
    waiting = engine.submit(_group(prompt, Sampling(5), 1, 2))  # the same prompt, started after the update
    short.result(WAIT)
    engine.publish(weights(_packed(new)), version=7)
    trainers = {0: _packed(old), 7: _packed(new)}
    for completion in _results([*futures, *waiting]):
        versions = set(completion.versions)
        assert versions <= {0, 7} and completion.versions[-1] == 7
        assert list(completion.versions) == sorted(completion.versions)
        for version in versions:  # what runs on is computed as if the new weights had read everything before it
            expected = _trainer_logprobs(trainers[version], prompt, completion, 1.0).tolist()
            mine = [i for i, v in enumerate(completion.versions) if v == version]
            got = [completion.logprobs[i] for i in mine]
            assert got == pytest.approx([expected[i] for i in mine], abs=1e-9)
    assert all(set(future.result().versions) == {0, 7} for future in futures[:2])
    assert all(set(future.result().versions) == {7} for future in waiting)


def test_a_kept_prompt_is_not_used_after_new_weights(tiny, start):
    engine = start(tiny(seed=0), slots=1, context=512)
    greedy = Sampling(6, temperature=0)
    samplings = (Sampling(1), Sampling(400), greedy)  # the prompt is kept for the third while the second runs
    first, second, third = engine.submit([Request(PROMPTS[0], s, Draw(0, 0, 0, k)) for k, s in enumerate(samplings)])
    first.result(WAIT)
    engine.publish(weights(_packed(tiny(seed=1))), version=1)
    [fresh] = _results(start(tiny(seed=1)).submit(_group(PROMPTS[0], greedy, 0, 1)))
    assert third.result(WAIT).ids == fresh.ids
    assert set(third.result().versions) == {1}
    assert set(second.result().versions) == {0, 1}
    assert engine.stats().prompt_tokens == 2 * len(PROMPTS[0])


def test_close_aborts_what_is_open(tiny, start):
    engine = start(tiny(), slots=1, context=4096)
    futures = engine.submit(_group(PROMPTS[0], Sampling(4000), 0, 2))
    began = time.monotonic()
    engine.close()
    running, waiting = _results(futures)
    assert time.monotonic() - began < 10
    assert running.stop_reason == waiting.stop_reason == "abort"
    assert len(running.ids) == len(running.logprobs) < 4000
    assert waiting.ids == () and waiting.text == ""
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([])
    engine.close()


def test_a_crash_reaches_every_future_and_later_callers(tiny, start):
    engine = start(tiny(), slots=1)
    poisoned = [(name, torch.full_like(w, torch.nan)) for name, w in weights(_packed(tiny()))]
    engine.publish(poisoned, version=1)
    futures = engine.submit(_group(PROMPTS[0], Sampling(5), 0, 3))
    for future in futures:
        with pytest.raises(FloatingPointError, match="non-finite logits after 0 tokens"):
            future.result(WAIT)
    with pytest.raises(RuntimeError, match="crashed") as caught:
        engine.submit([])
    assert isinstance(caught.value.__cause__, FloatingPointError)


def test_wrong_weights_raise_where_they_are_published(tiny, start):
    engine = start(tiny())
    with pytest.raises(ValueError, match="not given"):
        engine.publish(list(weights(_packed(tiny())))[:-1], version=1)
    with pytest.raises(RuntimeError, match="crashed"):
        engine.publish([], version=2)


def test_a_cancelled_future_gives_its_slot_back(tiny, start):
    engine = start(tiny(), slots=1, context=128)
    long, short = engine.submit([*_group(PROMPTS[0], Sampling(110), 0, 1), *_group(PROMPTS[1], Sampling(2), 1, 1)])
    assert long.cancel()
    assert len(short.result(WAIT).ids) == 2
    assert engine.stats().tokens < 112


def test_publish_from_the_pump_is_refused_instead_of_waiting_for_itself(tiny, start):
    engine = start(tiny())
    seen: list[BaseException] = []
    done = threading.Event()

    def callback(_: Future[Completion]) -> None:
        try:
            engine.publish([], 1)
        except RuntimeError as error:
            seen.append(error)
        done.set()

    engine.submit(_group(PROMPTS[0], Sampling(30), 0, 1))[0].add_done_callback(callback)
    assert done.wait(WAIT)
    assert "callback" in str(seen[0])
