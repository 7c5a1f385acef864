"""The sampler against hand-computed distributions, edges of the cumulative sum included."""

import math

import numpy as np
import pytest
import torch

from partita.engine.api import Sampling
from partita.engine.sampler import BLOCK, Knobs, draw, invert, sample

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]


def _draw(logits, uniforms, *samplings, generated=None, dtype=torch.float32):
    logits = torch.as_tensor(logits, dtype=dtype).expand(len(uniforms), -1).contiguous()
    samplings = list(samplings) * (len(uniforms) // len(samplings))
    knobs = Knobs.of(samplings, generated or [0] * len(uniforms), logits.shape[1], logits.device)
    return sample(logits, torch.tensor(uniforms, dtype=torch.float64), knobs)


def _frequencies(logits, sampling, n=20_000, generated=0):
    uniforms = ((np.arange(n) + 0.5) / n).tolist()  # a grid: frequencies equal probabilities up to 1/n per edge
    ids, logprobs = _draw(logits, uniforms, sampling, generated=[generated] * n)
    return np.bincount(ids.numpy(), minlength=len(logits)) / n, ids, logprobs


LOGITS = np.log(PROBABILITIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(8), PROBABILITIES),
        (Sampling(8, temperature=0.5), [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        (Sampling(8, top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(8, top_k=9), PROBABILITIES),
        (Sampling(8, top_p=0.8), [0.625, 0.375, 0, 0]),  # 0.5 + 0.3 reaches 0.8
        (Sampling(8, top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(8, top_p=0.01), [1, 0, 0, 0]),  # the likeliest token always stays
        (Sampling(8, min_p=0.2), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),  # 0.05 < 0.2 * 0.5 <= 0.15
        (Sampling(8, top_k=3, top_p=0.8), [0.625, 0.375, 0, 0]),  # 0.5/0.95 = 0.526, then 0.842 reaches 0.8
        (Sampling(8, top_k=2, top_p=0.6), [1, 0, 0, 0]),  # top-p is of what top-k leaves: 0.625 reaches 0.6
        (Sampling(8, temperature=0.5, top_p=0.6), [1, 0, 0, 0]),  # temperature first: 0.685 reaches 0.6
        (Sampling(8, temperature=0), [1, 0, 0, 0]),
        (Sampling(8, min_new_tokens=1, stop_ids=(0,)), [0, 0.6, 0.3, 0.1]),
        (Sampling(8, min_new_tokens=1, stop_ids=(0, 2), temperature=0), [0, 1, 0, 0]),
    ],
)
def test_frequencies_are_the_filtered_distribution(sampling, expected):
    frequencies, _, _ = _frequencies(LOGITS, sampling)
    assert frequencies == pytest.approx(expected, abs=3e-4)


def test_stop_ids_are_free_after_min_new_tokens():
    frequencies, _, _ = _frequencies(LOGITS, Sampling(8, min_new_tokens=3, stop_ids=(0,)), generated=3)
    assert frequencies == pytest.approx(PROBABILITIES, abs=3e-4)


def test_ties_at_the_edge_of_top_k_are_kept_and_of_top_p_go_to_lower_ids():
    frequencies, _, _ = _frequencies(np.log([0.4, 0.2, 0.2, 0.2]), Sampling(8, top_k=2))
    assert frequencies == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=3e-4)
    frequencies, _, _ = _frequencies(np.log([0.2, 0.2, 0.2, 0.4]), Sampling(8, top_p=0.6))
    assert frequencies == pytest.approx([1 / 3, 0, 0, 2 / 3], abs=3e-4)


def test_logprobs_are_of_the_full_softmax_whatever_the_filter():
    _, ids, logprobs = _frequencies(LOGITS, Sampling(8, top_p=0.8), n=100)
    assert logprobs[ids == 1].tolist() == pytest.approx([-1.203973] * int((ids == 1).sum()), abs=1e-6)
    assert logprobs[ids == 0].tolist() == pytest.approx([math.log(0.5)] * int((ids == 0).sum()), abs=1e-6)
    _, ids, logprobs = _frequencies(LOGITS, Sampling(8, min_new_tokens=1, stop_ids=(0,)), n=100)
    assert logprobs[ids == 1].tolist() == pytest.approx([-1.203973] * int((ids == 1).sum()), abs=1e-6)


def test_logprobs_are_at_the_sampling_temperature_and_at_one_for_greedy():
    _, ids, logprobs = _frequencies(LOGITS, Sampling(8, temperature=0.5), n=100)
    assert logprobs[ids == 0][0].item() == pytest.approx(math.log(0.25 / 0.365), abs=1e-6)
    _, _, logprobs = _frequencies(LOGITS, Sampling(8, temperature=0), n=2)
    assert logprobs.tolist() == pytest.approx([math.log(0.5)] * 2, abs=1e-6)


def test_rows_with_different_settings_share_a_batch():
    greedy, free, narrow, early = (
        Sampling(8, temperature=0),
        Sampling(8, temperature=2.0),
        Sampling(8, top_k=1, top_p=0.9),
        Sampling(8, min_new_tokens=2, stop_ids=(3,), min_p=0.01),
    )
    alone = [_draw(LOGITS, [0.97], s) for s in (greedy, free, narrow, early)]
    ids, logprobs = _draw(LOGITS, [0.97] * 4, greedy, free, narrow, early)
    assert ids.tolist() == [int(i[0]) for i, _ in alone] == [0, 3, 0, 2]
    assert logprobs.tolist() == [float(p[0]) for _, p in alone]


def test_top_p_of_one_row_does_not_cut_the_tail_of_another():
    logits = [0.0, -16.0]  # the second token has probability 1.1e-7
    ids, _ = _draw(logits, [1 - 1e-9, 1 - 1e-9], Sampling(8, top_p=0.5), Sampling(8, min_p=1e-12), dtype=torch.float64)
    assert ids.tolist() == [0, 1]


def test_uniforms_at_the_edges_never_give_an_impossible_token():
    edge = 1 - 2.0**-53  # rounds to 1 in float32
    tiny = 2.0**-54
    ids, _ = _draw([-math.inf, 0.0, 0.0, -math.inf], [tiny, edge], Sampling(8))
    assert ids.tolist() == [1, 2]
    ids, _ = _draw([0.0, 0.0, -200.0], [edge, 0.5], Sampling(8))  # exp(-200) is zero in float32
    assert ids.tolist() == [1, 1]
    ids, _ = _draw(LOGITS, [tiny, edge], Sampling(8, top_k=2))
    assert ids.tolist() == [0, 1]


def test_invert_takes_the_first_position_beyond_the_target():
    cumulative = torch.tensor([[0.0, 0.25, 0.25, 0.75, 1.0]]).expand(6, -1).contiguous()
    targets = torch.tensor([0.0, 0.25 * (1 - 2**-24), 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    assert invert(cumulative, targets[:, None])[:, 0].tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("vocabulary", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_every_token_of_every_block_is_drawn_exactly_in_its_interval(vocabulary):
    weights = torch.arange(vocabulary, dtype=torch.float64) % 4 + 1
    weights[1::7] = 0
    edges = weights.cumsum(0)
    middles = ((edges - weights / 2) / edges[-1])[weights > 0]
    ids = draw(weights.expand(len(middles), -1), middles)
    assert ids.tolist() == torch.nonzero(weights)[:, 0].tolist()


def test_draws_never_land_on_zero_weight_whatever_the_rounding():
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(2000, 3 * BLOCK + 5, generator=generator) ** 8
    weights[torch.rand(weights.shape, generator=generator) < 0.9] = 0
    tiny, edge = 2.0**-54, 1 - 2.0**-53
    for uniform in (torch.rand(2000, generator=generator, dtype=torch.float64), torch.tensor([tiny, edge] * 1000)):
        ids = draw(weights, uniform.double())
        assert (weights.gather(1, ids[:, None]) > 0).all()


def test_float32_over_a_large_vocabulary_matches_float64():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(16, 49_152, generator=generator)
    uniform = torch.rand(16, generator=generator, dtype=torch.float64)
    knobs = Knobs.of([Sampling(8)] * 16, [0] * 16, 49_152, logits.device)
    ids, logprobs = sample(logits, uniform, knobs)
    exact_ids, _ = sample(logits.double(), uniform, knobs)
    assert (ids == exact_ids).float().mean() > 0.9  # float32 edges of the cumulative sum are off by some 1e-7
    assert torch.allclose(logprobs.double(), logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0], atol=1e-5)


def test_greedy_is_the_argmax_of_nearly_equal_logits():
    ids, _ = _draw([1e-3, 1e-3 + 5e-10, 0.0], [0.5], Sampling(8, temperature=0))
    assert ids.tolist() == [1]
