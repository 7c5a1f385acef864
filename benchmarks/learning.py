"""The learn phase alone: random tokens straight into the learner of a run.

Left out: sampling and credit. Rewards alternate, so every group is mixed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import torch
from workload import alternating

from partita.algo.compose import compose
from partita.engine.config import compute_dtype
from partita.models.packed import PackedModel
from partita.records import Group, Prompt, Row, Sample
from partita.run import RunConfig, load_run_config
from partita.train.batch import collate
from partita.train.learner import Learner
from partita.trainer import QUICKSTART

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """`groups` x `samples` responses of `response` tokens after prompts of `prompt` tokens."""

    groups: int
    samples: int
    prompt: int
    response: int

    @property
    def tokens(self) -> int:
        """Of the model's input, prompts counted once."""
        return self.groups * (self.prompt + self.samples * self.response)

    @property
    def trained(self) -> int:
        """Tokens of responses."""
        return self.groups * self.samples * self.response


def groups_of(shape: Shape, vocabulary: int, seed: int = 0) -> list[Group]:
    """Random tokens as a rollout would give them."""
    draw = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [draw.randrange(3, vocabulary) for _ in range(length)]

    def sample(prompt: list[int], index: int) -> Sample:
        before, after = shape.prompt, shape.response
        row = Row(
            prompt + ids(after), [False] * before + [True] * after, [0.0] * before + [-10.0] * after,
            [-1] * before + [0] * after,
        )  # fmt: skip
        return Sample(rows=[row], stop_reason="length", text="", reward=alternating(index))

    found: list[Group] = []
    for serial in range(shape.groups):
        prompt = ids(shape.prompt)
        members = [sample(prompt, index) for index in range(shape.samples)]
        found.append(Group(serial, Prompt(str(serial), tuple(prompt), "", {}), members))
    return found


class Learning:
    """A learner that takes GRPO steps on groups of one shape."""

    def __init__(self, model: PackedModel, dtype: str, *keys: str) -> None:
        self.config: RunConfig = load_run_config(
            [QUICKSTART], [f"actor.dtype={dtype}", "actor.entropy_coef=0.0", *keys]
        ).value
        self.learner = Learner(model, self.config.actor, compute_dtype(self.config.actor.dtype, CPU), 1.0, 1000, 0)

    def prepared(self, shape: Shape):
        """What `seconds` takes: credited once, so that only learning is timed."""
        algorithm = compose(self.config.actor, n_samples=shape.samples, max_new_tokens=shape.response)
        rollout = collate(groups_of(shape, self.learner.model.vocabulary), seed=0, version=0)
        return algorithm, rollout.with_batch(algorithm.credit(rollout.batch))

    def seconds(self, prepared) -> float:
        """Of a learn phase: forward, backward, clipping, optimizer."""
        algorithm, rollout = prepared
        began = time.perf_counter()
        self.learner.learn(rollout, algorithm, 0)
        return time.perf_counter() - began
