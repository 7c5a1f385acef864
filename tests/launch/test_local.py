"""The GPUs that a launch on this machine deals out."""

import pytest

from partita.launch import local
from partita.launch.config import ClusterConfig


@pytest.mark.parametrize(("visible", "gpus"), [("", 0), ("-1", 0), ("0, 2", 2), ("GPU-8d, -1, 3", 1)])
def test_gpus_are_counted_as_cuda_does(visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local.machine(ClusterConfig()).gpus == gpus
