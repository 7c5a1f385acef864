"""Finished runs to replay: of the toy policy, with the config file that makes their folder a run's."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import test_loop
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from toy import TableModel

from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import keys_of
from partita.config import Loaded
from partita.config.schema import plain
from partita.engine.config import GenerationConfig
from partita.run import RunConfig
from partita.stages import StageConfig
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, OptimizerConfig


def toy_config(name: str, steps: int = 3, stages: tuple[StageConfig, ...] = (), **actor: object) -> RunConfig:
    """A toy run's config: a preset as it is, two epochs of two minibatches, every sample computed, some keys changed."""
    preset = keys_of(name)
    keys = {item.name: getattr(preset, item.name) for item in fields(AlgorithmKeys)}
    given = {"ppo_epochs": 2, "ppo_n_minibatches": 2, "optimizer": OptimizerConfig(lr=0.3)} | keys
    given |= {"skip_dead_samples": False} | actor
    return RunConfig(
        algorithm=name, total_train_steps=steps, stages=list(stages),
        gconfig=GenerationConfig(n_samples=6, max_new_tokens=4),
        actor=ActorConfig(**given), train_dataset=DatasetConfig(batch_size=4),  # type: ignore[arg-type]
    )  # fmt: skip


def toy_run(folder: Path, config: RunConfig) -> Path:
    """The folder of the finished run; the reference is not the starting policy, so that its KL is not 0."""
    reference = TableModel()
    with torch.no_grad():
        reference.table.copy_(torch.arange(64).reshape(8, 8) / 40)
    test_loop.run(test_loop.made_of(config, folder, reference))
    (folder / "config.yaml").write_text(Loaded(config, plain(config), {}).to_yaml())
    return folder


def rewrite(file: Path, change: Mapping[str, Tensor]) -> None:
    """Replace tensors of a step's file."""
    with safe_open(file, "pt") as opened:
        tensors, metadata = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    assert change.keys() <= tensors.keys()
    save_file(tensors | dict(change), file, metadata)


def tensors_of(file: Path) -> dict[str, Tensor]:
    """What a step's file holds, by name."""
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def header_of(file: Path) -> dict:
    """The facts beside the tensors."""
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["partita"])
