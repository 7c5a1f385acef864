"""Pairs from the policy itself: the best and the worst of its answers to a prompt, as a reward judges them (online DPO, Guo et
al. 2024, arXiv 2402.04792; with a reward and several answers, Xiong et al. 2023, arXiv 2312.11456).

Left out: what a pair costs. The answers of a step come from the weights of before it, so the pairs are fresh ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from partita.build import Stage, is_own, prompts_of, rollouts_of, stage, workflow_for
from partita.engine.api import Engine
from partita.offline.config import DpoConfig, OnlinePairsConfig
from partita.offline.source import Weights
from partita.ops.ranks import ALONE, Ranks
from partita.records import Group, Sample
from partita.report.metrics import Metrics
from partita.rollout.rollouts import Rollouts
from partita.rollout.summary import summarise_taken
from partita.run import RunConfig
from partita.train.config import ActorConfig
from partita.train.offline import Item


def pairs_of(groups: Sequence[Group]) -> list[Item]:
    """One pair for each group whose answers differ in reward: the first of the best, and the first of the worst. An answer
    without a reward is in none.
    """
    found = list[Item]()
    for group in groups:
        scored = [sample for sample in group.samples if sample.reward is not None and sample.length > 0]
        if not scored:
            continue
        best, worst = max(scored, key=_reward), min(scored, key=_reward)
        if _reward(best) > _reward(worst):
            found.append(Item(str(group.serial), (tuple(best.rows), tuple(worst.rows))))
    return found


def _reward(sample: Sample) -> float:
    assert sample.reward is not None, "asked of scored samples"
    return sample.reward


@dataclass
class OwnPairs:
    """Samples a step's prompts, and hands the engine the weights that were learned from them. size: prompts of an epoch.
    loop: runs what waits for the engine and for rewards.
    """

    rollouts: Rollouts
    engine: Engine
    loop: asyncio.Runner
    batch_size: int
    size: int

    @property
    def taken(self) -> int:
        """Prompts used so far."""
        return self.rollouts.used

    def take(self) -> tuple[list[Item], Metrics]:
        """The pairs of a step, and what the answers were like; `pairs` counts the prompts that gave one. Raises RewardErrors as
        `Rollouts.take` does.
        """
        taken = self.loop.run(self.rollouts.take(self.batch_size))
        pairs, metrics = pairs_of(taken.groups), summarise_taken(taken)
        metrics.count("pairs", float(len(pairs)))
        return pairs, metrics

    def learned(self, step: int, weights: Weights) -> None:
        """Publish the weights of after train step `step`, counted from 1."""
        self.engine.publish(weights(), step)

    def state_dict(self) -> dict[str, Any]:
        """Where sampling stands."""
        return self.rollouts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.rollouts.load_state_dict(state)


@contextmanager
def own_pairs(config: DpoConfig, ranks: Ranks = ALONE) -> Iterator[tuple[OwnPairs, Stage, tuple[str, ...]]]:
    """The source of a run, the policy with its engine, and lines about the prompts; closed in the end."""
    section = config.online
    assert section is not None, "asked of a config with pairs of its own"
    run = sampled(config, section)
    with (
        workflow_for(run) as workflow,
        stage(run, own_workflow=is_own(run), ranks=ranks) as made,
        asyncio.Runner() as loop,
    ):
        prompts = prompts_of(run, made.train_rows, run.train_dataset, made.loaded, "online.prompts")
        rollouts = rollouts_of(run, made, workflow, prompts)
        source = OwnPairs(rollouts, made.engine, loop, section.prompts.batch_size, len(prompts.prompts))
        yield source, made, (*made.train_rows.notes, *prompts.notes)


def sampled(config: DpoConfig, section: OnlinePairsConfig) -> RunConfig:
    """What `partita train` would sample with."""
    actor = config.actor
    return RunConfig(
        seed=config.seed, total_train_epochs=config.total_train_epochs, total_train_steps=config.total_train_steps,
        tokenizer_path=config.tokenizer_path, gconfig=section.gconfig, rollout=section.rollout, reward=section.reward,
        train_dataset=section.prompts, allocation=config.allocation,
        actor=ActorConfig(
            path=actor.path, dtype=actor.dtype, trust_remote_code=actor.trust_remote_code, lora=actor.lora,
            gradient_checkpointing=actor.gradient_checkpointing,
        ),
    )  # fmt: skip
