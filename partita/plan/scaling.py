"""How memory, communication and time of a step change with learner ranks, engine servers, tokens and the size of the model.

Fully sharded data parallelism gathers every layer for the forward pass, again for the backward pass, in the precision of products,
embedding and head once for both, in float32, and scatters the sum of the gradients, in float32: of N bytes a ring sends
N (R - 1) / R from each of R ranks (Patarasuk and Yuan 2009, section 3; Zhao et al. 2023, arXiv:2304.11277, section 3).
Micro-batches are dealt to the ranks; a turn takes as long as its largest one.

Left out: networks' shapes, and computing while weights travel: both times are added up, which is the most it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.plan.batch import Batch
from partita.plan.memory import WIDE, Shards, gathered_bytes, whole_bytes
from partita.plan.sizes import Sizes
from partita.plan.speed import Seconds

SLOW_LINK, FAST_LINK = 1.25e9, 25e9
"""Bytes a second between processes unless somebody knows better: 10 Gbit/s without GPUs, 200 Gbit/s with them."""


@dataclass(frozen=True)
class Cluster:
    """Who computes. learner, server: the share of the measured process's cores that each learner and each server has; 1 where each
    has a GPU of its own. link: bytes a second between two processes. keeps: gathered layers stay until the backward pass.
    width: bytes of a number in the learners' products.
    """

    learners: int = 1
    servers: int = 0
    learner: float = 1.0
    server: float = 1.0
    link: float = SLOW_LINK
    keeps: bool = False
    width: int = WIDE


def ring_bytes(size: float, ranks: int) -> float:
    """What each rank sends to gather `size` bytes from all, or to scatter their sum."""
    return size * (ranks - 1) / ranks


def step_bytes(sizes: Sizes, batch: Batch, cluster: Cluster) -> float:
    """What each learner sends in a train step for the policy."""
    turns = batch.actor.optimizer_steps * batch.actor.per_rank
    layers, outside = whole_bytes(sizes, cluster.width)
    gathered = (1 if cluster.keeps else 2) * layers + outside
    return turns * ring_bytes(gathered + WIDE * sizes.trained, cluster.learners)


def publish_bytes(sizes: Sizes, width: int, cluster: Cluster) -> float:
    """What leaves the first learner when the engine gets new weights: to each server the whole model, or the adapters alone."""
    return cluster.servers * width * (sizes.adapters or sizes.parameters)


def scaled(one: Seconds, sizes: Sizes, batch: Batch, cluster: Cluster, width: int) -> Seconds:
    """The seconds of a step on one process that has all cores, on these learners and servers instead. width: bytes of a number in
    the engine's products.

    Sampling: servers share the responses, and a server with fewer of them reads its weights as often; so of n servers each takes
    at least the time of its share. Learning: a rank has `per_rank` of the step's micro-batches.
    """
    cut = max(1, batch.actor.micro_batches)
    turns = batch.actor.per_rank * batch.actor.minibatches / cut  # of all micro-batches, how many one rank goes through
    learning = (turns if cluster.learners > 1 else 1.0) / cluster.learner
    sampling = 1 / (cluster.servers * cluster.server) if cluster.servers else 1 / cluster.learner
    sent = step_bytes(sizes, batch, cluster) + publish_bytes(sizes, width, cluster)
    return replace(
        one, sample=one.sample * sampling, score=one.score * learning, critic=one.critic * learning,
        learn=one.learn * learning, publish=one.publish / cluster.learner, rest=one.rest / cluster.learner,
        communicate=sent / cluster.link,
    )  # fmt: skip


def rank_bytes(sizes: Sizes, ranks: int, width: int) -> float:
    """Weights, gradients and moments of a rank, 16 bytes a parameter over the ranks, with what it gathers, width bytes a number."""
    held = WIDE * (3 * sizes.trained + (sizes.parameters if sizes.adapters else sizes.trained))
    return held / ranks + gathered_bytes(sizes, Shards(ranks), width)
