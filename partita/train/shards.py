"""Tensors in a checkpoint folder: one safetensors file by one rank, or a folder of safetensors files with each rank's part.

Either is read by any number of ranks. Parts are written and read by
torch.distributed.checkpoint in its safetensors form: nothing is pickled, so nothing that is read can run.
Left out: which tensors a checkpoint holds, and that it is whole (`train.checkpoint`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as distributed
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from partita.models.parallel import place
from partita.ops.ranks import Ranks


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, name: str, ranks: Ranks) -> None:
    """Into `folder`, as the file or the folder of this name; all ranks together. Raises OSError or SafetensorError."""
    if ranks.alone:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors")
        return
    with _readable():
        distributed.save(
            dict(tensors), storage_writer=HuggingFaceStorageWriter(f"{folder / name}", save_distributed=True)
        )


@dataclass(frozen=True)
class Stored:
    """What `write_tensors` wrote, whoever reads it. shapes: of whole tensors, by name."""

    path: Path
    shapes: Mapping[str, torch.Size]

    def read_into(self, targets: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Copy into the targets, whose names and shapes are stored; all ranks together."""
        if self.path.is_dir():
            with _readable():
                reader = HuggingFaceStorageReader(f"{self.path}")
                distributed.load(dict(targets), storage_reader=reader, no_dist=ranks.alone)
            return
        with safe_open(self.path, "pt") as file:
            for name, target in targets.items():
                place(target, file.get_tensor(name))


def stored(folder: Path, name: str) -> Stored | None:
    """What lies in a folder under a name, None for nothing."""
    file, parts = folder / f"{name}.safetensors", folder / name
    if file.exists():
        with safe_open(file, "pt") as opened:
            return Stored(file, {key: torch.Size(opened.get_slice(key).get_shape()) for key in opened.keys()})  # noqa: SIM118
    if parts.is_dir():
        known = HuggingFaceStorageReader(f"{parts}").read_metadata().state_dict_metadata
        return Stored(parts, {key: tensor.size for key, tensor in known.items()})  # pyright: ignore[reportAttributeAccessIssue]
    return None


def on_all(ranks: Ranks, act: Callable[[], object]) -> None:
    """Every rank acts, and where one fails all of them do. Raises OSError, or SafetensorError on one rank alone."""
    problem = None
    try:
        act()
    except (OSError, SafetensorError) as error:
        if ranks.alone:
            raise
        problem = error
    told = [text for text in ranks.gathered(None if problem is None else f"{problem}") if text is not None]
    if told:
        raise OSError(told[0]) from problem


@contextmanager
def _readable() -> Iterator[None]:
    """Failures of any rank as an OSError, on all ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # that one process reads is meant
        try:
            yield
        except CheckpointException as error:  # a BaseException
            rank, (cause, _) = next(iter(error.failures.items()))
            raise OSError(f"rank {rank}: {cause}") from error
