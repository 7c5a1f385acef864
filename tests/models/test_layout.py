"""Packed attention against plain masked attention: every rule, every way a micro-batch can lie, and what it keeps."""

import itertools
import random

import pytest
import torch

from partita.models import blocks, layout
from partita.models.attention import Rule
from partita.models.blocks import cuts, plan
from partita.models.flex import FlexMasks, honours
from partita.models.layout import PackedLayout
from partita.ops.packing import pack
from partita.records import Row

CPU = torch.device("cpu")


def row(ids):
    return Row(list(ids), [False] * len(ids), [0.0] * len(ids), [0] * len(ids))


def packed_of(groups, root=0):
    """groups: (prefix length after the root, own lengths of its rows); no two rows of a group start with the same own token."""
    samples, of = [], []
    for g, (before, own) in enumerate(groups):
        prefix = [*range(500, 500 + root), *(1000 * (g + 1) + i for i in range(before))]
        for r, count in enumerate(own):
            samples.append([row([*prefix, *[100 * r + i for i in range(count)]])])
            of.append(g)
    return pack(samples, of)


# ragged rows and one that adds nothing; one long row; no prefix; groups of one; two blocks after one prefix
GROUPS = [(5, [3, 7, 0, 2]), (30, [90, 1]), (0, [5, 9]), (4, [1]), (20, [70, 64, 4, 3, 3])]


def plain(packed, q, k, v, rule):
    """Every query against every key under one mask, in the layout of `Layout.attend`."""
    segment_N, after_N = torch.full_like(packed.ids_N, -1), torch.full_like(packed.ids_N, -1)
    for g, span in enumerate(packed.prefixes):
        segment_N[span.start : span.start + span.length] = after_N[span.start : span.start + span.length] = g
    for r, (span, g) in enumerate(zip(packed.rows, packed.prefix_of_row, strict=True)):
        segment_N[span.start : span.start + span.length] = 1000 + r
        after_N[span.start : span.start + span.length] = g
    behind = packed.position_N[:, None] - packed.position_N
    related = (segment_N[:, None] == segment_N) | (after_N[:, None] == segment_N) | (segment_N == -1)
    allowed = related & (behind >= 0)
    if rule.window is not None:
        allowed &= behind < rule.window
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * rule.scaling
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.masked_fill(~allowed, -torch.inf)
    if rule.sinks_H is not None:
        scores = torch.cat([scores, rule.sinks_H.view(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1)], -1)
    return (scores.softmax(-1)[..., : k.shape[2]] @ v).transpose(1, 2)


def inputs(packed, dtype=torch.float64, heads=6, groups=2, width=8, value_width=8):
    generator, tokens = torch.Generator().manual_seed(0), len(packed.ids_N)
    shapes = (heads, width), (heads // groups, width), (heads // groups, value_width)
    return [
        torch.randn(1, tokens, h, d, generator=generator, dtype=torch.float64)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for h, d in shapes
    ]


@pytest.fixture(params=["apart", "joined", "cut"])
def steps(request, monkeypatch):
    """At sizes of a test: long rows in many steps and each prefix in its own block, everything in few blocks, or these in many
    steps; heads in two slabs.
    """
    monkeypatch.setattr(blocks, "HEADS", 4)
    for module in (blocks, layout) if request.param != "joined" else ():
        monkeypatch.setattr(module, "PAIRS", 1500 if request.param == "apart" else 4000)
        monkeypatch.setattr(module, "LEAST_QUERIES", 16 if request.param == "apart" else 4)
    if request.param == "apart":
        monkeypatch.setattr(layout, "STEP", 0)
    lain = PackedLayout(packed_of(GROUPS), CPU).blocks
    found, each = [(block.units, block.rows) for block in lain], len(plan(lain, None))
    if request.param == "apart":
        assert {units for units, _ in found} == {1}
        assert (len(found), each) == (15, 27)
    elif request.param == "joined":
        assert found == [(1, 2), (4, 4), (4, 8), (4, 12)]
        assert each == len(found)
    else:
        assert found == [(1, 2), (2, 2), (2, 2), (2, 2), (2, 6), (2, 2), (2, 6)]
        assert each == 13


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(("window", "softcap"), list(itertools.product([None, 1, 6, 40], [None, 2.0])))
@pytest.mark.parametrize(
    ("sinks", "value_width", "root"), [(False, 8, 0), (True, 12, 0), (False, 8, 20), (True, 12, 20)]
)
def test_every_rule_equals_plain_masked_attention_and_so_do_its_gradients(window, softcap, sinks, value_width, root):
    packed = packed_of(GROUPS, root)
    assert packed.root.length == max(0, root - 1)  # one token is left to the group that adds none
    given = inputs(packed, value_width=value_width)
    sinks_H = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True) if sinks else None
    rule = Rule(0.3, softcap, window, sinks_H)
    wanted = [*given, sinks_H] if sinks_H is not None else given
    mine, truth = PackedLayout(packed, CPU).attend(*given, rule), plain(packed, *given, rule)
    towards = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(mine, truth, atol=1e-12, rtol=0)
    for a, b in zip(
        torch.autograd.grad(mine, wanted, towards), torch.autograd.grad(truth, wanted, towards), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("window", "softcap", "sinks"), [(None, None, False), (3, 2.0, True)])
