import math
from dataclasses import replace

import torch
from rank_jobs import rollout

from partita.ops.ranks import ALONE, Ranks
from partita.train.shares import in_order, nothing, own_share


def test_alone_everything_is_one_s_own_share_in_its_order():
    batch = rollout()
    shares = list(own_share(batch, 24, ALONE))
    assert sorted(s for samples, _, _ in shares for s in samples) == list(range(9))
    assert all(micro is not None and len(micro.rows) == len(samples) for samples, micro, _ in shares)
    assert in_order([1, None, 2], ALONE) == [1, 2]


def test_the_shares_of_ranks_are_the_plan_and_stand_ins_say_nothing_about_any_sample():
    batch = rollout().select([0, 1, 2])
    shares = [list(own_share(batch, 24, Ranks(rank, 4))) for rank in range(4)]
    assert {len(share) for share in shares} == {1}
    assert sorted(s for share in shares for samples, _, _ in share for s in samples) == [0, 1, 2]
    (samples, micro, packed) = next(share[0] for share in shares if not share[0][0])
    assert (samples, micro) == ([], None) and packed.ids_N.tolist() == [1] and packed.target_T.tolist() == [2]


def test_a_model_reads_something_where_a_share_is_a_sample_without_rows():
    batch = rollout().select([0, 3])
    batch = replace(batch, rows=(batch.rows[0], ()), batch=batch.batch)
    (share,) = own_share(batch, 24, Ranks(1, 2))
    samples, micro, packed = share
    assert samples == [1] and micro is not None
    assert packed.ids_N.tolist() == [1, 2] and len(packed.target_T) == 0 and len(packed.end_S) == 1


def test_nothing_is_zero_with_gradient_zero_whatever_the_streams_hold():
    said_T, values_T = torch.tensor([math.inf, math.nan, -1.0]).requires_grad_(), torch.zeros(2).requires_grad_()
    loss = nothing(said_T, None, values_T)
    loss.backward()
    assert loss.item() == 0.0
    assert said_T.grad.tolist() == [0.0] * 3 and values_T.grad.tolist() == [0.0] * 2
