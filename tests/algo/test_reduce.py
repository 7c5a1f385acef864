"""Denominators: one per optimizer step, whatever the micro-batches, and for samples without a token in the loss."""

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.reduce import PromptTokenMean, SeqMeanTokenMean, SeqMeanTokenSum, TokenMean
from partita.algo.tokens import Current


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


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_an_update_does_not_depend_on_the_pieces_it_is_accumulated_from(padded, mode):
    """One optimizer step at rate 1 on eight samples: dividing once more by the pieces would shrink it."""
    batch = weights(padded, [3, 1, 4, 1, 5, 2, 6, 5], mode, **rewards(8)).with_(
        advantages_T=torch.arange(27.0).double()
    )
    algorithm = compose(AlgorithmKeys(loss_agg_mode=mode, gate="open"), n_samples=8, max_new_tokens=8)
    updates, losses = [], []
    for pieces in (1, 2, 4, 8):
        policy_T = torch.zeros(27, dtype=torch.float64, requires_grad=True)
        optimizer, total = torch.optim.SGD([policy_T], lr=1.0), 0.0
        for start in range(0, 8, 8 // pieces):
            chosen = list(range(start, start + 8 // pieces))
            value = algorithm.loss(
                batch.select(chosen), Current(policy_T[torch.isin(batch.seq_T, torch.tensor(chosen))])
            ).value
            value.backward()
            total += value.item()
        optimizer.step()
        updates.append(policy_T.detach())
        losses.append(total)
    assert float(updates[0].abs().max()) > 0.1
    assert all(torch.equal(update, updates[0]) for update in updates)
    assert losses == pytest.approx([losses[0]] * 4)


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


@pytest.mark.parametrize(
    ("mode", "with_empty", "without"),
    [
        ("token_mean", [1 / 3] * 3, [1 / 3] * 3),
        ("seq_mean_token_mean", [1 / 6, 1 / 6, 1 / 3], [1 / 4, 1 / 4, 1 / 2]),
        ("seq_mean_token_sum", [1 / 3] * 3, [1 / 2] * 3),
        ("seq_mean_token_sum_norm", [1 / 24] * 3, [1 / 16] * 3),
        ("prompt_token_mean", [1 / 6] * 3, [1 / 3] * 3),
    ],
)
def test_samples_and_prompts_without_a_token_count_unless_they_are_not_to(padded, mode, with_empty, without):
    inputs = {"mask": [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], "rewards": [0.0] * 3, "group_ids": [0, 0, 1]}
    for count, expected in ((True, with_empty), (False, without)):
        keys = AlgorithmKeys(loss_agg_mode=mode, count_empty_rows=count)
        batch = compose(keys, n_samples=2, max_new_tokens=8).weights(padded(inputs).batch())
        assert batch.weight_T.tolist() == pytest.approx(expected)


def test_formulas_say_the_constant():
    assert SeqMeanTokenSum().formula() == "1/N Σ_i Σ_t"
    assert SeqMeanTokenSum(64.0).formula() == "1/(N·64) Σ_i Σ_t"
    assert (
        len({part.formula() for part in (TokenMean(), SeqMeanTokenMean(), SeqMeanTokenSum(), PromptTokenMean())}) == 4
    )