def test_gradcheck(window, softcap, sinks):
    packed = packed_of([(3, [2, 4, 0]), (0, [2, 1])])
    given = inputs(packed, heads=2, width=3, value_width=2)
    sinks_H = [torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)] if sinks else []
    packed_layout = PackedLayout(packed, CPU)

    def attend(q, k, v, *sinks_H):
        return packed_layout.attend(q, k, v, Rule(0.7, softcap, window, *(sinks_H or [None])))

    assert torch.autograd.gradcheck(attend, [*given, *sinks_H])


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_narrow_precisions_stay_near_float64(dtype, off):
    packed = packed_of(GROUPS)
    given = inputs(packed, dtype)
    wide = [x.detach().double().requires_grad_() for x in given]
    mine = PackedLayout(packed, CPU).attend(*given, Rule(0.3, None, None, None))
    truth = plain(packed, *wide, Rule(0.3, None, None, None))
    towards = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = zip(
        [mine, *torch.autograd.grad(mine, given, towards.to(dtype))],
        [truth, *torch.autograd.grad(truth, wide, towards)],
        strict=True,
    )
    for a, b in pairs:
        assert a.dtype == dtype
        assert (a.double() - b).norm() < off * b.norm()


def lying(groups):
    return [
        (block.units, block.rows // block.units, block.before, block.width)
        for block in PackedLayout(packed_of(groups), CPU).blocks
    ]


def test_rows_of_similar_length_lie_in_one_block_after_their_prefix():
    found = lying([(2, [500, 3, 480, 4]), (600, [60, 5])])
    prefixes = [(1, 1, 0, 600), (1, 1, 0, 2)]
    assert found == [
        prefixes[0], (1, 1, 600, 60), (1, 1, 600, 5),
        prefixes[1], (1, 1, 2, 500), (1, 1, 2, 480), (1, 2, 2, 4),
    ]  # fmt: skip


def test_short_prefixes_and_their_rows_lie_together():
    assert lying([(45, [16] * 8)] * 8) == [(8, 1, 0, 45), (8, 8, 45, 16)]
    # the longest row of each in one block; padding costs less than a step
    assert lying([(45, [60, 9, 8]), (40, [50, 10])] * 2) == [(4, 1, 0, 45), (4, 1, 45, 60), (4, 2, 45, 10)]


def test_padding_is_worth_no_more_than_the_steps_that_it_saves():
    generator = random.Random(0)
    groups = [
        (generator.randint(20, 200), [generator.randint(1, 150) for _ in range(generator.randint(0, 9))])
        for _ in range(20)
    ]
    packed = packed_of(groups)
    real = sum(span.length**2 for span in packed.prefixes) + sum(
        row.length * (packed.prefixes[at].length + row.length)
        for row, at in zip(packed.rows, packed.prefix_of_row, strict=True)
    )
    each = sum(len(cuts(1, span.length, 0)) for span in packed.prefixes) + sum(
        len(cuts(1, row.length, packed.prefixes[at].length))
        for row, at in zip(packed.rows, packed.prefix_of_row, strict=True)
    )
    costs = pairs(packed) + layout.STEP * len(plan(PackedLayout(packed, CPU).blocks, None))
    assert costs <= real + layout.STEP * each


def pairs(packed, window=None):
    """Query-key pairs for which a product is computed."""
    return sum(
        step.block.rows * (step.end - step.first) * step.keys for step in plan(PackedLayout(packed, CPU).blocks, window)
    )


def test_what_all_groups_begin_with_is_one_block():
    found = PackedLayout(packed_of([(10, [16] * 4)] * 3, 35), CPU).blocks
    assert [(b.units, b.rows, b.before, b.width, b.root, b.shared) for b in found] == [
        (1, 1, 0, 35, 0, None), (3, 3, 35, 10, 35, 0), (3, 12, 45, 16, 35, 1),
    ]  # fmt: skip


def test_cost_grows_with_what_rows_see_and_not_with_the_square_of_the_group():
    prompt = 1000
    one, four = (packed_of([(prompt, [64] * 32)]), packed_of([(prompt, [64] * 8)] * 4))
    rows = 32 * 64 * (prompt + 64)
    assert pairs(one) == rows + pairs(packed_of([(prompt, [0])]))
    cut = 32 * (48 * (prompt + 48) + 16 * (prompt + 64))  # a row of each prompt side by side, in two steps
    assert pairs(four) == cut + pairs(packed_of([(prompt, [0])] * 4))
    assert pairs(four) < rows + 4 * pairs(packed_of([(prompt, [0])]))
    long = pairs(packed_of([(1, [4096, 0])]))
    assert long < 1.06 * 4096 * 4097 / 2  # causal order hides the other half
    assert pairs(packed_of([(1, [4096, 0])]), window=256) < 4096 * (256 + 128)


def test_scores_of_a_step_stay_small():
    packed = packed_of([(3000, [64] * 8), (10, [4096, 4000])])
    for step in plan(PackedLayout(packed, CPU).blocks, None):
        assert step.block.rows * (step.end - step.first) * step.keys <= 1.1 * blocks.PAIRS


@pytest.mark.parametrize(("groups", "weights"), [([(40, [30] * 8)] * 4, True), ([(900, [64] * 8), (3, [900])], False)])
def test_weights_are_kept_for_the_backward_pass_only_where_they_are_few(groups, weights):
    packed, kept = packed_of(groups), []
    given = inputs(packed, width=64, value_width=64)
    slots = sum(block.rows * block.width for block in PackedLayout(packed, CPU).blocks)
    own = slots * sum(x.shape[1] * x.shape[3] for x in given)

    def pack_hook(x):
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda x: x):
        PackedLayout(packed, CPU).attend(*given, Rule(0.3, None, None, None))
        assert own < sum(kept) <= (1 + blocks.KEPT) * own if weights else sum(kept) == own
        kept.clear()
        with torch.no_grad():
            PackedLayout(packed, CPU).attend(*given, Rule(0.3, None, None, None))
    assert kept == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (6, None), (None, 2.0), (1, 2.0)])
@pytest.mark.parametrize("root", [0, 20])
def test_flex_attention_with_our_mask_equals_plain_masked_attention(window, softcap, root):
    packed = packed_of(GROUPS, root)
    q, k, v = (x.detach() for x in inputs(packed, torch.float32, width=16, value_width=16))
    rule = Rule(0.3, softcap, window, None)
    assert torch.allclose(FlexMasks(packed, CPU).attend(q, k, v, rule), plain(packed, q, k, v, rule), atol=1e-5)


def test_flex_attention_is_not_asked_for_what_it_cannot_do():
    q, v, narrow = torch.zeros(1, 2, 4, 16), torch.zeros(1, 2, 4, 16), torch.zeros(1, 2, 4, 8)
    assert honours(q, v, Rule(1.0, 2.0, 3, None))
    assert not honours(q, narrow, Rule(1.0, None, None, None))
    assert not honours(q, v, Rule(1.0, None, None, torch.zeros(2)))
