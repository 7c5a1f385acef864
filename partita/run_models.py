"""The models of a run: the policy and its engine, the critic, the reference, the reward model; on all of its ranks.

Left out: how they are trained (`train`), and what else a run consists of (`build`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerBase

from partita.engine.api import Engine
from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.engine.text import decode
from partita.models.adapters import started_at_zero
from partita.models.load import LoadedModel, find_stop_ids, load_causal_lm, load_tokenizer
from partita.models.lora import add_adapters, base_view
from partita.models.packed import PackedModel, cast_copy
from partita.models.parallel import ShardConfig, shard
from partita.models.process import load_process_model
from partita.models.reference import check_reference
from partita.models.scoring import is_scorer, load_scorer, load_value_model
from partita.models.selfcheck import decoding_copy
from partita.ops.memory import forget_products, keep_freed_memory
from partita.ops.ranks import ALONE, Ranks
from partita.report.metrics import Timer
from partita.run import REFERENCE, RunConfig
from partita.run_engine import open_servers, served_by
from partita.tasks.model_reward import ModelReward
from partita.tasks.process_reward import ProcessReward
from partita.tasks.reward import Judge
from partita.train.config import ActorConfig, CriticConfig, LearnedModelConfig, RefConfig
from partita.train.critic import Critic
from partita.train.learner import Learner
from partita.train.team import Team


class Trained(Protocol):
    """What a config says about the model that is trained, whatever it learns."""

    @property
    def actor(self) -> ActorConfig | LearnedModelConfig:
        """Its section."""
        ...

    @property
    def tokenizer_path(self) -> str | None:
        """Another tokenizer than its own."""
        ...

    @property
    def seed(self) -> int:
        """Of adapters."""
        ...


def load_policy(config: Trained, device: torch.device) -> LoadedModel:
    """The model `actor.path` in float32, with adapters if it has any. A tokenizer of `tokenizer_path` adds the ids that end its
    completions.
    """
    actor, path = config.actor, config.tokenizer_path
    trust = actor.trust_remote_code
    other = None if path in (None, actor.path) else load_tokenizer(path, trust)  # first: it is the quick part
    loaded = load_causal_lm(actor.path, dtype=torch.float32, trust_remote_code=trust, device=device)
    if actor.lora is not None:
        add_adapters(loaded.model, actor.lora, config.seed)
    if other is None:
        return loaded
    return replace(loaded, tokenizer=other, stop_ids=tuple(sorted({*loaded.stop_ids, *find_stop_ids(other, ())})))


def device_here() -> torch.device:
    """Where this process computes. On a CPU it keeps freed memory from here on, and code of few products."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    forget_products()
    keep_freed_memory()
    return torch.device("cpu")


def loading_place(config: RunConfig, device: torch.device, ranks: Ranks) -> torch.device:
    """Where models are read to: on several ranks into main memory, out of which each takes its part, unless the engine is in
    the process of rank 0, which needs all of them on its device.
    """
    return device if ranks.alone or not served_by(config) else torch.device("cpu")


def open_engine(config: RunConfig, ranks: Ranks = ALONE) -> tuple[LoadedModel, Engine, torch.device]:
    """The policy in float32, and an engine that decodes in its own precision: over weights of its own, or over the policy's
    modules where these can serve both; or one that asks servers.
    """
    device = device_here()
    loaded = load_policy(config, loading_place(config, device, ranks))
    if served_by(config):
        return *open_servers(config, loaded, device), device
    # modules that recompute their activations in training cannot decode with a cache meanwhile, and parts of them not at all
    turns = config.rollout.max_head_offpolicyness == 0 and config.rollout.policy == "newest"
    alone = turns and not config.actor.gradient_checkpointing and ranks.alone
    sampler, note = decoding_copy(
        loaded.model, compute_dtype(config.rollout.dtype, device), alone=alone, compiled=config.rollout.compile
    )
    engine = LocalEngine(
        sampler, loaded.tokenizer, slots=config.rollout.max_concurrent_rollouts, context=loaded.context,
        prefill_tokens=config.rollout.prefill_tokens,
    )  # fmt: skip
    return replace(loaded, notes=(*loaded.notes, note)), engine, device


def recompute(model: PackedModel) -> None:
    """Let the backward passes of a model compute its activations again instead of keeping them."""
    model.lm.activation_checkpointing_enable()
    model.train()  # the families recompute in training mode only; every dropout is off


@dataclass(frozen=True)
class Outline:
    """What rank 0 knows by its data and rewards, and the other ranks need to make the same models. needs: streams of all
    stages. steps: of the whole run.
    """

    needs: frozenset[str]
    steps: int


