"""How long the phases of a train step take: from a few measured seconds, or from floating-point operations alone.

Operations: 2 for each parameter of a product and each token forward, twice as many backward (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1), and for attention 4 H W for each pair of tokens that see each other (Hoffmann et al. 2022,
arXiv:2203.15556, appendix F).

Shapes: H query heads, W head width, V vocabulary, D hidden width.
Left out: measuring (`plan.calibrate`), and more processes than one (`plan.scaling`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from partita.plan.batch import Batch, Lengths
from partita.plan.sizes import Sizes

BACKWARD = 2.0
REST = 0.03
"""Of a step: rewards, credit, packing and reports; docs/performance.md measured 2 to 3.5 %."""


@dataclass(frozen=True)
class Reading:
    """Tokens of a forward pass: of the model's input, with a log-prob, and of a row."""

    tokens: float
    trained: float
    row: float


def forward_flop(sizes: Sizes, one: Reading) -> float:
    """Of a forward pass. A token of a row sees half of it on average."""
    products = 2 * sizes.active * one.tokens + 2 * sizes.table * one.trained
    return products + 4 * sizes.layers * sizes.queries * sizes.width * one.tokens * one.row / 2


def learn_flop(sizes: Sizes, one: Reading, *, checkpointing: bool = False) -> float:
    """Of a forward and a backward pass. Frozen weights under adapters have no gradient of their own: half of the backward pass;
    checkpointing runs the layers forward once more.
    """
    forward = forward_flop(sizes, one)
    again = forward_flop(sizes, replace(one, trained=0)) if checkpointing else 0.0
    return forward + again + forward * (BACKWARD / 2 if sizes.adapters else BACKWARD)


@dataclass(frozen=True)
class Speed:
    """Rates of one process. A decode step of r rows takes `step + row r` seconds, and `seen` more for each row and each token that
    it sees beyond `context`; a token of a prompt `prefill`. learned: what took `learn` seconds forward and backward, and `forward`
    seconds without gradient, beside the `fixed` seconds of a micro-batch whatever its tokens, in which weights are rounded.
    optimizer, publish: seconds of one. stop: the chance that a token ends its response, None if unknown. source: where the
    numbers come from.
    """

    step: float
    row: float
    seen: float
    context: float
    prefill: float
    learned: Reading
    learn: float
    fixed: float
    forward: float
    optimizer: float
    publish: float
    stop: float | None
    source: str


def mean_length(stop: float | None, longest: int) -> float:
    """Of a response whose every token is the last one with chance `stop`, cut at `longest`: (1 - (1 - stop)^longest) / stop."""
    return float(longest) if not stop else (1 - (1 - stop) ** longest) / stop


@dataclass(frozen=True)
class Seconds:
    """Of one train step, by phase."""

    sample: float
    score: float
    critic: float
    learn: float
    publish: float
    rest: float
    communicate: float = 0.0

    @property
    def step(self) -> float:
        """All of them."""
        return self.sample + self.score + self.critic + self.learn + self.publish + self.rest + self.communicate


def sample_seconds(speed: Speed, batch: Batch, lengths: Lengths, slots: int) -> float:
    """Prompts once, then decode steps: as long as responses wait, all slots are busy; then the last ones run out, as long as any of
    them lives. A response goes on after k tokens with chance (1 - stop)^k.
    """
    samples, rows = batch.samples, min(slots, batch.samples)
    busy = (samples - rows) / rows * (lengths.response - 1)  # the first token comes with the prompt
    middle = lengths.prompt + lengths.response / 2
    total = speed.prefill * batch.expected.prompts + busy * _step(speed, rows, middle)
    stop = _stop(lengths)
    alive = 1 - stop
    for token in range(1, lengths.longest_response):
        some = 1 - (1 - alive) ** rows  # that any is left
        if some < 1e-3:
            break
        total += some * _step(speed, rows * alive / some, lengths.prompt + token)
        alive *= 1 - stop
    return total


def _step(speed: Speed, rows: float, context: float) -> float:
    return speed.step + rows * (speed.row + speed.seen * (context - speed.context))


def _stop(lengths: Lengths) -> float:
    """The chance per token that gives the mean length; found by halving."""
    if lengths.response >= lengths.longest_response - 0.5:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if mean_length(middle, lengths.longest_response) > lengths.response else (low, middle)
        )
    return low


