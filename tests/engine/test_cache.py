"""The slot cache alone: lengths, copies, moves; attention over ragged slots against a full softmax written out."""

import math

import pytest
import torch

from partita.engine.cache import Prefix, SlotCache, stretch
from partita.engine.layouts import DecodeLayout, Groups, SharedLayout
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
    assert keys.shape == values.shape == (2, 2, 80, 4)
    assert keys[0, 1, [0, 65, 66], 2].tolist() == [100, 165, 5]
    assert keys[1, 0, :5, 0].tolist() == [10, 11, 12, 5, 0]
    assert values[1, 1, :4, 3].tolist() == [-10, -11, -12, 6]
    keys, values = call.update(_token(2, 1, 6, 7.0), _token(2, 1, 2, 8.0), 3)
    assert (keys.shape[-1], values.shape[-1]) == (6, 2)
    assert call.get_mask_sizes(1) == (67, 0) and call.get_seq_length() == 66


def test_rows_are_a_sixteenth_longer_than_needed_at_most():
    lengths = {1: 16, 16: 16, 17: 32, 300: 304, 511: 512, 513: 544, 1024: 1024, 1025: 1088, 2049: 2176}
    assert {end: stretch(end, 4096) for end in lengths} == lengths
    assert [stretch(end, 100) for end in (96, 97, 100)] == [96, 100, 100]
    found = [stretch(end, 10**6) for end in range(1, 5000)]
    assert found == sorted(found)
    assert all(end <= length <= end + max(15, end // 16) for end, length in enumerate(found, 1))


def test_rows_are_as_long_as_the_longest_live_slot_needs_and_keep_what_they_hold():
    cache, cpu = SlotCache(slots=4, context=100), torch.device("cpu")
    cache.reserve(3, 71)
    cache.write(0, 2, _prefix(3, 10.0))
    cache.write(2, 1, _prefix(70, 100.0))
    cache.step([3, 3, 70], cpu)
    lengths = [cache.length]
    cache.move(Moves((), (), 2))
    for position in (3, 15, 16, 17):
        call, _ = cache.step([position, position - 1], cpu)
        keys, _ = call.update(_token(2, 2, 4, -5.0), _token(2, 2, 4, -5.0), 0)
        assert keys[0, 1, [0, 1, 2, position], 3].tolist() == [10, 11, 12, -5]
        assert keys[1, 0, [0, 1, position - 1], 0].tolist() == [10, 11, -5]
        lengths.append(cache.length)
    assert lengths == [80, 16, 16, 32, 32]
    cache.reserve(4, 100)
    cache.write(2, 2, _prefix(99, 7.0))
    call, _ = cache.step([18, 17, 99, 99], cpu)
    keys, _ = call.update(_token(4, 2, 4, 1.0), _token(4, 2, 4, 1.0), 0)
    assert keys[0, 1, [0, 2, 15, 16, 17, 18], 3].tolist() == [10, 12, -5, -5, -5, 1]
    assert keys[3, 1, :, 0].tolist() == [*range(7, 106), 1]
    assert keys.untyped_storage().nbytes() == 4 * 100 * 2 * 4 * 8  # no more than all slots at full length


@pytest.mark.parametrize("positions", [[3, 3, 3], [3, 5, 4]])
def test_a_step_reads_the_memory_itself(positions):
    cache = SlotCache(slots=10, context=300)
    cache.reserve(3, 10)
    cache.write(0, 3, _prefix(6, 10.0))
    addresses = []
    for step in range(2):
        call, _ = cache.step([position + step for position in positions], torch.device("cpu"))
        keys, values = call.update(_token(3, 2, 4, 5.0), _token(3, 2, 4, 6.0), 0)
        assert keys.is_contiguous() and values.is_contiguous()
        addresses.append((keys.data_ptr(), values.data_ptr()))
        written = [[position <= at <= position + step for at in range(6)] for position in positions]
        assert keys[:, 1, :6, 2].eq(5).tolist() == values[:, 1, :6, 2].eq(6).tolist() == written
    assert addresses[0] == addresses[1]


def _decode(cache: SlotCache, x_BTHD: torch.Tensor, start: int, held: bool) -> list[torch.Tensor]:
    """What attention of 6 query heads over 2 key heads gives slots that start with `start` tokens, one fewer each, and
    end at T.
    """
    rows, outs = range(len(x_BTHD)), []
    cache.reserve(len(rows), 1 if held else start + 1)
    for row in rows:
        k, v = x_BTHD[row, : start - row].transpose(0, 1).split([2, 2, 6])[:2]
        prompt, prefix = (row,) * (start - row), Prefix({0: (k, v)}, torch.zeros(1))
        cache.follow(row, 1, prompt, prefix) if held else cache.write(row, 1, prefix)
    cache.hold()
    for end in range(start, x_BTHD.shape[1]):
        positions = [end - row for row in rows]
        k, v, q = x_BTHD[list(rows), positions, :, None].split([2, 2, 6], 1)
        call, layout = cache.step(positions, torch.device("cpu"))
        outs.append(layout.attend(q, *call.update(k, v, 0), Rule(0.3, None, None, None)))
    return outs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("held", [False, True])
def test_what_the_memory_held_before_changes_no_bit(random, dtype, held):
    x_BTHD = random(4, 60, 10, 8).to(dtype)
    fresh, used = SlotCache(slots=6, context=200), SlotCache(slots=6, context=200)
    _decode(used, (1e6 * random(6, 190, 10, 8)).to(dtype), 150, held)
    used.move(Moves((), (), 0))
    for mine, theirs in zip(_decode(used, x_BTHD, 20, held), _decode(fresh, x_BTHD, 20, held), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("held", [False, True])
def test_attention_in_bfloat16_is_that_in_float64_up_to_its_rounding(random, held):
    x_BTHD = random(4, 60, 10, 8).to(torch.bfloat16)
    narrow = _decode(SlotCache(slots=6, context=200), x_BTHD, 20, held)
    wide = _decode(SlotCache(slots=6, context=200), x_BTHD.double(), 20, held)
    torch.testing.assert_close(torch.stack(narrow).double(), torch.stack(wide), rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_scaled_products_do_not_read_what_they_overwrite(dtype):
    """The caches hand torch memory that may hold anything."""
    for rows, fan, length in ((2, 1, 3), (96, 3, 80), (4, 24, 500)):
        q, k = torch.ones(rows, fan, 64, dtype=dtype), torch.ones(rows, length, 64, dtype=dtype)
        scores = torch.full((rows, fan, length), torch.nan, dtype=dtype)
        assert scores.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=0.5).eq(32).all()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_decode_attention_is_a_softmax_over_each_slots_own_keys(random, window, softcap, sinks):
    batch, heads, kv_heads, end, width = 3, 4, 2, 7, 8
    q, k, v = random(batch, heads, 1, width), random(batch, kv_heads, end, width), random(batch, kv_heads, end, width)
    sinks_H = random(heads) if sinks else None
    positions = [6, 0, 4]
    layout = DecodeLayout(torch.tensor(positions), full=False)
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
    lengths, group_of_row = [4, 7, 8], [1, 0, -1, 1, 1]  # the third slot follows none, and none the third prompt
    own = [4, 0, 3, 2, 4]  # the position of each slot's token among its own
    prefixes = [(random(kv_heads, n, width), random(kv_heads, n, wide)) for n in lengths]
    q = random(5, heads, 1, width)
    k, v = random(5, kv_heads, end, width), random(5, kv_heads, end, wide)
    rule = Rule(0.3, softcap, window, random(heads) if sinks else None)
    before = [lengths[g] if g >= 0 else 0 for g in group_of_row]

    shared = SharedLayout(Groups(group_of_row, len(lengths), torch.device("cpu")), before, torch.tensor(own))
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
        alone = DecodeLayout(torch.tensor([position]), full=False)
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
