"""Packed model input: spans, positions, which token predicts which, and micro-batches under a token budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.ops.packing import Span, common_prefix, filled, micro_batches, pack, stand_in
from partita.records import Row


def row(ids, trained):
    """A row whose tokens from index `trained` on (or at the given indices) are trained."""
    marks = (
        [i >= trained for i in range(len(ids))] if isinstance(trained, int) else [i in trained for i in range(len(ids))]
    )
    return Row(list(ids), marks, [0.0] * len(ids), [0] * len(ids))


def pairs(packed):
    """(id of the predicting token, its position, target) per trained token."""
    at = packed.source_T
    return list(zip(packed.ids_N[at].tolist(), packed.position_N[at].tolist(), packed.target_T.tolist(), strict=True))


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 4]], 2),
        ([[1, 2], [1, 2, 3]], 2),
        ([[9], [1, 2]], 0),
        ([[5, 1], [5, 3], [5, 2, 7]], 1),
        ([[1, 9, 9], [1, 2], [1, 9, 1]], 1),
        ([], 0),
    ],
)
def test_common_prefix(rows, length):
    assert common_prefix(rows) == length


def test_the_last_token_of_each_sample_is_there_where_whole_rows_are_asked_for():
    samples = [[row([1, 2, 7, 8], 2)], [row([1, 2, 7], 2), row([1, 9], {1})], [row([1, 2], {})], []]
    packed = pack(samples, [0, 0, 0, 0], whole=True)
    at = packed.end_S[:3]
    assert packed.ids_N[at].tolist() == [8, 9, 2]
    assert packed.position_N[at].tolist() == [3, 1, 1]
    assert len(packed.ids_N) == 8  # 1, then 2 7 8, 2 7, 9, 2
    assert pairs(packed) == pairs(pack(samples, [0, 0, 0, 0]))
    assert packed.end_S[3] == 0  # nothing is there


def test_whole_rows_fill_micro_batches_sooner():
    samples = [[row([1, 2, 3], 1)], [row([4, 5, 6], 1)]]
    assert micro_batches(samples, [0, 1], 4) == [[0, 1]]
    assert micro_batches(samples, [0, 1], 4, whole=True) == [[0], [1]]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=5))
def test_common_prefix_is_what_all_rows_share_and_no_longer(rows):
    shared = common_prefix(rows)
    assert all(r[:shared] == rows[0][:shared] for r in rows)
    assert any(len(r) == shared for r in rows) or len({r[shared] for r in rows}) > 1


def test_a_prompt_is_stored_once_for_its_group():
    packed = pack([[row([7, 8, 1, 2], 2)], [row([7, 8, 3], 2)]], [0, 0])
    assert packed.ids_N.tolist() == [7, 8, 1]  # nothing is predicted from 2 and 3
    assert packed.position_N.tolist() == [0, 1, 2]
    assert packed.prefix_of_row == (0, 0)
    assert pairs(packed) == [(8, 1, 1), (1, 2, 2), (8, 1, 3)]


def test_every_trained_token_is_predicted_by_the_one_before_it():
    packed = pack([[row([0, 1, 2, 3, 0], 3)]], [0])
    assert pairs(packed) == [(2, 2, 3), (3, 3, 0)]  # two, the first of them predicted by the prompt's last token


def test_answers_that_begin_alike_share_their_beginning_too():
    packed = pack([[row([7, 1, 2], 1)], [row([7, 1, 3], 1)]], [0, 0])
    assert packed.ids_N.tolist() == [7, 1]
    assert pairs(packed) == [(7, 0, 1), (1, 1, 2), (7, 0, 1), (1, 1, 3)]


def test_a_row_ends_where_nothing_more_is_predicted_from_it():
    """Tool output at the end of a row, too, is read by nobody."""
    packed = pack([[row([7, 1, 50, 2, 51, 52], {1, 3})]], [0])
    assert packed.ids_N.tolist() == [7, 1, 50]
    assert pairs(packed) == [(7, 0, 1), (50, 2, 2)]
    assert micro_batches([[row([7, 1, 50, 2, 51, 52], {1, 3})], [row([8, 8, 8, 8], 3)]], [0, 1], 6) == [[0, 1]]


def test_filled_up_it_says_the_same_of_every_trained_token():
    packed = pack([[row([7, 8, 1, 2], 2)], [row([7, 8, 3], 2)]], [0, 0])
    full = filled(packed, 4)
    assert full.ids_N.tolist() == [7, 8, 1, 7] and full.position_N.tolist() == [0, 1, 2, 0]
    assert full.rows[:-1] == packed.rows and full.prefixes[:-1] == packed.prefixes
    assert (full.rows[-1], full.prefixes[full.prefix_of_row[-1]]) == (Span(3, 1, 0), Span(3, 0, 0))
    assert pairs(full) == pairs(packed)
    assert filled(full, 4) is full


def test_equal_samples_add_nothing_of_their_own():
    packed = pack([[row([7, 1], 1)], [row([7, 1], 1)]], [0, 0])
    assert packed.ids_N.tolist() == [7]
    assert [span.length for span in packed.rows] == [0, 0]
    assert pairs(packed) == [(7, 0, 1), (7, 0, 1)]


def test_tool_tokens_between_trained_ones_are_read_and_not_trained():
    packed = pack([[row([7, 1, 50, 51, 2], {1, 4})]], [0])
    assert pairs(packed) == [(7, 0, 1), (51, 3, 2)]


def test_a_sample_of_several_rows_keeps_its_tokens_together_in_order():
    samples = [[row([7, 8, 1], 2), row([7, 9, 2], 2)], [row([7, 8, 3], 2)]]
    packed = pack(samples, [4, 4])
    assert packed.target_T.tolist() == [1, 2, 3]
    assert packed.ids_N.tolist() == [7, 8, 9, 8]  # only the first token is common to all three rows


def test_samples_may_come_in_any_order_of_groups():
    samples = [[row([1, 10], 1)], [row([2, 20], 1)], [row([1, 11], 1)]]
    packed = pack(samples, [5, 3, 5])
    assert pairs(packed) == [(1, 0, 10), (2, 0, 20), (1, 0, 11)]  # the order given, whatever the layout
    assert len(packed.prefixes) == 2


def test_a_sample_without_rows_or_trained_tokens_is_harmless():
    packed = pack([[], [row([1, 2], 2)], [row([1, 3], 1)]], [0, 1, 2])
    assert packed.target_T.tolist() == [3]
    assert micro_batches([[], [row([1, 2], 2)]], [0, 1], 10) == [[1, 0]]


@pytest.mark.parametrize("bad", [row([], 0), row([5, 6], 0)])
def test_a_row_whose_first_trained_token_nothing_predicts_is_refused(bad):
    with pytest.raises(ValueError, match="at least one token before"):
        pack([[bad]], [0])


def test_budget_forms_micro_batches_by_tokens():
    lengths = [90, 10, 10, 10, 10, 10, 10, 10]
    samples = [[row([i * 100 + j for j in range(n + 1)], 1)] for i, n in enumerate(lengths)]
    groups = list(range(8))
    assert micro_batches(samples, groups, 100) == [[0], [1, 2, 3, 4, 5, 6, 7]]  # 90 and 70, not 100 and 60
    assert micro_batches(samples, groups, 160) == [list(range(8))]
    assert micro_batches(samples, groups, 5) == [[i] for i in range(8)]  # larger than the budget: alone


def test_advantages_and_tokens_are_cut_along_the_same_order():
    lengths = [7, 1, 5, 3, 9, 2]
    samples = [[row([99, *[i] * n], 1)] for i, n in enumerate(lengths)]
    advantage_S = [float(i) for i in range(6)]
    seen = []
    for batch in micro_batches(samples, list(range(6)), 11):
        packed = pack([samples[i] for i in batch], batch)
        advantages_T = [advantage_S[i] for i in batch for _ in range(lengths[i])]
        assert packed.target_T.tolist() == advantages_T
        seen += batch
    assert sorted(seen) == list(range(6))


cases = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=6)), min_size=1, max_size=12
)


@given(cases, st.integers(1, 40))
def test_micro_batches_hold_every_sample_once_within_the_budget(drawn, budget):
    groups = [g for g, _ in drawn]
    samples = [[row([9 + g, *ids], 1)] for g, ids in drawn]
    batches = micro_batches(samples, groups, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(samples)))
    assert batches == micro_batches(samples, groups, budget)
    for batch in batches:
        size = len(pack([samples[i] for i in batch], [groups[i] for i in batch]).ids_N)
        assert size <= budget or len(batch) == 1
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        whole = len(pack([samples[i] for i in members], [group] * len(members)).ids_N)
        assert whole > budget or any(set(members) <= set(batch) for batch in batches)


@given(cases, st.integers(0, 20))
def test_a_packed_batch_says_of_each_token_what_its_row_says(drawn, begin):
    groups = [g for g, _ in drawn]
    samples = [[row([*[5] * begin, 9 + g, *ids], begin + 1)] for g, ids in drawn]
    packed = pack(samples, groups)
    assert packed.root.length == (begin if begin * (len(set(groups)) - 1) >= 16 else 0)
    assert packed.target_T.tolist() == [i for _, ids in drawn for i in ids]
    rows = [s[0].ids for s in sorted(samples, key=lambda s: groups.index(s[0].ids[begin] - 9))]  # groups by first sight
    sources, whole = iter(packed.source_T.tolist()), dict[int, list[int]]()
    for span, prefix, ids in zip(packed.rows, packed.prefix_of_row, rows, strict=True):
        spans = packed.root, packed.prefixes[prefix], span
        at = [place for one in spans for place in range(one.start, one.start + one.length)]
        assert packed.ids_N[at].tolist() == ids[:-1]
        whole.setdefault(ids[begin] - 9, []).append(at[begin:])
        assert packed.position_N[at].tolist() == list(range(len(ids) - 1))
    for group, _ in drawn:  # the sample's own turn
        for place in whole[group].pop(0):
            assert next(sources) == place


def test_what_all_groups_begin_with_is_there_once():
    begin = list(range(100, 120))
    samples = [[row([*begin, 1, 2, answer], 22)] for answer in (7, 8)] + [
        [row([*begin, 3, answer, 6], 21)] for answer in (4, 5)
    ]
    packed = pack(samples, [0, 0, 1, 1])
    assert packed.ids_N.tolist() == [*begin, 1, 2, 3, 4, 5]
    assert packed.position_N.tolist() == [*range(20), 20, 21, 20, 21, 21]
    assert packed.root == Span(0, 20, 0)
    assert packed.prefixes == (Span(20, 2, 20), Span(22, 1, 20))
    assert pairs(packed) == [(2, 21, 7), (2, 21, 8), (3, 20, 4), (4, 21, 6), (3, 20, 5), (5, 21, 6)]


def test_a_group_keeps_a_token_of_its_own_after_what_all_begin_with():
    begin = list(range(100, 120))
    samples = [[row([*begin, 1, 2], 20)], [row([*begin, 3, 4], 20)], [row([*begin, 5], 20)]]
    packed = pack(samples, [0, 0, 1])
    assert packed.root.length == 19
    assert [(span.length, span.position) for span in packed.prefixes] == [(1, 19), (1, 19)]


def first_fit(sizes, budget):
    """The loads that first fit, largest first, makes of pieces that stay whole."""
    loads = []
    for size in sorted(sizes, reverse=True):
        fit = next((i for i, load in enumerate(loads) if load + size <= budget), None)
        if fit is None:
            loads.append(size)
        else:
            loads[fit] += size
    return loads


@given(st.lists(st.integers(2, 60), min_size=1, max_size=60), st.integers(60, 400))
def test_micro_batches_are_no_more_than_first_fit_s_and_even(lengths, budget):
    """Where first fit had to be kept, all but one are more than half full."""
    samples = [[row([1000 * i + j for j in range(n + 1)], 1)] for i, n in enumerate(lengths)]
    loads = [sum(lengths[s] for s in batch) for batch in micro_batches(samples, list(range(len(lengths))), budget)]
    assert max(loads) <= budget and len(loads) == len(first_fit(lengths, budget))
    assert max(loads) - min(loads) <= max(lengths) or sorted(loads)[1] * 2 > budget


def test_a_large_group_is_cut_into_even_parts():
    samples = [[row([7, 8, 9, i, i, i], 3)] for i in range(10, 17)]
    # 3 + 2 for each; 5 and 2 would fit, too
    assert [len(batch) for batch in micro_batches(samples, [0] * 7, 13)] == [4, 3]


def own(shared, lengths):
    """A group: samples that share `shared` tokens and add so many of their own and a last one, no two alike."""
    return [[row([*range(shared), *[1000 + i] * (length + 1)], shared)] for i, length in enumerate(lengths)]


def test_a_large_group_is_cut_into_full_parts_where_that_leaves_room_for_others():
    """Parts of 61 and 51 tokens would each be alone beside the 60; of 101 and 11 the second is not."""
    samples = own(1, [10] * 11) + own(1, [59])
    assert micro_batches(samples, [0] * 11 + [1], 101) == [list(range(10)), [11, 10]]


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(1, 4), st.integers(16, 60),
)  # fmt: skip
def test_cut_groups_make_no_more_micro_batches_than_full_parts_do(lengths, shared, budget):
    samples = [sample for group in lengths for sample in own(shared, group)]
    groups = [g for g, group in enumerate(lengths) for _ in group]
    prefix = {
        g: common_prefix([s[0].ids[:-1] for s, of in zip(samples, groups, strict=True) if of == g]) for g in groups
    }
    pieces = []
    for g, group in enumerate(lengths):
        rest = [shared + length - prefix[g] for length in group]  # a sample alone is all prefix
        pieces += [prefix[g] + load for load in first_fit(rest, budget - prefix[g])]
    batches = micro_batches(samples, groups, budget)
    assert len(batches) <= len(first_fit(pieces, budget))
    assert all(len(pack([samples[i] for i in b], [groups[i] for i in b]).ids_N) <= budget for b in batches)


@given(cases, st.integers(1, 40), st.integers(2, 5))
def test_ranks_go_through_as_many_micro_batches_and_none_waits_while_there_is_work(drawn, budget, ranks):
    groups = [g for g, _ in drawn]
    samples = [[row([9 + g, *ids], 1)] for g, ids in drawn]
    plan = micro_batches(samples, groups, budget, ranks=ranks)
    assert sorted(i for batch in plan for i in batch) == list(range(len(samples)))
    assert len(plan) % ranks == 0 and sum(map(bool, plan)) >= min(ranks, len(samples))
    assert all(plan[: len(plan) - ranks + 1])  # only the last turn has ranks with nothing to compute
    for batch in plan:
        size = len(pack([samples[i] for i in batch], [groups[i] for i in batch]).ids_N)
        assert size <= budget or len(batch) == 1


def longest_turns(plan, samples, groups, ranks):
    """Tokens of the largest micro-batch of each turn, added up."""
    sizes = [len(pack([samples[i] for i in batch], [groups[i] for i in batch]).ids_N) for batch in plan]
    return sum(max(sizes[turn : turn + ranks]) for turn in range(0, len(sizes), ranks))


def test_what_ranks_compute_at_the_same_time_is_alike_in_size():
    samples = [[row([1000 * i + j for j in range(n + 1)], 1)] for i, n in enumerate([90, 70, 50, 40, 30, 20])]
    for ranks in (2, 3):
        plan = micro_batches(samples, range(6), 1000, ranks=ranks)
        assert longest_turns(plan, samples, range(6), ranks) <= 300 / ranks * 1.1


def test_a_group_is_cut_for_ranks_where_that_ends_sooner_and_only_there():
    """Four samples of 10 after 2 tokens are cut; after 200 tokens they would be read twice for nothing, but one rank would be
    idle, so they are cut as well; two such groups are one for each rank.
    """
    short, long = own(2, [10] * 4), own(200, [10] * 4)
    assert sorted(map(len, micro_batches(short, [0] * 4, 1000, ranks=2))) == [2, 2]
    assert sorted(map(len, micro_batches(long, [0] * 4, 1000, ranks=2))) == [2, 2]
    both = micro_batches(long + long, [0] * 4 + [1] * 4, 1000, ranks=2)
    assert sorted(both) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_with_fewer_samples_than_ranks_the_others_stand_in():
    samples = [[], [row([5, 6, 7], 1)], [row([8], {})]]
    assert [len(batch) for batch in micro_batches(samples[1:2], [0], 9, ranks=3)] == [1, 0, 0]
    assert micro_batches([], [], 9, ranks=3) == []
    packed = pack([stand_in(samples)], [0])
    assert packed.ids_N.tolist() == [5] and packed.target_T.tolist() == [6]
    assert len(pack([stand_in(samples[:1])], [0]).target_T) == 1
