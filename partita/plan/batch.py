"""Batch arithmetic: how many prompts, samples, tokens, minibatches, micro-batches and optimizer steps a train step has.

Micro-batches are counted by the code that makes them, on rows of the planned lengths.
Left out: which samples turn out to teach nothing. All are counted; a run leaves such samples out of the passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from partita.ops.packing import micro_batches
from partita.records import Row
from partita.run import RunConfig
from partita.train.minibatches import minibatches

MOST_TOKENS = 1 << 19
"""Of a minibatch that is laid out to count micro-batches; a larger one is laid out in coarser tokens."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt and of a response, on average and at most."""

    prompt: float
    longest_prompt: int
    response: float
    longest_response: int

    @property
    def row(self) -> float:
        """A prompt and its response, on average."""
        return self.prompt + self.response

    @property
    def longest_row(self) -> int:
        """The longest prompt with the longest response."""
        return self.longest_prompt + self.longest_response


@dataclass(frozen=True)
class Tokens:
    """Of one train step. generated: by the engine. read: model-input tokens of one pass over the rollout batch, where a prompt is
    counted once for its samples. trained: those with a log-prob of their own.
    """

    prompts: int
    generated: int
    read: int
    trained: int


@dataclass(frozen=True)
class Passes:
    """How one model reads a rollout batch. largest: model-input tokens of the largest micro-batch; trained: those of them whose
    log-probs are learned. per_rank: micro-batches of a rank in one minibatch, the same on all. fullest: tokens of the largest
    micro-batch that shorter responses than these may make: more of them fit into one, up to the budget.
    """

    epochs: int
    minibatches: int
    micro_batches: int
    per_rank: int
    largest: int
    trained: int
    fullest: int

    @property
    def optimizer_steps(self) -> int:
        """Of a train step."""
        return self.epochs * self.minibatches


@dataclass(frozen=True)
class Batch:
    """A train step of one stage, in numbers. critic: where it has a model of its own."""

    prompts: int
    samples_per_prompt: int
    expected: Tokens
    most: Tokens
    actor: Passes
    critic: Passes | None

    @property
    def samples(self) -> int:
        """Responses of a step."""
        return self.prompts * self.samples_per_prompt


def batch_of(config: RunConfig, lengths: Lengths, *, ranks: int = 1, critic: bool = False) -> Batch:
    """Of a stage's config. critic: whether one with a model of its own learns too."""
    actor, section = config.actor, config.critic
    budget = actor.mb_spec.max_tokens_per_mb
    asked = Asked(actor.ppo_epochs, actor.ppo_n_minibatches, actor.minibatch_split, budget)
    own = None
    if critic and section is not None:
        own = Asked(
            section.ppo_epochs or asked.epochs, section.ppo_n_minibatches or asked.minibatches, section.minibatch_split,
            section.mb_spec.max_tokens_per_mb,
        )  # fmt: skip
    elif critic:
        own = asked
    groups = Groups(
        config.train_dataset.batch_size, config.gconfig.n_samples, round(lengths.prompt), round(lengths.response)
    )
    widest = Groups(groups.prompts, groups.samples, lengths.longest_prompt, lengths.longest_response)
    return Batch(
        groups.prompts, groups.samples, groups.tokens(), widest.tokens(), passes(groups, asked, ranks),
        None if own is None else passes(groups, own, ranks),
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """How a rollout batch is cut: by epochs, into minibatches, and these by a budget of model-input tokens."""

    epochs: int
    minibatches: int
    split: Literal["groups", "spread"]
    budget: int


@dataclass(frozen=True)
class Groups:
    """`prompts` groups of `samples` samples, all of one length."""

    prompts: int
    samples: int
    prompt: int
    response: int

    def read(self, owners: Sequence[int]) -> int:
        """Model-input tokens of samples of these groups: each group's prompt once, and a row without its last token, from which
        nothing is predicted.
        """
        return len(set(owners)) * self.prompt + len(owners) * (max(1, self.response) - 1)

    def tokens(self) -> Tokens:
        """What a step has of them."""
        response, number = max(1, self.response), self.prompts * self.samples
        read = self.prompts * self.prompt + number * (response - 1)
        return Tokens(self.prompts * self.prompt, number * response, read, number * response)


def passes(groups: Groups, asked: Asked, ranks: int = 1) -> Passes:
    """Cut a rollout batch as the learner does, the first epoch of the first step."""
    group_of_sample = [index // groups.samples for index in range(groups.prompts * groups.samples)]
    dealt = minibatches(group_of_sample, asked.minibatches, asked.split, (0, 0, 0))
    coarse = max(1, math.ceil(groups.tokens().read / len(dealt) / MOST_TOKENS))
    rows = _Rows(-(-groups.prompt // coarse), max(2, -(-groups.response // coarse)))
    total = each = largest = trained = fullest = 0
    for chosen in dealt:
        owners = [group_of_sample[sample] for sample in chosen]
        given = [rows.of(sample) for sample in chosen]
        cut = micro_batches(given, owners, max(1, asked.budget // coarse), ranks=ranks)
        total, each = total + sum(map(bool, cut)), max(each, math.ceil(len(cut) / ranks))
        fullest = max(fullest, min(asked.budget, math.ceil(groups.read(owners) / ranks)))
        for micro in cut:
            size = groups.read([owners[place] for place in micro])
            if size > largest:
                largest, trained = size, len(micro) * max(1, groups.response)
    return Passes(asked.epochs, len(dealt), total, each, largest, trained, max(largest, fullest))


@dataclass(frozen=True)
class _Rows:
    prompt: int
    response: int

    def of(self, sample: int) -> list[Row]:
        """A row of this length that differs from other samples' from its first response token on."""
        ids = [0] * self.prompt + [sample + 1] * self.response
        trained = [False] * self.prompt + [True] * self.response
        return [Row(ids, trained, [], [])]
