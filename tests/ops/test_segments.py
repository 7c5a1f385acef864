"""Segment sums, ranges and ids by hand."""

import torch

from partita.ops.segments import dense_ids, segment_all, segment_constant, segment_sum


def test_ids_may_be_any_numbers_in_any_order():
    index_S, groups = dense_ids(torch.tensor([7, 3, 7, -1, 3]))
    assert index_S.tolist() == [2, 1, 2, 0, 1]
    assert groups == 3


def test_sums_are_double_precision_and_empty_segments_are_zero():
    value_N = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float32)
    total_G = segment_sum(value_N, torch.tensor([2, 0, 2]), 4)
    assert total_G.dtype == torch.float64
    assert total_G.tolist() == [1.0, 0.0, 2.5, 0.0]
    tenth = torch.full((100_000,), 0.1, dtype=torch.float64)
    assert abs(float(segment_sum(tenth, torch.zeros(100_000, dtype=torch.long), 1)) - 10_000) < 1e-6


def test_sums_carry_gradients_to_their_members():
    value_N = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (segment_sum(value_N, torch.tensor([0, 1, 1]), 2) * torch.tensor([10.0, 1.0])).sum().backward()
    assert value_N.grad is not None
    assert value_N.grad.tolist() == [10.0, 1.0, 1.0]


def test_a_flag_holds_for_a_segment_only_with_all_its_members():
    flags_S = segment_all(torch.tensor([True, False, True]), torch.tensor([0, 1, 1]), 3)
    assert flags_S.tolist() == [True, False, True]


def test_equal_numbers_are_constant_up_to_the_digits_of_their_computation():
    value_N = torch.tensor([0.7] * 8 + [1.0, -2.0], dtype=torch.float32)
    segment_N = torch.tensor([1] * 8 + [0, 0])
    assert segment_constant(value_N, segment_N, 3).tolist() == [False, True, True]
    near_N = torch.tensor([0.1 + 0.2, 0.3, 1e12, 1e12 + 1, 0.0, 1e-6], dtype=torch.float64)
    assert segment_constant(near_N, torch.tensor([0, 0, 1, 1, 2, 2]), 3).tolist() == [True, True, False]
