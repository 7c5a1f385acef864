"""How ranks do the same: what a verb tells, what a rank that follows does with it, and what a lost rank looks like."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from partita.ops.ranks import ALONE
from partita.train.team import RankLost, dismiss, each_verb, follow, verb


@dataclass
class Wire:
    """A connection between ranks that is a list: what rank 0 says is put on it, and taken from it by one that follows."""

    rank: int
    said: list[Any] = field(default_factory=list)
    size: int = 2
    alone: bool = False

    def told(self, value: Any) -> Any:
        if self.rank == 0:
            self.said.append(value)
            return value
        if not self.said:
            raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:24452")
        return self.said.pop(0)


@dataclass
class Crew:
    """Counts."""

    ranks: Any
    sums: list[int] = field(default_factory=list)

    @verb
    def add(self, one: int, *, other: int) -> int:
        self.sums.append(one + other)
        return one + other

    @each_verb
    def each(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.sums.append(number)
            yield number

    @verb
    def fail(self, words: str) -> None:
        raise RuntimeError(words)


def test_the_others_do_what_rank_0_does() -> None:
    leader = Crew(Wire(0))
    assert leader.add(1, other=2) == 3
    leader.each(9)  # which nobody takes: nothing is told
    assert list(leader.each(3)) == [0, 1, 2]
    dismiss(leader.ranks)
    follower = Crew(Wire(1, leader.ranks.said))
    follow(follower)
    assert follower.sums == leader.sums == [3, 0, 1, 2]
    assert not follower.ranks.said


def test_a_rank_alone_tells_nobody() -> None:
    crew = Crew(ALONE)
    assert crew.add(1, other=2) == 3
    dismiss(ALONE)


def test_a_rank_whose_leader_is_gone_says_so() -> None:
    with pytest.raises(RankLost, match="rank 1 of 2 lost the connection to another rank, which has ended"):
        follow(Crew(Wire(1)))


def test_a_connection_that_breaks_within_a_verb_is_told_from_an_error_of_its_own() -> None:
    with pytest.raises(RankLost, match="Connection reset by peer"):
        Crew(Wire(0)).fail("[gloo/transport/tcp/pair.cc] Connection reset by peer")
    with pytest.raises(RuntimeError, match="of its own") as found:
        Crew(Wire(0)).fail("an error of its own")
    assert type(found.value) is RuntimeError


ENDS = """
import atexit, sys
import torch.distributed as dist
from partita.ops.ranks import join_ranks
from partita.train.team import dismiss, follow
atexit.register(lambda: print("still there" if dist.is_initialized() else "ended"))  # after what is registered later
class Idle:
    ranks = join_ranks()
dismiss(Idle.ranks) if Idle.ranks.leads else follow(Idle())
print("connected" if dist.is_initialized() else "gone")
"""


@pytest.mark.slow
def test_ranks_end_their_connections_before_the_interpreter_ends():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    around = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [
        subprocess.Popen([sys.executable, "-c", ENDS], env=around | {"RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    assert [one.communicate(timeout=120)[0].split() for one in both] == [["connected", "ended"]] * 2
    assert [one.returncode for one in both] == [0, 0]
