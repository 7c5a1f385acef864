"""Batches of ragged groups, and one optimizer step on them: what the tests of the algorithm floor share.

Shapes: T packed trained tokens, S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm, Loss
from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.keys import AlgorithmKeys
from partita.algo.tokens import Current
from partita.records import Batch

BUDGET = 6
"""max_new_tokens: as long as the longest sample, so that a soft edge before the limit is felt."""


def ragged(
    lengths: Sequence[int],
    prompts: Sequence[int],
    rewards: Sequence[float],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    spread: float = 0.3,
) -> Batch:
    """Samples of these lengths with every stream that a part can ask for; `spread` is the noise of log-probs in nats."""
    generator = torch.Generator().manual_seed(seed)
    samples, total = len(lengths), sum(lengths)

    def noise(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    def uniform(size: int) -> Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64)

    prox_T = noise(total) * spread - 1.5
    seq_T = torch.repeat_interleave(torch.arange(samples), torch.tensor(lengths, dtype=torch.long))
    steps_T = torch.where(uniform(total) < 0.5, noise(total), torch.nan)
    return Batch(
        seq_T=seq_T,
        prompt_S=torch.tensor(prompts),
        reward_S=torch.tensor(rewards, dtype=torch.float32),
        truncated_S=torch.tensor([length >= BUDGET for length in lengths]),
        valid_S=torch.ones(samples, dtype=torch.bool),
        prox_T=prox_T.to(dtype),
        behaviour_T=(prox_T + noise(total) * spread / 10).to(dtype),
        ref_T=(prox_T + noise(total) * spread).to(dtype),
        values_T=(0.5 * noise(total)).to(dtype),
        bootstrap_value_S=noise(samples).to(dtype),
        version_T=torch.randint(3, 6, (total,), generator=generator),
        entropy_T=uniform(total).to(dtype),
        kl_full_T=uniform(total).to(dtype),
        step_rewards_T=steps_T,
        parts_SR=torch.stack((torch.tensor(rewards, dtype=torch.float64), uniform(samples)), 1),
        lot_S=uniform(samples),
        train_version=6,
    )


def random_batch(seed: int = 0, dtype: torch.dtype = torch.float64, spread: float = 0.3) -> Batch:
    """Seven samples of three prompts of sizes 4, 2 and 1 whose rows are interleaved; one sample has no token."""
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5]
    return ragged([4, 2, 3, 0, 6, 1, 5], [9, 4, 9, 9, 4, 2, 9], rewards, seed=seed, dtype=dtype, spread=spread)


def ready(keys: AlgorithmKeys, batch: Batch, *, max_new_tokens: int = BUDGET) -> Algorithm:
    """The algorithm of a first step on this batch: composed, its rules observed and applied as the loop does it."""
    algorithm = compose(keys, n_samples=4, max_new_tokens=max_new_tokens, part_weights=(1.0, 0.5))
    controls = Controls(controllers(keys))
    controls.observe("before_credit", algorithm.statistics(batch))
    algorithm = controls.apply(algorithm)
    stats = algorithm.credit_stats(algorithm.credit(batch))
    controls.observe("after_credit", {name: float(stat.sum / stat.count) for name, stat in stats.items()})
    return controls.apply(algorithm)


def moved(batch: Batch, seed: int = 1, spread: float = 0.25) -> Current:
    """A policy that has moved away from where the batch was scored, with every stream that a loss can ask for."""
    assert batch.prox_T is not None
    generator = torch.Generator().manual_seed(seed)
    noise_T = torch.randn(batch.prox_T.shape, generator=generator, dtype=torch.float64)
    return Current(batch.prox_T.double() + spread * noise_T, noise_T.square(), noise_T.abs(), noise_T.abs() / 2)


def unmoved(batch: Batch) -> Current:
    """The policy that the batch was scored with."""
    current = moved(batch)
    return replace(current, logprobs_T=batch.prox_T)


class Step(NamedTuple):
    """A loss and its gradient with respect to the log-probs."""

    loss: Loss
    gradient_T: Tensor


def step(algorithm: Algorithm, batch: Batch, current: Current) -> Step:
    """The loss of one micro-batch whose weights are set."""
    logprobs_T = current.logprobs_T.detach().clone().requires_grad_()
    loss = algorithm.loss(batch, replace(current, logprobs_T=logprobs_T))
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    return Step(loss, gradient_T)


def weighed(algorithm: Algorithm, batch: Batch) -> Batch:
    """Credit and weights, the whole batch being one optimizer step."""
    return algorithm.weights(algorithm.credit(batch))


def tokens_of(batch: Batch, samples: Sequence[int]) -> Tensor:
    """Where the tokens of these samples stand in the batch, in the order in which `select` puts them."""
    at = [torch.nonzero(batch.seq_T == sample).flatten() for sample in samples]
    return torch.cat([torch.zeros(0, dtype=torch.long), *at])


def current_at(current: Current, token_T: Tensor) -> Current:
    """The policy's streams on some tokens."""
    picked = {item.name: getattr(current, item.name)[token_T] for item in fields(Current)}
    return Current(**picked)


def first_tokens(batch: Batch) -> Batch:
    """Only the first token of each sample."""
    token_T = tokens_of(batch, range(batch.samples))
    first_T = torch.cat((torch.ones(min(1, len(token_T)), dtype=torch.bool), batch.seq_T[1:] != batch.seq_T[:-1]))
    streams: dict[str, Any] = {item.name: getattr(batch, item.name) for item in fields(Batch)}
    return batch.with_(**{name: v[first_T] for name, v in streams.items() if name.endswith("_T") and v is not None})
