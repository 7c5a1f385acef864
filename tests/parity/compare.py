"""Whether a case of the table holds: agreement on random batches, or both numbers of a difference.

Left out: the peers; each test module brings its own and is skipped where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from parity import ours
from parity.cases import Case
from parity.outcome import TOLERANCE, Outcome, distance
from parity.ragged import Hand, Ragged, draw, lay

SEEDS = range(5)
Run = Callable[[Case, Ragged], Outcome]


def params(cases: Iterable[Case], *, differ: bool) -> list[Any]:
    """The cases that agree, or that differ, as parameters of a test."""
    return [
        pytest.param(case, id=f"{case.topic}: {case.what.en}") for case in cases if (case.differs is not None) == differ
    ]


def apart(ours_found: Outcome, peers: Outcome) -> float:
    """The larger distance of values and gradients."""
    assert (ours_found.gradient is None) == (peers.gradient is None), "one side has no gradient"
    found = [distance(ours_found.value, peers.value)]
    if ours_found.gradient is not None and peers.gradient is not None:
        found.append(distance(ours_found.gradient, peers.gradient))
    return max(found)


def check_agreement(case: Case, run: Run) -> None:
    """The same numbers on every batch, and not on all of them once one of our keys is left out."""
    batches = [lay(case.like)] if isinstance(case.like, Hand) else [draw(seed, case.like) for seed in SEEDS]
    peers = [run(case, batch) for batch in batches]
    for seed, (batch, peer) in enumerate(zip(batches, peers, strict=True)):
        off = apart(ours.COMPARED[case.compared](batch, case), peer)
        assert off <= TOLERANCE, f"{off:.2e} apart for seed {seed}"
        assert peer.value.abs().max() > 0, "nothing was compared"
    for name in case.keys:
        without = replace(case, keys={key: value for key, value in case.keys.items() if key != name})
        off = [changed(without, case, batch, peer) for batch, peer in zip(batches, peers, strict=True)]
        assert max(off) > 10 * TOLERANCE, f"actor.{name} makes no difference to what is compared"


def changed(without: Case, case: Case, batch: Ragged, peer: Outcome) -> float:
    """How far we are from the peer once a key is left out; infinite where nothing is left to compare."""
    try:
        if ours.algorithm(without) == ours.algorithm(case):
            return inf  # the key says what is the default anyway
        return apart(ours.COMPARED[case.compared](batch, without), peer)
    except (ValueError, AssertionError, AttributeError, RuntimeError):
        return inf  # the composition is refused, or lacks the part that was compared


def check_difference(case: Case, run: Run) -> None:
    """Both numbers that the table names, and that they are two."""
    differs = case.differs
    assert differs is not None and isinstance(case.like, Hand)
    batch = lay(case.like)
    for found, expected in (
        (run(case, batch), differs.peer),
        (ours.COMPARED[case.compared](batch, case), differs.ours),
    ):
        number = found.value if differs.of == "value" else found.gradient
        assert number is not None
        assert float(number[differs.at]) == pytest.approx(expected, abs=1e-5, nan_ok=True)
    assert not abs(differs.peer - differs.ours) < 1e-4
