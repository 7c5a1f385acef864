"""Learner and critic on 2 and 4 ranks, real processes over gloo, against the same on one."""

from pathlib import Path
from typing import Any

import pytest
import rank_jobs
import torch
from ranked import on_ranks

from partita.algo.presets import PRESETS
from partita.ops.ranks import ALONE

pytestmark = pytest.mark.slow
SIZES = (4, pytest.param(2, marks=pytest.mark.long))  # half a minute each, most of it to start processes
NARROW = ("narrow", "narrow, gathered wide", "narrow, again")
ROUNDED = {"five steps", "experts", "plain", *NARROW}  # somewhere they compute in less than float64


@pytest.fixture(scope="module")
def alone() -> dict[str, rank_jobs.Found]:
    return rank_jobs.all_found(ALONE)


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def ranked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, rank_jobs.Found]]:
    """What each rank found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    on_ranks(request.param, "rank_jobs.py", folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


def assert_same(found: Any, want: Any, where: str, **close: float) -> None:
    """Numbers as near as `close` says, everything else equal."""
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(found, want, msg=lambda said: f"{where}: {said}", **close)
    elif isinstance(want, dict):
        assert found.keys() == want.keys(), where
        for name in want:
            assert_same(found[name], want[name], f"{where}, {name}", **close)
    elif isinstance(want, list | tuple):
        assert len(found) == len(want), where
        for place, (one, other) in enumerate(zip(found, want, strict=True)):
            assert_same(one, other, f"{where} {place}", **close)
    elif isinstance(want, float):
        assert found == pytest.approx(want, rel=close["rtol"], abs=close["atol"]), where
    else:
        assert found == want, where


@pytest.mark.parametrize("name", [*PRESETS, *(name for name in rank_jobs.JOBS if name not in ROUNDED)])
def test_gradients_weights_and_metrics_are_those_of_one_rank(name, alone, ranked):
    """In float64: the only difference is the order in which sums are taken."""
    assert alone[name].get("gradients", [1]), "no optimizer step was taken: nothing was compared"
    for rank, found in enumerate(ranked):
        assert_same(found[name], alone[name], f"{name}, rank {rank}", rtol=1e-9, atol=1e-10)


def test_ranks_say_the_same_to_the_last_bit(ranked):
    for found in ranked[1:]:
        assert_same(found, ranked[0], "rank", rtol=0.0, atol=0.0)


def test_five_float32_steps_end_in_the_same_weights(alone, ranked):
    assert_same(ranked[0]["five steps"]["weights"], alone["five steps"]["weights"], "weights", rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["experts", "plain"])
def test_families_that_take_a_softmax_in_float32(name, alone, ranked):
    """Of experts, some of which a rank's tokens do not reach; of attention, in layers that run as often as rows have lengths."""
    assert_same(ranked[-1][name], alone[name], name, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NARROW)
def test_autocast_is_that_of_one_rank(name, alone, ranked):
    assert_same(ranked[0][name]["weights"], alone[name]["weights"], "weights", rtol=0.0, atol=5e-3)


def test_weights_that_are_rounded_before_they_are_gathered_change_nothing_and_leave_no_copy(ranked):
    narrow, wide, again = ({name: found for name, found in ranked[-1][job].items() if name != "kept"} for job in NARROW)
    assert_same(narrow, wide, "gathered as float32", rtol=0.0, atol=1e-6)
    assert_same(narrow, again, "computed again", rtol=0.0, atol=1e-6)
    _, *of_layers = narrow["weights"]  # the embedding comes first
    matrices = sum(weight.numel() for weight in of_layers if weight.ndim == 2)
    assert ranked[-1]["narrow, gathered wide"]["kept"] - ranked[-1]["narrow"]["kept"] == 2 * matrices
