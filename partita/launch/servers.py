"""The command of the engine servers that a run starts.

Left out: asking them (`engine.servers`), and what they serve (`run_engine`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.engine.config import RolloutConfig
from partita.engine.servers.api import EngineError, Start
from partita.engine.servers.kinds import dialect_of
from partita.launch.roles import HOST, PORT
from partita.offline.config import DpoConfig, OfflineConfig
from partita.run import RunConfig
from partita.run_engine import served_of
from partita.train.config import ActorConfig


def rollout_of(config: RunConfig | OfflineConfig) -> RolloutConfig | None:
    """The section of what samples; None where nothing is sampled."""
    if isinstance(config, RunConfig):
        return config.rollout
    online = config.online if isinstance(config, DpoConfig) else None
    return None if online is None else online.rollout


def server_start(config: RunConfig | OfflineConfig, gpus: int) -> Start:
    """What starts a server with so many GPUs at `HOST` and `PORT`. Raises ConfigError where the engine cannot do what the config
    asks for, ModelLoadError for a model that is not on this machine.
    """
    rollout = rollout_of(config)
    assert rollout is not None, "checked where the config is loaded"
    if gpus and rollout.dtype == "auto" and not torch.cuda.is_available():
        # they are elsewhere, as all GPUs of batch systems are, and can do it
        rollout = replace(rollout, dtype="bfloat16")
    device = torch.device("cuda" if gpus else "cpu")
    try:
        return dialect_of(rollout.backend).command(served_of(_actor(config), rollout, device), HOST, int(PORT))
    except EngineError as error:
        raise ConfigError([Problem("allocation.servers", str(error))]) from error


def _actor(config: RunConfig | OfflineConfig) -> ActorConfig:
    """The section of the model that is sampled from."""
    if isinstance(config, RunConfig):
        return config.actor
    learned = config.actor
    return ActorConfig(path=learned.path, trust_remote_code=learned.trust_remote_code, lora=learned.lora)
