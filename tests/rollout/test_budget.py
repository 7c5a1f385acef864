"""How many groups may be started."""

import json
from pathlib import Path

import pytest

from partita.rollout.budget import capacity

CASE = json.loads((Path(__file__).parent.parent / "golden" / "ctl_staleness_capacity.json").read_text())


@pytest.mark.parametrize(
    ("counters", "room"), list(zip(CASE["inputs"]["cases"], CASE["expected"]["capacity"], strict=True))
)
def test_golden_rooms(counters: list[int], room: int) -> None:
    assert capacity(**dict(zip(CASE["inputs"]["columns"], counters, strict=True)), **CASE["config"]) == room


def test_synchronous_rollouts_start_one_batch_per_version() -> None:
    def room(version: int, accepted: int, eta: int = 0) -> int:
        return capacity(version=version, eta=eta, accepted=accepted, running=0, batch=4, max_concurrent=100)

    assert [room(version, 4 * version) for version in range(4)] == [4, 4, 4, 4]
    assert [room(2, 8 + kept) for kept in range(5)] == [4, 3, 2, 1, 0]
    assert room(2, 8, eta=1) == 8  # one batch ahead
    assert room(9, 0) == 40  # the burst after a resume that forgot to count what was accepted
