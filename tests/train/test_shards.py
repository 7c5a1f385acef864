"""Tensors of a checkpoint on disk: written as one file by one rank, and as parts; read back into whole tensors."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as distributed
from torch.distributed.checkpoint import HuggingFaceStorageWriter

from partita.ops.ranks import ALONE
from partita.train.shards import on_all, stored, write_tensors

TENSORS = {"a": torch.arange(6.0).view(3, 2), "step/a": torch.tensor(4.0)}


def read(folder: Path, name: str) -> dict[str, torch.Tensor]:
    found = stored(folder, name)
    assert found is not None and found.shapes == {key: tensor.shape for key, tensor in TENSORS.items()}
    targets = {key: torch.zeros_like(tensor) for key, tensor in TENSORS.items()}
    found.read_into(targets, ALONE)
    return targets


def test_one_rank_writes_a_file(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path, "model", ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert all(torch.equal(tensor, TENSORS[key]) for key, tensor in read(tmp_path, "model").items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_of_parts_is_read_by_one_rank(tmp_path: Path) -> None:
    writer = HuggingFaceStorageWriter(f"{tmp_path / 'model'}", save_distributed=True)
    distributed.save(dict(TENSORS), storage_writer=writer, no_dist=True)
    assert all(path.suffix == ".safetensors" for path in (tmp_path / "model").iterdir())
    assert all(torch.equal(tensor, TENSORS[key]) for key, tensor in read(tmp_path, "model").items())


def test_nothing_is_none(tmp_path: Path) -> None:
    assert stored(tmp_path, "critic") is None


def test_one_rank_fails_with_its_own_error() -> None:
    def broken() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        on_all(ALONE, broken)
