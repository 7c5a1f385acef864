"""Which models each process of a run holds, and what they take: the first learner, the other learners, an engine server.

Left out: the formulas (`plan.memory`) and what there is room for (`plan.room`). Workers of reward functions are processes of their
own, and small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from partita.engine.config import compute_dtype
from partita.models.adapters import started_at_zero
from partita.plan.batch import Batch, Lengths, Passes, batch_of
from partita.plan.memory import (
    ALWAYS,
    WIDE,
    Memory,
    Moment,
    Part,
    Pass,
    Shards,
    Slots,
    activation_bytes,
    engine_of,
    freed_of,
    memory_of,
    pass_of,
    rounded_bytes,
    weights_of,
)
from partita.plan.sizes import Sizes, sizes_of
from partita.run import REFERENCE, Planned, RunConfig
from partita.train.config import CriticConfig

RESERVED_BY_VLLM = 0.9
"""Share of a GPU that vLLM takes unless --gpu-memory-utilization says otherwise."""


@dataclass(frozen=True)
class Models:
    """What a run's models are made of. critic: where it is one of its own; reference: where it is not the policy's base; judges:
    reward models by the key that names them; needs: the streams of all stages' algorithms.
    """

    policy: Sizes
    critic: Sizes | None
    reference: Sizes | None
    judges: dict[str, Sizes]
    needs: frozenset[str]
    context: int


@dataclass(frozen=True)
class Place:
    """Where a process runs. base: bytes of a process before it has models. on_cpu: models are in main memory, where what was
    freed stays with the process.
    """

    device: torch.device
    base: float
    context_bytes: float = 0.0

    @property
    def on_cpu(self) -> bool:
        """Whether models and process share one memory."""
        return self.device.type == "cpu"


def models_of(config: RunConfig, needs: frozenset[str], context: int) -> Models:
    """Read the configurations of all models. Raises ModelLoadError."""
    actor, trust = config.actor, config.actor.trust_remote_code
    policy = sizes_of(actor.path, actor.lora, trust_remote_code=trust)
    critic = reference = None
    section = config.critic or CriticConfig()
    if "values" in needs and not section.shared:
        critic = sizes_of(section.path or actor.path, section.lora, trust_remote_code=trust)
    if needs & REFERENCE and not _is_base(config):
        path = config.ref.path if config.ref else None
        reference = sizes_of(path or actor.path, trust_remote_code=trust)
    named = {"reward.model": config.reward.model, "reward.process_model": config.reward.process_model}
    judges = {key: sizes_of(path, trust_remote_code=trust) for key, path in named.items() if path is not None}
    return Models(policy, critic, reference, judges, needs, context)


def _is_base(config: RunConfig) -> bool:
    """Whether the reference is the policy without its adapters."""
    lora, ref = config.actor.lora, config.ref
    own = ref is None or ref.path in (None, config.actor.path)
    refreshed = ref is not None and ref.refresh_steps is not None
    return own and lora is not None and started_at_zero(lora) and not refreshed


@dataclass(frozen=True)
class Stage:
    """One stage of a run with its numbers."""

    planned: Planned
    lengths: Lengths
    batch: Batch
    """At the expected lengths."""
    widest: Batch
    """Where every prompt and response is as long as they come."""

    @property
    def config(self) -> RunConfig:
        """The stage's."""
        return self.planned.config


def stage_of(planned: Planned, lengths: Lengths, models: Models) -> Stage:
    """The arithmetic of a stage, twice."""
    longest = Lengths(
        lengths.longest_prompt, lengths.longest_prompt, lengths.longest_response, lengths.longest_response
    )
    asked: dict[str, Any] = {
        "ranks": planned.config.allocation.learners,
        "critic": models.critic is not None and "values" in planned.algorithm.needs,
    }
    both = (batch_of(planned.config, one, **asked) for one in (lengths, longest))
    return Stage(planned, lengths, *both)


