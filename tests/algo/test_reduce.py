"""Denominators: one per optimizer step, whatever the micro-batches, and for rows without tokens."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys


def weights(padded, lengths, mode="token_mean", **inputs):
    mask = [[1.0] * n + [0.0] * (max(lengths) - n) for n in lengths]
    keys = AlgorithmKeys(loss_agg_mode=mode)
    return compose(keys, n_samples=2, max_new_tokens=8).weights(padded({"mask": mask, **inputs}).batch())


def rewards(n):
    return {"rewards": [0.0] * n}


def test_token_mean_over_micro_batches_of_one_and_three_tokens(padded):
    batch = weights(padded, [1, 3], **rewards(2))
    parts = [
        (batch.select([0]).weight_T * 6.0).sum(),
        (batch.select([1]).weight_T * 2.0).sum(),
    ]
    assert float(sum(parts)) == pytest.approx(3.0)  # a mean of means would be 4


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
def test_accumulation_does_not_divide_twice(padded, pieces):
    batch = weights(padded, [3, 1, 4, 1, 5, 2, 6, 5], **rewards(8))
    loss_T = torch.arange(27.0)
    size = 8 // pieces
    total = torch.zeros(())
    for start in range(0, 8, size):
        chosen = list(range(start, start + size))
        total += (batch.select(chosen).weight_T * loss_T[torch.isin(batch.seq_T, torch.tensor(chosen))]).sum()
    assert float(total) == pytest.approx(13.0)


@pytest.mark.parametrize("split", [[[0], [1, 2, 3, 4, 5, 6, 7]], [[0, 1], [2, 3, 4, 5, 6, 7]], [list(range(8))]])
def test_sequence_mean_whatever_the_token_budget(padded, split):
    batch = weights(padded, [90, 10, 10, 10, 10, 10, 10, 10], "seq_mean_token_mean", **rewards(8))
    loss_S = torch.tensor([8.0] + [1.0] * 7)
    parts = [(batch.select(chosen).weight_T * loss_S[chosen][batch.select(chosen).seq_T]).sum() for chosen in split]
    assert float(sum(parts)) == pytest.approx(1.875)


def test_the_length_constant_is_the_generation_budget(padded):
    batch = weights(padded, [1, 3], "seq_mean_token_sum_norm", **rewards(2))
    assert batch.weight_T.tolist() == [1 / 16] * 4  # 2 sequences x 8 tokens, not the widest row


def test_prompt_mean_weighs_prompts_not_rows(padded):
    batch = weights(padded, [1, 1, 2], "prompt_token_mean", group_ids=[5, 5, 3], **rewards(3))
    assert batch.weight_T.tolist() == [0.25] * 4


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "prompt_token_mean"])
def test_invalid_samples_are_in_no_denominator(padded, mode):
    lengths, valid = [2, 3, 1], torch.tensor([True, False, True])
    mask = [[1.0] * n + [0.0] * (3 - n) for n in lengths]
    algorithm = compose(AlgorithmKeys(loss_agg_mode=mode), n_samples=3, max_new_tokens=8)
    batch = algorithm.weights(padded({"mask": mask, "rewards": [0.0] * 3}).batch(valid_S=valid))
    alone = algorithm.weights(padded({"mask": [mask[0], mask[2]], "rewards": [0.0] * 2}).batch())
    assert batch.weight_T[[0, 1, 5]].tolist() == alone.weight_T.tolist()
    assert batch.weight_T[2:5].tolist() == [0.0] * 3
