"""A model that waits elsewhere is where it is asked, and afterwards as it was; `meta` stands for the device that a CPU lacks."""

import pytest
import torch
from torch import nn

from partita.models.offload import resident


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    made[1].weight = made[0].bias  # tied
    return made.requires_grad_(False)


def test_weights_and_buffers_are_there_inside_and_back_afterwards() -> None:
    waits = model()
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in waits.state_dict().items()}
    with resident(waits, torch.device("meta")):
        assert {tensor.device.type for tensor in waits.state_dict().values()} == {"meta"}
        assert len(list(waits.parameters())) == 3 and not any(p.requires_grad for p in waits.parameters())
    for name, tensor in waits.state_dict().items():
        place, value = before[name]
        assert tensor.device.type == "cpu" and tensor.data_ptr() == place and torch.equal(tensor, value), name


def test_it_is_back_after_an_error_as_well() -> None:
    waits = model()
    with pytest.raises(RuntimeError, match="inside"), resident(waits, torch.device("meta")):
        raise RuntimeError("inside")
    assert {tensor.device.type for tensor in waits.state_dict().values()} == {"cpu"}


def test_one_that_is_there_can_be_written_to_meanwhile() -> None:
    there = model()
    with resident(there, torch.device("cpu")), resident(None, torch.device("meta")):
        there[0].weight.fill_(7.0)
    assert torch.equal(there[0].weight, torch.full((2, 3), 7.0))
