"""What the algorithm floor itself costs, for every preset: credit, weights and the loss with its gradient, on one core.

usage: python benchmarks/credit.py [--repeats 5] [--only NAME ...]

Two sizes, groups of eight: 64 sequences of 256 trained tokens, a small step (milliseconds for credit, weights, and loss
with backward), and 1,000 sequences of 1,000 tokens (seconds for a credit pass, with the running statistics where a
preset has them, and for the weights of a step over all of it). Each number is the best of the repeats.
Left out: the model. The log-probs are random numbers, so this is the whole cost of an algorithm beside forward and
backward of the network.
"""

import argparse
import time
from collections.abc import Callable

import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.control import Controls
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current
from partita.records import Batch

GROUP = 8
SMALL, LARGE = (64, 256), (1000, 1000)


def random_batch(samples: int, tokens: int) -> Batch:
    """Equal lengths, every stream that a preset may ask for, float32 as models give them."""
    torch.manual_seed(0)
    total = samples * tokens
    prox_T = torch.randn(total).mul(0.5) - 1.5
    return Batch(
        seq_T=torch.arange(samples).repeat_interleave(tokens),
        prompt_S=torch.arange(samples) // GROUP,
        reward_S=torch.randint(0, 2, (samples,)).float(),
        truncated_S=torch.arange(samples) % 10 == 0,
        valid_S=torch.ones(samples, dtype=torch.bool),
        prox_T=prox_T, behaviour_T=prox_T + torch.randn(total) / 50, ref_T=prox_T + torch.randn(total) / 20,
        values_T=torch.rand(total), bootstrap_value_S=torch.rand(samples), entropy_T=torch.rand(total),
        version_T=torch.zeros(total, dtype=torch.long), lot_S=torch.rand(samples, dtype=torch.float64), train_version=1,
    )  # fmt: skip


def best(repeats: int, action: Callable[[], object]) -> float:
    """The fewest seconds of `repeats` runs, after one that is not counted."""
    action()
    seconds: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def adapted(name: str, batch: Batch) -> tuple[Algorithm, Callable[[], Batch]]:
    """The preset as it stands in its first step, and its credit pass: running statistics, then credit."""
    keys = keys_of(name)
    controls = Controls(controllers(keys))
    composed = compose(keys, n_samples=GROUP, max_new_tokens=1024)

    def credit_pass() -> Batch:
        controls.observe("before_credit", composed.statistics(batch))
        return controls.apply(composed).credit(batch)

    credit_pass()
    return controls.apply(composed), credit_pass


def backward(algorithm: Algorithm, batch: Batch) -> Callable[[], None]:
    """Loss and gradient of a whole step, as one micro-batch."""
    assert batch.prox_T is not None
    logprobs_T = (batch.prox_T + torch.randn(batch.prox_T.shape) / 10).requires_grad_()
    entropy_T = torch.rand(batch.prox_T.shape)

    def run() -> None:
        logprobs_T.grad = None
        algorithm.loss(batch, Current(logprobs_T, entropy_T)).value.backward()

    return run


def measured(name: str, repeats: int) -> tuple[float, ...]:
    """Credit, weights, loss of a small step in seconds; then credit and weights of the large batch."""
    found: list[float] = []
    for size in (SMALL, LARGE):
        algorithm, credit_pass = adapted(name, random_batch(*size))
        credited = credit_pass()
        found += [best(repeats, credit_pass), best(repeats, lambda a=algorithm, b=credited: a.weights(b))]
        if size == SMALL:
            found.append(best(repeats, backward(algorithm, algorithm.weights(credited))))
    return tuple(found)


def main() -> None:
    """A line for each preset, then the slowest of each column."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=tuple(PRESETS), default=tuple(PRESETS), metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'64 x 256 tokens, ms':>50}{'1000 x 1000, s':>22}")
    print(f"{'preset':<20}{'credit':>9}{'weights':>9}{'loss':>7}{'sum':>8}{'credit':>13}{'weights':>9}", flush=True)
    rows: list[tuple[float, ...]] = []
    for name in args.only:
        rows.append(measured(name, args.repeats))
        print(line(name, rows[-1]), flush=True)
    print(line("slowest", tuple(max(column) for column in zip(*rows, strict=True))))


def line(name: str, seconds: tuple[float, ...]) -> str:
    """One row of the table."""
    credit, weights, loss, credit_large, weights_large = seconds
    small = f"{1e3 * credit:>9.2f}{1e3 * weights:>9.2f}{1e3 * loss:>7.2f}{1e3 * (credit + weights + loss):>8.2f}"
    return f"{name:<20}{small}{credit_large:>13.3f}{weights_large:>9.3f}"


if __name__ == "__main__":
    main()
