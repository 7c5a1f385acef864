"""The slot cache alone: growth, copies, moves; attention over ragged slots against a full softmax written out."""

import math

import pytest
import torch

from partita.engine.cache import DecodeLayout, Prefix, SharedLayout, SlotCache
from partita.engine.scheduler import Moves
from partita.models.attention import Rule


def _prefix(length: int, value: float) -> Prefix:
    """Two layers with different head widths; every position holds its own number."""
    k = torch.arange(length, dtype=torch.float64).view(1, length, 1) + value
    return Prefix(
        {0: (k.expand(2, -1, 4), -k.expand(2, -1, 4)), 3: (k.expand(1, -1, 6), k.expand(1, -1, 2))}, torch.zeros(1)
    )


@pytest.fixture
def random():
    """Normal numbers [*shape], the same in every test."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def _token(rows: int, heads: int, width: int, value: float) -> torch.Tensor:
    return torch.full((rows, heads, 1, width), value, dtype=torch.float64)


def test_prefixes_are_copied_grown_and_moved():
    cache = SlotCache(slots=10, context=300)
    cache.reserve(2, 5)
    cache.write(0, 2, _prefix(3, 10.0))
    cache.reserve(3, 70)  # more rows and longer ones: what is there must stay
    cache.write(2, 1, _prefix(66, 100.0))
    cache.move(Moves((2,), (0,), 2))
    call, _ = cache.step([66, 3], torch.device("cpu"))
    keys, values = call.update(_token(2, 2, 4, 5.0), _token(2, 2, 4, 6.0), 0)
    assert keys.shape == values.shape == (2, 2, 67, 4)
    assert keys[0, 1, [0, 65, 66], 2].tolist() == [100, 165, 5]
    assert keys[1, 0, :5, 0].tolist() == [10, 11, 12, 5, 0]
    assert values[1, 1, :4, 3].tolist() == [-10, -11, -12, 6]
    keys, values = call.update(_token(2, 1, 6, 7.0), _token(2, 1, 2, 8.0), 3)
    assert (keys.shape[-1], values.shape[-1]) == (6, 2)
    assert call.get_mask_sizes(1) == (67, 0) and call.get_seq_length() == 66


def test_capacity_never_passes_its_limits_and_grows_in_steps():
    cache = SlotCache(slots=10, context=100)
    cache.reserve(3, 20)
    assert (cache.rows, cache.length) == (8, 64)
    cache.reserve(9, 65)
    assert (cache.rows, cache.length) == (10, 100)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_decode_attention_is_a_softmax_over_each_slots_own_keys(random, window, softcap, sinks):
    batch, heads, kv_heads, end, width = 3, 4, 2, 7, 8
    q, k, v = random(batch, heads, 1, width), random(batch, kv_heads, end, width), random(batch, kv_heads, end, width)
    sinks_H = random(heads) if sinks else None
    positions = [6, 0, 4]
    layout = DecodeLayout(torch.tensor(positions), end, ragged=True)
    out = layout.attend(q, k, v, Rule(0.3, softcap, window, sinks_H))
    assert out.shape == (batch, 1, heads, width)
    for b, position in enumerate(positions):
        first = 0 if window is None else max(0, position - window + 1)
        for h in range(heads):
            scores = [0.3 * float(q[b, h, 0] @ k[b, h // 2, i]) for i in range(first, position + 1)]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            total = sum(math.exp(score) for score in scores)
            total += 0 if sinks_H is None else math.exp(float(sinks_H[h]))
            expected = sum(math.exp(score) / total * v[b, h // 2, first + i] for i, score in enumerate(scores))
            assert torch.allclose(out[b, 0, h], expected, atol=1e-12)


@pytest.mark.parametrize("window", [None, 3, 6])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_prompt_that_is_held_once_gives_what_a_copy_of_it_in_every_slot_gives(random, window, softcap, sinks):
    heads, kv_heads, width, wide, end = 4, 2, 8, 6, 5
    lengths, group_of_row = [4, 7], [1, 0, -1, 1, 1]  # two prompts; the third slot follows none
    own = [4, 0, 3, 2, 4]  # the position of each slot's token among its own
    prefixes = [(random(kv_heads, n, width), random(kv_heads, n, wide)) for n in lengths]
    q = random(5, heads, 1, width)
    k, v = random(5, kv_heads, end, width), random(5, kv_heads, end, wide)
    rule = Rule(0.3, softcap, window, random(heads) if sinks else None)
    before = [lengths[g] if g >= 0 else 0 for g in group_of_row]

    shared = SharedLayout(group_of_row, before, torch.tensor(own), end)
    longest = max(lengths)
    shared.held = tuple(
        torch.stack([torch.nn.functional.pad(pair[i], (0, 0, 0, longest - pair[i].shape[1])) for pair in prefixes]) for i in (0, 1)
    )  # fmt: skip
    out = shared.attend(q, k, v, rule)
    assert out.shape == (5, 1, heads, wide)
    for b, group in enumerate(group_of_row):
        whole = [
            torch.cat([*([prefixes[group][i]] if group >= 0 else []), x[b]], 1)[None] for i, x in enumerate((k, v))
        ]
        position = before[b] + own[b]
        alone = DecodeLayout(torch.tensor([position]), whole[0].shape[2], ragged=True)
        torch.testing.assert_close(out[b : b + 1], alone.attend(q[b : b + 1], *whole, rule), rtol=0, atol=1e-12)


def test_held_prompts_are_laid_side_by_side_and_forgotten_with_their_last_slot():
    cache, cpu = SlotCache(slots=10, context=300), torch.device("cpu")
    cache.reserve(3, 1)
    first, second = (1,) * 3, (2,) * 5
    cache.follow(0, 2, first, _prefix(3, 10.0))
    cache.hold()
    cache.follow(2, 1, second, _prefix(5, 100.0))
    cache.hold()
    call, layout = cache.step([3, 4, 5], cpu)
    assert call.get_seq_length() == 5
    call.update(_token(3, 2, 4, 5.0), _token(3, 2, 4, 6.0), 0)
    assert isinstance(layout, SharedLayout) and layout.held is not None
    assert layout.held[0][:, 0, :, 0].tolist() == [[10, 11, 12, 0, 0], [100, 101, 102, 103, 104]]
    cache.move(Moves((2,), (0,), 2))  # the third slot takes the first one's place
    assert cache.prompts == [second, first]
    cache.move(Moves((), (), 1))
    cache.write(1, 1, _prefix(4, 7.0))
    cache.hold()
    assert cache.prompts == [second, ()]
    call, layout = cache.step([6, 4], cpu)
    call.update(_token(2, 2, 4, 5.0), _token(2, 2, 4, 6.0), 0)
    assert isinstance(layout, SharedLayout) and layout.held is not None
    assert layout.held[1][:, 0, :, 0].tolist() == [[-100, -101, -102, -103, -104]]
    cache.move(Moves((1,), (0,), 1))
    cache.hold()
    assert isinstance(cache.step([5], cpu)[1], DecodeLayout)