def make_team(
    config: RunConfig, policy: LoadedModel, device: torch.device, outline: Outline, tokenizer: PreTrainedTokenizerBase,
    ranks: Ranks = ALONE,
) -> Team:  # fmt: skip
    """What is trained, and the reference; on several ranks all of them sharded. tokenizer: of exports."""
    actor, section = config.actor, config.critic or CriticConfig()
    critic_model = _critic_model(config, policy) if "values" in outline.needs else None
    reference = _reference(config, policy, device, outline.needs, ranks) if outline.needs & REFERENCE else None
    if actor.gradient_checkpointing:
        recompute(policy.model)
    learned_in = compute_dtype(actor.dtype, device)
    shard(policy.model, ranks, actor.fsdp, learned_in)
    critic = None
    if critic_model is not None:
        dtype = learned_in if section.shared else compute_dtype(section.dtype, device)
        if not section.shared:
            shard(critic_model, ranks, section.fsdp, dtype)
        critic = Critic(
            critic_model, section, dtype, outline.steps, config.seed, actor.max_nonfinite_steps, ranks=ranks
        )
    learner = Learner(
        policy.model, actor, learned_in, config.gconfig.temperature, outline.steps, config.seed,
        reference=reference, vf_coef=section.vf_coef if critic is not None and section.shared else None,
        timer=Timer() if critic is None else critic.timer, ranks=ranks,
    )  # fmt: skip
    refreshed = config.ref is not None and config.ref.refresh_steps is not None
    return Team(learner, critic, tokenizer, refreshed, ranks)


def _critic_model(config: RunConfig, policy: LoadedModel) -> PackedModel:
    """The policy with a value head, or a model of its own: the starting policy's weights, or others."""
    section, path = config.critic or CriticConfig(), config.critic.path if config.critic else None
    trust, device = config.actor.trust_remote_code, policy.model.device
    if section.shared:
        model = policy.model
    elif path in (None, config.actor.path):
        model = cast_copy(policy.model, torch.float32)
    elif is_scorer(path, trust):
        model = load_value_model(path, policy.tokenizer, device=device, trust_remote_code=trust)
    else:
        loaded = load_causal_lm(path, dtype=torch.float32, trust_remote_code=trust, device=device)
        check_reference(policy, loaded, whole_vocabulary=False)
        model = loaded.model
    if model.value_head is None:
        model.add_value_head()
    if section.lora is not None:
        add_adapters(model, section.lora, config.seed)
    if section.gradient_checkpointing and not section.shared:
        recompute(model)
    return model


def _reference(
    config: RunConfig, policy: LoadedModel, device: torch.device, needs: frozenset[str], ranks: Ranks
) -> PackedModel:
    """The frozen starting policy, or another model, in its own precision. Where adapters began at zero the policy without
    them is that starting policy, and takes no memory on one rank.
    """
    section, lora = config.ref or RefConfig(), config.actor.lora
    dtype, path = compute_dtype(section.dtype, device), section.path
    learned_in = compute_dtype(config.actor.dtype, device)  # and what the reference says is computed in
    if path in (None, config.actor.path):
        if lora is not None and started_at_zero(lora) and section.refresh_steps is None:
            return base_policy(policy.model, ranks, config.actor.fsdp, learned_in)
        model = cast_copy(policy.model, dtype)
    else:
        trust = config.actor.trust_remote_code
        loaded = load_causal_lm(path, dtype=dtype, trust_remote_code=trust, device=policy.model.device)
        check_reference(policy, loaded, whole_vocabulary="kl_full_ref" in needs)
        model = loaded.model
    return frozen(model, ranks, replace(config.actor.fsdp, offload=section.offload), learned_in)


def base_policy(model: PackedModel, ranks: Ranks, spec: ShardConfig, dtype: torch.dtype) -> PackedModel:
    """The policy without its adapters, frozen: over the same weights, of which each of several ranks holds its part twice.
    dtype: of its products.
    """
    return shard(base_view(model), ranks, spec, dtype)


def frozen(model: PackedModel, ranks: Ranks, spec: ShardConfig, dtype: torch.dtype) -> PackedModel:
    """The model as it is, for good. spec.offload: it waits in main memory. dtype: of its products."""
    model.requires_grad_(False).eval()
    if ranks.alone:
        return model.to("cpu") if spec.offload else model
    return shard(model, ranks, spec, dtype)


def open_judge(
    config: RunConfig, path: str, policy: LoadedModel, device: torch.device
) -> tuple[Judge, tuple[str, ...]]:
    """The reward model `path`, in the precision that the device is fast in, and what to tell of it."""
    model = load_scorer(
        path, dtype=compute_dtype("auto", device), device=device, trust_remote_code=config.actor.trust_remote_code,
        normalise=config.reward.model_normalise,
    )  # fmt: skip
    judge = ModelReward(model, policy.tokenizer)
    return judge, tuple(f"reward model {path}: {note}" for note in (*model.notes, *judge.notes))


def open_process_model(
    config: RunConfig, path: str, policy: LoadedModel, device: torch.device
) -> tuple[Judge, tuple[str, ...]]:
    """The process reward model `path`, in the precision that the device is fast in, and what to tell of it."""
    trust, asked = config.actor.trust_remote_code, config.reward
    model = load_process_model(path, dtype=compute_dtype("auto", device), device=device, trust_remote_code=trust)
    judge = ProcessReward(model, partial(decode, policy.tokenizer), asked.process_steps, asked.process_separator)
    return judge, tuple(f"process reward model {path}: {note}" for note in model.notes)
