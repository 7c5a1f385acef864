"""The slot cache alone: growth, copies, moves; attention over ragged slots against a full softmax written out."""

import math

import pytest
import torch

from partita.engine.cache import DecodeLayout, Prefix, SlotCache
from partita.engine.scheduler import Moves
from partita.models.attention import Rule


def _prefix(length: int, value: float) -> Prefix:
    """Two layers with different head widths; every position holds its own number."""
    k = torch.arange(length, dtype=torch.float64).view(1, length, 1) + value
    return Prefix(
        {0: (k.expand(2, -1, 4), -k.expand(2, -1, 4)), 3: (k.expand(1, -1, 6), k.expand(1, -1, 2))}, torch.zeros(1)
    )


def _token(rows: int, heads: int, width: int, value: float) -> torch.Tensor:
    return torch.full((rows, heads, 1, width), value, dtype=torch.float64)


def test_prefixes_are_copied_grown_and_moved():
    cache = SlotCache(slots=10, context=300)
    cache.reserve(2, 5)
    cache.write(0, 2, _prefix(3, 10.0))
    cache.reserve(3, 70)  # more rows and longer ones: what is there must stay
    cache.write(2, 1, _prefix(66, 100.0))
    cache.move(Moves((2,), (0,), 2))
    call = cache.call(torch.tensor([66, 3]), 67)
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
def test_decode_attention_is_a_softmax_over_each_slots_own_keys(window, softcap, sinks):
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

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
