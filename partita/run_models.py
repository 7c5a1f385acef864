"""The models of a run: the policy and its engine, the critic, the reference, the reward model.

Left out: how they are trained (`train`), and what else a run consists of (`build`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.engine.text import decode
from partita.models.adapters import started_at_zero
from partita.models.load import LoadedModel, find_stop_ids, load_causal_lm, load_tokenizer
from partita.models.lora import add_adapters, base_view
from partita.models.packed import PackedModel, cast_copy
from partita.models.process import load_process_model
from partita.models.reference import check_reference
from partita.models.scoring import is_scorer, load_scorer, load_value_model
from partita.models.selfcheck import decoding_copy
from partita.ops.memory import keep_freed_memory
from partita.run import RunConfig
from partita.tasks.model_reward import ModelReward
from partita.tasks.process_reward import ProcessReward
from partita.tasks.reward import Judge
from partita.train.config import ActorConfig, CriticConfig, LearnedModelConfig, RefConfig
from partita.train.critic import Critic


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


def open_engine(config: RunConfig) -> tuple[LoadedModel, LocalEngine, torch.device]:
    """The policy in float32, and an engine that decodes in its own precision: over weights of its own, or over the policy's
    modules where these can serve both. On a CPU the process keeps freed memory from here on.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        keep_freed_memory()
    loaded = load_policy(config, device)
    # modules that recompute their activations in training cannot decode with a cache meanwhile
    turns = config.rollout.max_head_offpolicyness == 0 and config.rollout.policy == "newest"
    alone = turns and not config.actor.gradient_checkpointing
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


def make_critic(config: RunConfig, policy: LoadedModel, device: torch.device, steps: int) -> Critic:
    """The policy with a value head, or a model of its own: the starting policy's weights, or others."""
    section, path = config.critic or CriticConfig(), config.critic.path if config.critic else None
    trust = config.actor.trust_remote_code
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
    dtype = compute_dtype(config.actor.dtype if section.shared else section.dtype, device)
    return Critic(model, section, dtype, steps, config.seed, config.actor.max_nonfinite_steps)


def make_reference(config: RunConfig, policy: LoadedModel, device: torch.device, needs: frozenset[str]) -> PackedModel:
    """The frozen starting policy, or another model, in its own precision. Where adapters began at zero the policy without
    them is that starting policy, and takes no memory.
    """
    section, lora = config.ref or RefConfig(), config.actor.lora
    dtype, path = compute_dtype(section.dtype, device), section.path
    if path in (None, config.actor.path):
        if lora is not None and started_at_zero(lora) and section.refresh_steps is None:
            return base_view(policy.model)
        model = cast_copy(policy.model, dtype)
    else:
        trust = config.actor.trust_remote_code
        loaded = load_causal_lm(path, dtype=dtype, trust_remote_code=trust, device=device)
        check_reference(policy, loaded, whole_vocabulary="kl_full_ref" in needs)
        model = loaded.model
    return (model.to("cpu") if section.offload else model).requires_grad_(False).eval()


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
