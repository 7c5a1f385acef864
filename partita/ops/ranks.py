"""The processes of one training run, and the few things that they say to each other.

A run on one process is the same code with one rank: nothing is sent then. What travels between ranks is pickled, and comes
from the ranks of this run only; tensors arrive in main memory.

Left out: sharded weights (`models.parallel`), and what ranks do together (`train`).
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # the others wait while rank 0 samples; that a rank is gone, whoever started it notices


@dataclass(frozen=True)
class Ranks:
    """This process among `size` of them. Rank 0 leads: it owns rollouts, credit, reports and files."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def told(self, value: T) -> T:
        """Rank 0's value, on every rank; what the others give is not looked at."""
        if self.alone:
            return value
        box: list[Any] = [_pickled(value) if self.leads else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return cast(T, pickle.loads(box[0]))

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks in their order, on every rank."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, _pickled(value))  # pyright: ignore[reportUnknownMemberType]
        return cast(list[T], [pickle.loads(one) for one in found])


ALONE = Ranks()


class _Pickler(pickle.Pickler):
    """Of values whose tensors may lie on this rank's device, which is another one elsewhere."""

    def reducer_override(self, obj: Any) -> Any:
        away = isinstance(obj, Tensor) and obj.device.type != "cpu"
        return (torch.Tensor.cpu, (obj.detach().cpu(),)) if away else NotImplemented


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def join_ranks() -> Ranks:
    """This process among those that the environment names (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, as torchrun
    sets them); ALONE where it names none. On GPUs the rank's device is LOCAL_RANK's.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


def leave_in_the_end() -> None:
    """Nothing more is said: end the connections when this process ends. Their threads would outlive the interpreter, and one of
    nine such processes was seen to abort (SIGABRT) after all its work. Not to be called while others wait for this rank.
    """
    atexit.register(leave_ranks)


def leave_ranks() -> None:
    """End the connections, where there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
