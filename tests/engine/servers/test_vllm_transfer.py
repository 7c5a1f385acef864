"""What the transfer from GPU to GPU says over HTTP; the broadcasts themselves need GPUs and are not run here."""

import pytest
import torch
import vllm_wire

from partita.engine.servers.api import EngineError
from partita.engine.servers.vllm_transfer import VllmTransfer, bundles, can_transfer


class Sent:
    """Remembers instead of sending: (address, port, ranks), then the tensors."""

    def __init__(self, *group) -> None:
        self.group, self.tensors, self.left = group, [], False

    def broadcast(self, tensor, src):
        assert src == 0
        self.tensors.append(tensor)

    def destroy(self):
        self.left = True


@pytest.fixture
def servers():
    made = [vllm_wire.start(), vllm_wire.start()]
    yield made
    for one in made:
        one.http.shutdown()


def given():
    return [("a", torch.ones(3)), ("b", torch.arange(4.0).view(2, 2).T)]


def test_all_servers_join_one_group_and_are_told_what_is_broadcast(servers):
    groups: list[Sent] = []

    def opened(*group):
        groups.append(Sent(*group))
        return groups[-1]

    transfer = VllmTransfer(2, torch.bfloat16, opened)
    names = [(one.url, 0) for one in servers]
    assert [name for name, _ in transfer.passing(names, given())] == ["a", "b"]
    [group] = groups
    assert group.group[2] == 5  # this process, and two workers of each server
    joined = [one.calls[1][1]["init_info"] for one in servers]
    assert [one["rank_offset"] for one in joined] == [1, 3]
    assert all((one["master_port"], one["world_size"], one["packed"]) == (group.group[1], 5, False) for one in joined)
    for one in servers:
        told = dict(one.calls)["/update_weights"]["update_info"]
        assert told == {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[3], [2, 2]]}
        paths = one.paths()
        assert paths == [
            "/pause", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"
        ]  # fmt: skip
    assert all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in group.tensors)

    list(transfer.passing(names, given()))
    assert len(groups) == 1 and "/init_weight_transfer_engine" not in servers[0].paths()
    list(transfer.passing([names[0], (names[1][0], 1)], given()))  # one was started again
    assert len(groups) == 2 and groups[0].left


def test_a_server_that_refuses_ends_the_transfer_and_the_message_names_the_other_way(servers):
    servers[1].lacks.add("/start_weight_update")
    transfer = VllmTransfer(1, torch.float32, Sent)
    with pytest.raises(
        EngineError, match=rf"{servers[1].url}/start_weight_update .* 404 .*rollout.server.weights=folder"
    ):
        list(transfer.passing([(one.url, 0) for one in servers], given()))


def test_weights_go_in_bundles_of_a_size():
    weights = [(str(n), torch.zeros(10)) for n in range(5)]
    assert [[name for name, _ in some] for some in bundles(weights, 80)] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_process_without_a_gpu_does_not_transfer():
    assert not can_transfer(torch.device("cpu"))