def read_seconds(speed: Speed, sizes: Sizes, base: Sizes, one: Reading) -> float:
    """A pass without gradient, as long as its operations say beside the measured one's of the policy `base`."""
    return speed.forward * forward_flop(sizes, one) / forward_flop(base, speed.learned)


def learn_seconds(speed: Speed, sizes: Sizes, base: Sizes, one: Reading, *, checkpointing: tuple[bool, bool]) -> float:
    """A pass with gradient, likewise, without what is fixed. checkpointing: here, and where it was measured."""
    here, there = checkpointing
    flop = learn_flop(sizes, one, checkpointing=here)
    return speed.learn * flop / learn_flop(base, speed.learned, checkpointing=there)


@dataclass(frozen=True)
class Work:
    """What one train step asks of the models. policy_readings, critic_readings: passes without gradient, by policy or reference,
    and by the critic. slots: responses sampled at a time.
    """

    batch: Batch
    lengths: Lengths
    slots: int
    policy: Sizes
    critic: Sizes | None
    policy_readings: int
    critic_readings: int
    checkpointing: bool
    critic_checkpointing: bool


def seconds_of(speed: Speed, work: Work) -> Seconds:
    """All phases of a step on one process."""
    batch, row = work.batch, work.lengths.row
    one = Reading(batch.expected.read, batch.expected.trained, row)
    score = work.policy_readings * read_seconds(speed, work.policy, work.policy, one)
    passes, critic = batch.actor, 0.0
    each = learn_seconds(speed, work.policy, work.policy, one, checkpointing=(work.checkpointing, work.checkpointing))
    learn = passes.epochs * (each + passes.micro_batches * speed.fixed) + passes.optimizer_steps * speed.optimizer
    if work.critic is not None and batch.critic is not None:
        states = Reading(one.tokens, 0.0, row)
        score += work.critic_readings * read_seconds(speed, work.critic, work.policy, states)
        both = (work.critic_checkpointing, work.checkpointing)
        each = learn_seconds(speed, work.critic, work.policy, states, checkpointing=both)
        each += batch.critic.micro_batches * speed.fixed * work.critic.parameters / work.policy.parameters
        moved = speed.optimizer * work.critic.trained / work.policy.trained
        critic = batch.critic.epochs * each + batch.critic.optimizer_steps * moved
    sample = sample_seconds(speed, batch, work.lengths, work.slots)
    known = sample + score + critic + learn + speed.publish
    return Seconds(sample, score, critic, learn, speed.publish, REST / (1 - REST) * known)


@dataclass(frozen=True)
class Machine:
    """What a machine does in a second: floating-point operations of large products, and bytes that it copies."""

    flop: float
    bytes: float


TRAINING, DECODING = 0.6, 0.5
"""Shares of a machine's products that training and decoding reach; docs/performance.md measured 65 to 74 % and 48 to 70 %."""


def speed_from_flop(machine: Machine, sizes: Sizes, work: Work, widths: tuple[int, int]) -> Speed:
    """Without a model: products at a share of the machine's rate; a decode step reads all weights, a row its keys and values.
    widths: bytes of a number in the engine's products, and in the learner's.
    """
    width, learned = widths
    weights = width * (sizes.active + sizes.table)
    key_bytes = 2 * width * sizes.keys * sizes.width * sizes.layers
    one = Reading(work.batch.actor.largest, work.batch.actor.trained, work.lengths.row)
    of_token = 2 * (sizes.active + sizes.table)
    return Speed(
        step=weights / machine.bytes, row=of_token / (DECODING * machine.flop) + key_bytes * work.lengths.row / machine.bytes,
        seen=key_bytes / machine.bytes, context=work.lengths.row,
        prefill=2 * sizes.active / (TRAINING * machine.flop), learned=one,
        learn=learn_flop(sizes, one, checkpointing=work.checkpointing) / (TRAINING * machine.flop),
        fixed=(4 + learned) * sizes.parameters / machine.bytes if learned < 4 else 0.0,
        forward=forward_flop(sizes, one) / (TRAINING * machine.flop),
        # weights, gradients and two moments are read, and all but the gradients written
        optimizer=7 * 4 * sizes.trained / machine.bytes, publish=(4 + width) * sizes.parameters / machine.bytes, stop=None,
        source=f"{machine.flop / 1e9:,.0f} GFLOP/s and {machine.bytes / 1e9:.0f} GB/s, without the model",
    )  # fmt: skip


def hours(seconds: float) -> str:
    """A time to read."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
