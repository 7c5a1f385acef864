"""The models of a run on data, on all of its ranks: what is trained, the frozen reference, and how the result is written.

Left out: the data, and what happens in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from partita.algo.reduce import Reduce, SeqMeanTokenMean, TokenMean
from partita.config.schema import plain
from partita.engine.config import compute_dtype
from partita.models.export import export_hf, export_scorer
from partita.models.load import LoadedModel, load_causal_lm
from partita.models.packed import PackedModel, cast_copy
from partita.models.parallel import shard
from partita.models.reference import check_reference
from partita.models.scoring import ScoreStats
from partita.offline.config import DpoConfig, OfflineConfig, RmConfig, SftConfig
from partita.offline.online import sampled
from partita.ops.ranks import ALONE, Ranks
from partita.report.metrics import Timer
from partita.run_models import base_policy, frozen, load_policy, loading_place, recompute
from partita.tasks.prompt import carrying
from partita.train.objectives import Imitate, Judge, Prefer, Rank
from partita.train.offline import Item, Objective, OfflineLearner, Reference
from partita.train.offline_team import OfflineTeam
from partita.train.references import Asked, Told, known
from partita.train.stepper import Stepper

REFERENCE = "reference.safetensors"
REDUCE: Mapping[str, Reduce] = {"token_mean": TokenMean(), "seq_mean_token_mean": SeqMeanTokenMean()}


def load_model(config: OfflineConfig, device: torch.device, ranks: Ranks = ALONE) -> LoadedModel:
    """The model in float32, with adapters if asked for, and with a value head for a reward model; on several ranks in main
    memory, where no engine needs it.
    """
    online = config.online if isinstance(config, DpoConfig) else None
    place = device if ranks.alone else torch.device("cpu")
    if isinstance(config, DpoConfig) and online is not None:
        place = loading_place(sampled(config, online), device, ranks)
    loaded = load_policy(config, place)
    if isinstance(config, RmConfig):
        loaded.model.add_value_head()
    if config.actor.gradient_checkpointing:
        recompute(loaded.model)
    return loaded


def make_team(config: OfflineConfig, loaded: LoadedModel, device: torch.device, ranks: Ranks = ALONE) -> OfflineTeam:
    """What is trained, and its reference; on several ranks sharded. What a reference says before training is still to be
    asked: `know`.
    """
    section, timer, dtype = config.actor, Timer(), compute_dtype(config.actor.dtype, device)
    objective = _objective(config)
    reference, ask = None, None
    if objective.reference:
        assert isinstance(config, DpoConfig), "only preferences are compared with a reference"
        if config.ref.log_probs == "precomputed":
            reference, ask = Told(ranks, None), partial(_asked, config, loaded, device, ranks)
        else:
            reference = _asked(config, loaded, device, ranks)
    shard(loaded.model, ranks, section.fsdp, dtype)
    stepper = Stepper(loaded.model, section.optimizer, dtype, section.max_nonfinite_steps, timer)
    learner = OfflineLearner(
        loaded.model, objective, stepper, section.mb_spec.max_tokens_per_mb, reference, timer, ranks
    )
    return OfflineTeam(learner, partial(write_model, config, loaded, ranks=ranks), ask, ranks)


def know(
    config: OfflineConfig, team: OfflineTeam, items: Sequence[Item], folder: Path, say: Callable[[str], None]
) -> None:
    """Where the reference is asked once about all items, read its answers from the run's folder, or ask it: before any
    checkpoint is loaded, for the model that training starts from may be it.
    """
    if team.ask is None:
        return
    assert isinstance(config, DpoConfig), "only preferences are compared with a reference"
    section, actor, dtype = config.ref, config.actor, team.learner.stepper.compute_dtype
    named = plain(actor.lora) if _own(config) else section.dtype
    found = known(items, team.asked, folder / REFERENCE, f"{section.path or actor.path} {named} {dtype}", say)
    team.learner.reference = Told(team.ranks, found)


def _objective(config: OfflineConfig) -> Objective:
    if isinstance(config, SftConfig):
        return Imitate(REDUCE[config.loss_agg_mode])
    if isinstance(config, RmConfig):
        return Rank(config.loss())
    assert isinstance(config, DpoConfig)
    return Judge(config.loss.kto()) if config.loss.type == "kto" else Prefer(config.loss.pair_loss())


def _asked(config: DpoConfig, loaded: LoadedModel, device: torch.device, ranks: Ranks) -> Reference:
    """The frozen policy: before any checkpoint is loaded, the model that training starts from is it."""
    section, actor, budget = config.ref, config.actor, config.actor.mb_spec.max_tokens_per_mb
    dtype = compute_dtype(actor.dtype, device)
    if section.log_probs == "adapter_off":
        return Asked(base_policy(loaded.model, ranks, actor.fsdp, dtype), dtype, budget, ranks=ranks)
    if _own(config) and section.log_probs == "precomputed":
        return Asked(loaded.model, dtype, budget, ranks=ranks)
    model, dtype = _frozen(config, loaded, device, ranks), compute_dtype(section.dtype, device)
    return Asked(model, dtype, budget, loaded.model.device, ranks)


def _own(config: DpoConfig) -> bool:
    """Whether the reference is the model that training starts from."""
    return config.ref.path in (None, config.actor.path)


def _frozen(config: DpoConfig, loaded: LoadedModel, device: torch.device, ranks: Ranks) -> PackedModel:
    section, actor = config.ref, config.actor
    dtype = compute_dtype(section.dtype, device)
    if section.path in (None, actor.path):
        model = cast_copy(loaded.model, dtype)
    else:
        place, trust = loaded.model.device, actor.trust_remote_code
        other = load_causal_lm(section.path, dtype=dtype, trust_remote_code=trust, device=place)
        check_reference(loaded, other, whole_vocabulary=False)
        model = other.model
    return frozen(model, ranks, replace(actor.fsdp, offload=section.offload), dtype)


def write_model(
    config: OfflineConfig, loaded: LoadedModel, folder: Path, stats: ScoreStats | None = None, ranks: Ranks = ALONE
) -> None:
    """The folder that others load, with a tokenizer that shows conversations as training did."""
    online = config.online if isinstance(config, DpoConfig) else None
    section = config.train_dataset if online is None else online.prompts
    tokenizer = carrying(loaded.tokenizer, section.chat_template, section.chat_template_kwargs)
    if isinstance(config, RmConfig):
        export_scorer(loaded.model, tokenizer, folder, stats, ranks)
    else:
        export_hf(loaded.model, tokenizer, folder, ranks)
