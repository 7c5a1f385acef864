"""Every step of every algorithm comes out again from its file, and a number that was changed is found."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replaying import header_of, rewrite, tensors_of, toy_config, toy_run
from test_loop import RULES

from partita.algo.keys import BalanceConfig, CorrectionConfig
from partita.algo.presets import PRESETS
from partita.replay.again import Again, apart, compute_again, step_config
from partita.replay.replay import ReplayMismatch, Request
from partita.replay.replay import replay as replay_run
from partita.replay.saved import read_step
from partita.run import RunConfig
from partita.runfolder import RunFolderError, run_config_of
from partita.stages import StageConfig, UntilConfig

PAPERS = [name for name in PRESETS if not name.startswith("areal_")]


def again(folder: Path, step: int, config: RunConfig | None = None) -> Again:
    saved = read_step(folder, step)
    return compute_again(config or step_config(run_config_of(folder, []).value, saved.setting), saved)


def exactly(folder: Path, steps: int = 2, config: RunConfig | None = None) -> list[Again]:
    """Every step again: credit in all its bits, losses up to the order of a sum in double precision."""
    found = [again(folder, step + 1, config) for step in range(steps)]
    for one in found:
        assert [item.value for item in one.credit] == [0.0] * len(one.credit)
        assert max(item.difference.value for item in one.steps) < 1e-12
        assert one.wrong == ()
    learned = [item for one in found for item in one.steps if item.taken.outcome == "stepped"]
    assert any(abs(item.taken.loss) > 1e-6 for item in learned)
    assert any(not item.taken.unmoved for item in learned)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAPERS, "areal_grpo"])
def test_every_step_of_every_preset_comes_out_again(tmp_path: Path, name: str) -> None:
    config = toy_config(name, steps=2)
    exactly(toy_run(tmp_path, config), config=config)


MORE = {
    "tis": {"correction": CorrectionConfig(kind="tis")},
    "loglinear": {"prox_logp_method": "loglinear"},
    "balance": {"balance": BalanceConfig(mode="downsample")},
    "m2po": {"correction": CorrectionConfig(kind="m2po")},
    "coupled": {"recompute_logprob": False},
    "reward to go": {"credit": "reward_to_go", "kl_ctl": 0.1},
    "no statistics, masked": {"adv_norm": None, "truncation": "mask_loss"},
}


FAST = ("several", "penalty", "tis", "loglinear", "balance")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, changes in (RULES | MORE).items()
        if name != "none"
    ],
)
def test_rules_and_corrections_come_out_again(tmp_path: Path, changes: dict) -> None:
    config = toy_config("drgrpo", steps=2, **changes)
    exactly(toy_run(tmp_path, config), config=config)


def test_each_stage_is_replayed_with_its_own_keys(tmp_path: Path) -> None:
    stages = (
        StageConfig(UntilConfig(step=2), {"actor.eps_clip": 0.05}),
        StageConfig(None, {"algorithm": "gspo", "gconfig.max_new_tokens": 3}),
    )
    folder = toy_run(tmp_path, toy_config("drgrpo", steps=3, stages=stages))
    assert [(one.algorithm.gate.low, one.config.gconfig.max_new_tokens) for one in exactly(folder, 3)] == [
        (0.05, 4), (0.05, 4), (3e-4, 3),
    ]  # fmt: skip
    assert [header_of(folder / f"batches/step_00000{step}.safetensors")["stage"] for step in (2, 3)] == [0, 1]


def test_the_step_s_own_keys_count_when_the_config_has_changed_since(tmp_path: Path) -> None:
    folder = toy_run(tmp_path, toy_config("drgrpo", steps=2))
    file = folder / "config.yaml"
    changed = (
        file.read_text().replace("eps_clip: 0.2", "eps_clip: 0.01").replace("algorithm: drgrpo", "algorithm: null")
    )
    assert changed != file.read_text()
    file.write_text(changed)
    assert exactly(folder)[0].algorithm.gate.low == 0.2


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_run(tmp_path_factory.mktemp("grpo"), toy_config("grpo", steps=2))


SAME = ("advantage", "score", "valid sample")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream, found",
    [
        ("batch/advantages_T@S", ["advantage"]),
        ("batch/reward_S", ["advantage", "score", "optimizer step"]),
        ("batch/ref_T", ["optimizer step"]),
        ("step/002/logprobs_T", ["optimizer step 3: loss"]),
        ("losses_K", ["optimizer step"]),
    ],
)
def test_a_number_that_was_changed_is_found(tmp_path: Path, grpo: Path, stream: str, found: list[str]) -> None:
    folder = shutil.copytree(grpo, tmp_path / "changed")
    file = folder / "batches/step_000002.safetensors"
    value = tensors_of(file)[stream].clone()
    value[0] += 0.01
    rewrite(file, {stream: value})
    wrong = [one.what for one in again(folder, 2).wrong]
    assert all(any(name.startswith(start) for name in wrong) for start in found), wrong
    assert not set(SAME) & set(wrong) - set(found)
    with pytest.raises(ReplayMismatch, match=r"step 2 of .* does NOT come out again as it was trained:\n  "):
        replay_run(folder, Request(2)).check()
    replay_run(folder, Request(1)).check()


def test_a_dead_step_must_be_dead_again(tmp_path: Path) -> None:
    folder = toy_run(tmp_path / "run", toy_config("drgrpo", steps=1))
    file = folder / "batches/step_000001.safetensors"
    reward_S = torch.zeros_like(tensors_of(file)["batch/reward_S"])
    rewrite(file, {"batch/reward_S": reward_S})
    wrong = again(folder, 1).wrong
    assert "optimizer step 1: whether there was something to learn" in [one.what for one in wrong]
    assert math.isinf(max(one.value for one in wrong))


def test_losses_that_are_not_finite_are_the_same_when_both_are() -> None:
    assert apart(math.nan, math.nan) == apart(math.inf, math.inf) == 0.0
    assert apart(math.nan, 1.0) == apart(math.inf, -math.inf) == apart(1.0, math.inf) == math.inf
    assert apart(1.0, 1.5) == 0.5


def test_rules_that_do_not_fit_their_keys_are_an_error_of_the_file(grpo: Path) -> None:
    saved = read_step(grpo, 1)
    foreign = replace(saved, setting=replace(saved.setting, controls={"kl_loss": {"coef": 0.1}}))
    with pytest.raises(RunFolderError, match="the numbers of step 1 do not fit their keys"):
        compute_again(toy_config("grpo", steps=2), foreign)
