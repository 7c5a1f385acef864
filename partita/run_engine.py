"""What samples in a run whose engine is in other processes: how its servers are started, and the engine that asks them.

Left out: the engine in this process (`run_models`), and who starts servers (`launch`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from partita.engine.api import Engine
from partita.engine.config import RolloutConfig, compute_dtype
from partita.engine.servers.addresses import Addresses, Given, Started
from partita.engine.servers.api import EngineError, Served, Transfer
from partita.engine.servers.client import ServerEngine, Servers
from partita.engine.servers.kinds import dialect_of
from partita.engine.servers.probe import Probe
from partita.engine.servers.published import Publisher
from partita.engine.servers.vllm_transfer import VllmTransfer, can_transfer
from partita.launch.roles import FILES, ID
from partita.models.adapters import started_at_zero
from partita.models.load import LoadedModel, model_context, model_folder
from partita.models.lora import export_adapter
from partita.models.packed import tied_names, weights
from partita.run import RunConfig
from partita.train.config import ActorConfig
from partita.train.probed import logprobs_after
from partita.train.stepper import precision

PROBE = "What is the largest number in this list: 17, 4, 52, 9? The largest number is"
LIMITS = {torch.bfloat16: 0.3, torch.float32: 0.02}
"""Nats a token that two ways of computing the same weights may differ by, from what one of them computes in."""


def served_by(config: RunConfig) -> bool:
    """Whether the engine is in other processes."""
    return config.rollout.backend != "local" or config.allocation.servers > 0 or bool(config.rollout.servers)


def served_of(actor: ActorConfig, rollout: RolloutConfig, device: torch.device, context: int | None = None) -> Served:
    """What the servers of a run serve. device: where they compute. context: the model's, None where it is not loaded.

    Raises ModelLoadError for a model that is not on this machine.
    """
    asked, trust = rollout.server, actor.trust_remote_code
    able = model_context(actor.path, trust) if context is None else context
    return Served(
        model=str(model_folder(actor.path)),
        dtype=str(compute_dtype(rollout.dtype, device)).removeprefix("torch."),
        context=able if asked.context is None else min(able, asked.context),
        slots=rollout.max_concurrent_rollouts,
        python=asked.python or sys.executable,
        device=device.type,
        tensor_parallel=asked.tensor_parallel,
        adapter_rank=actor.lora.rank if actor.lora is not None and _adapters_alone(actor, rollout) else None,
        trust_remote_code=trust,
        prefill_tokens=rollout.prefill_tokens,
        apart=rollout.max_head_offpolicyness == 0,
        args=asked.args,
        env={name: str(value) for name, value in asked.env.items()},
    )


def open_servers(config: RunConfig, loaded: LoadedModel, device: torch.device) -> tuple[LoadedModel, ServerEngine]:
    """The model with the context that the servers have room for, and the engine that asks them; they have its weights then.

    Its `probe` and its `publisher` look at the model in this process until `follow_team`. Raises EngineError.
    """
    rollout, dialect = config.rollout, dialect_of(config.rollout.backend)
    _refuse_cut(config)
    served = served_of(config.actor, rollout, device, loaded.context)
    dtype = getattr(torch, served.dtype)
    adapter = partial(export_adapter, loaded.model) if served.adapter_rank is not None else None
    servers = Servers(dialect, served, _addresses(config), rollout.server, _transfer(config, served, device, dtype))
    tied = tied_names(loaded.model) if dialect.tied_twice else {}
    publisher = Publisher(weights_folder(rollout), Path(served.model), dtype, adapter, tied)
    engine = ServerEngine(servers, loaded.tokenizer, publisher, _probe(config, loaded, device, dtype))
    try:
        engine.publish(weights(loaded.model), 0)
    except BaseException:
        engine.close()
        raise
    note = f"sampling by {len(servers.addresses)} {rollout.backend} server(s) in {served.dtype}: {_agreement(engine)}"
    return replace(loaded, context=served.context, notes=(*loaded.notes, note)), engine


class Probed(Protocol):
    """The models of a run on all of its ranks (`train.team`)."""

    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
        """Of the ids that follow the prompt, under the policy of now."""
        ...

    def export_adapter(self, folder: Path) -> None:
        """Write the adapters alone."""
        ...


def follow_team(engine: Engine, team: Probed) -> None:
    """From here on, let all ranks compute what servers are compared with, and write adapters: the model is spread over them."""
    if isinstance(engine, ServerEngine):
        if engine.probe is not None:
            engine.probe.score = team.logprobs
        if engine.publisher.adapter is not None:
            engine.publisher.adapter = team.export_adapter


def _agreement(engine: ServerEngine) -> str:
    """How far they were from the policy at the start."""
    if engine.probe is None:
        return "not compared with the policy (rollout.probe)"
    return f"{engine.probe.difference:.1e} nats a token from the policy (limit {engine.probe.limit:.2g})"


def _adapters_alone(actor: ActorConfig, rollout: RolloutConfig) -> bool:
    """Whether servers get the adapters only. Samples of the starting policy come from whole weights, whatever is trained."""
    zero = actor.lora is not None and started_at_zero(actor.lora)
    return zero and rollout.policy == "newest" and dialect_of(rollout.backend).adapters_alone


def _refuse_cut(config: RunConfig) -> None:
    """Raises EngineError for samples to train on whose log-probs a server would tell of another distribution."""
    if config.gconfig.allow_truncated_sampling and config.gconfig.truncations and config.rollout.backend != "local":
        raise EngineError(
            f"gconfig.{', '.join(config.gconfig.truncations)} with rollout.backend={config.rollout.backend}: the server's "
            "log-probs are of the truncated distribution, not of the full softmax that is trained; sample without it, or "
            "with rollout.backend=local"
        )


def _transfer(config: RunConfig, served: Served, device: torch.device, dtype: torch.dtype) -> Transfer | None:
    """How weights go past the folder, where they do. Raises EngineError where they were to and cannot."""
    asked = config.rollout.server.weights
    fits = config.rollout.backend == "vllm" and served.adapter_rank is None and can_transfer(device)
    if asked == "transfer" and not fits:
        raise EngineError(
            "rollout.server.weights=transfer needs rollout.backend=vllm, whole weights, a GPU in this process, and vLLM where "
            "this process can import it; leave it at auto"
        )
    return VllmTransfer(served.tensor_parallel, dtype) if fits and asked != "folder" else None


def _addresses(config: RunConfig) -> Addresses:
    if config.rollout.servers:
        return Given(config.rollout.servers)
    folder = os.environ.get(FILES)
    if folder is None:
        raise EngineError(
            f"rollout.backend={config.rollout.backend} without rollout.servers, and no launcher has started this process: give "
            "the addresses of running servers (rollout.servers=[http://host:8000])"
        )
    return Started(Path(folder), config.allocation.servers, os.environ.get(ID))


def weights_folder(rollout: RolloutConfig) -> Path:
    """Where publications are written: a folder of this process alone below what the config or the launcher names."""
    given, launch = rollout.server.weights_folder, os.environ.get(FILES)
    if given is None and launch is not None:
        parent = Path(launch) / "weights"
        shutil.rmtree(parent, ignore_errors=True)  # of a run in this folder that was killed
        parent.mkdir(parents=True)
        return parent
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        given = str(Path(given).resolve())  # servers run elsewhere
    return Path(tempfile.mkdtemp(prefix="partita-weights-", dir=given))


def _probe(config: RunConfig, loaded: LoadedModel, device: torch.device, dtype: torch.dtype) -> Probe | None:
    """None where nothing is compared: the config says so, or the servers sample from other weights than the trainer's."""
    asked, computed = config.rollout.probe, compute_dtype(config.actor.dtype, device)
    if asked.tokens == 0 or config.rollout.policy != "newest":
        return None
    limit = asked.max_difference
    if limit is None:
        limit = max(LIMITS[dtype], LIMITS[computed])
    ids = loaded.tokenizer(PROBE).input_ids[: max(1, loaded.context - asked.tokens)]
    return Probe(
        lambda *asked: logprobs_after(loaded.model, precision(loaded.model, computed), *asked), ids, tokens=asked.tokens,
        temperature=config.gconfig.temperature, limit=limit,
    )  # fmt: skip