def slots_of(stage: Stage, device: torch.device) -> Slots:
    """What the built-in engine has at a time; several servers share a step's groups."""
    config, batch, servers = stage.config, stage.batch, max(1, stage.config.allocation.servers)
    groups = -(-batch.prompts // servers)
    rows = min(config.rollout.max_concurrent_rollouts, groups * batch.samples_per_prompt)
    prompts = min(groups, -(-rows // batch.samples_per_prompt) + 1)
    width = compute_dtype(config.rollout.dtype, device).itemsize
    return Slots(rows, prompts, stage.lengths.longest_prompt, stage.lengths.longest_response, width)


def learner(stage: Stage, models: Models, place: Place, *, first: bool = True) -> Memory:
    """What a learner holds; the first one also the engine in its process and the reward models."""
    config = stage.config
    ranks = config.allocation.learners
    keeps = not config.actor.fsdp.reshard_after_forward
    shards = Shards(ranks, keeps)
    widths = {"policy": _width(config.actor.dtype, place)}
    policy = _pass(stage.widest.actor, widths["policy"], config.actor.gradient_checkpointing, stage)
    parts = [Part("process: Python, torch, data", place.base), Part("device: CUDA's own", place.context_bytes)]
    parts += weights_of("policy", models.policy, shards, "step")
    parts += pass_of("policy", models.policy, shards, policy, ("learn", "step"))
    parts += list(_scored(stage, models, place, policy, shards))
    parts += list(_frozen(stage, models, place, shards))
    if models.critic is not None and stage.widest.critic is not None:
        section = config.critic or CriticConfig()
        width = _width(section.dtype, place)
        one = _pass(stage.widest.critic, width, section.gradient_checkpointing, stage)
        parts += weights_of("critic", models.critic, shards, "critic's step")
        parts += pass_of("critic", models.critic, shards, replace(one, trained=0), ("critic learns", "critic's step"))
    if first:
        parts += list(_led(stage, models, place))
    return memory_of([*parts, freed_of(parts)] if place.on_cpu else parts)


def _scored(stage: Stage, models: Models, place: Place, one: Pass, shards: Shards) -> Iterator[Part]:
    """A pass without gradient keeps one layer's numbers at a time."""
    layer = activation_bytes(models.policy, replace(one, checkpointing=True)) / max(1, models.policy.layers)
    if stage.planned.algorithm.needs & {"prox", "old_entropy", "ref", "kl_full_score", "values"}:
        yield Part("scoring: a layer's numbers", 2 * layer, ("score",))
        yield Part("scoring: weights rounded for products", rounded_bytes(models.policy, shards, one), ("score",))


def _frozen(stage: Stage, models: Models, place: Place, shards: Shards) -> Iterator[Part]:
    """Models that every learner has beside those that learn."""
    config = stage.config
    if models.reference is not None:
        section = config.ref
        width = _width(section.dtype if section else "auto", place)
        waits = section is not None and section.offload and not place.on_cpu
        used: tuple[Moment, ...] = ("score", "learn") if waits else ALWAYS
        yield Part("reference: weights", shards.of(width * models.reference.parameters), used)
    steps = config.actor.ppo_epochs * config.actor.ppo_n_minibatches
    if "kl_full_old" in stage.planned.algorithm.needs and steps > 1:
        copied = models.policy.adapters or models.policy.parameters
        yield Part("policy of before the step, float32", shards.of(WIDE * copied))


def _led(stage: Stage, models: Models, place: Place) -> Iterator[Part]:
    """What the first learner has alone: the engine in its process, judges, and the weights that it started from."""
    config = stage.config
    if config.rollout.backend == "local" and config.allocation.servers == 0 and not config.rollout.servers:
        slots = slots_of(stage, place.device)
        alone = config.rollout.policy == "newest" and not config.actor.gradient_checkpointing and slots.width == WIDE
        shares = alone and not models.policy.common and not models.policy.adapters and config.allocation.learners == 1
        yield from engine_of(models.policy, slots, models.context, copies=not shares, on_cpu=place.on_cpu)
    width = compute_dtype("auto", place.device).itemsize
    for key, sizes in models.judges.items():
        yield Part(f"{key}: weights", width * sizes.parameters)
    if config.rollout.policy == "starting" and config.evaluator.freq_steps is not None:
        yield Part("starting weights, float32", WIDE * models.policy.parameters)


def server(stage: Stage, models: Models, place: Place, room: float) -> Memory:
    """What a server that the run starts holds. room: bytes of its device, of which vLLM and SGLang take their share whatever the
    model needs.
    """
    base = [Part("process: Python, torch", place.base), Part("device: CUDA's own", place.context_bytes)]
    slots = slots_of(stage, place.device)
    parts = engine_of(models.policy, slots, models.context, copies=True, on_cpu=place.on_cpu)
    if stage.config.rollout.backend == "local":
        return memory_of([*base, *(part for part in parts if "adapters" not in part.name)])
    whole = slots.width * models.policy.parameters / stage.config.rollout.server.tensor_parallel
    if not place.on_cpu:
        return memory_of([Part(f"{stage.config.rollout.backend}: its share of the GPU", RESERVED_BY_VLLM * room)])
    space = float(stage.config.rollout.server.env.get("VLLM_CPU_KVCACHE_SPACE", 4)) * 2**30
    return memory_of([*base, Part("engine: weights", whole), Part("engine: keys and values", space)])


def _width(name: Any, place: Place) -> int:
    return compute_dtype(name, place.device).itemsize


def _pass(one: Passes, width: int, checkpointing: bool, stage: Stage) -> Pass:
    trained = round(one.trained * one.fullest / max(1, one.largest))
    row = stage.lengths.longest_row - 1  # nothing is predicted from the last token
    return Pass(one.fullest, trained, row, width, checkpointing, one.per_rank)
