"""A step's file holds exactly what the step was made of, in few bytes, and says so where it cannot be read."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from replaying import header_of, tensors_of, toy_config, toy_run

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.tokens import Current
from partita.records import Batch, Row
from partita.replay.saved import Setting, read_step, saved, setting_of
from partita.report.sinks import BatchSink
from partita.run import RunConfig
from partita.runfolder import RunFolderError
from partita.train.batch import RolloutBatch
from partita.train.record import LearnRecord, OptimizerStep

NAN = math.nan
SETTING = Setting(7, 1, "grpo", {"actor.eps_clip": 0.2}, (0.5, 2.0), {"kl_loss": {"coef": 0.1}})


def everything() -> tuple[RolloutBatch, LearnRecord]:
    """Three samples of 2, 0 and 3 tokens, every stream present, with all that JSON or 32 bits cannot hold."""
    seq_T = torch.tensor([0, 0, 2, 2, 2])
    float_T, double_T = torch.tensor([-0.1, -0.2, NAN, -math.inf, -0.5]), torch.arange(5, dtype=torch.float64) / 7
    batch = Batch(
        seq_T, torch.tensor([0, 0, 2**40]), torch.tensor([0.1, NAN, 1 / 3], dtype=torch.float64),
        torch.tensor([True, False, False]), torch.tensor([True, False, True]),
        prox_T=float_T, behaviour_T=float_T * 2, ref_T=-double_T.float(), values_T=double_T,
        bootstrap_value_S=torch.tensor([0.0, 1.0, 2.0]), token_rewards_T=double_T, version_T=torch.tensor([3, 3, 4, 4, 4]),
        entropy_T=float_T, score_S=torch.tensor([0.1, 0.0, 1 / 3], dtype=torch.float64),
        advantages_T=torch.tensor([0.1, 0.1, -1 / 3, -1 / 3, -1 / 3], dtype=torch.float64), returns_T=double_T,
        step_rewards_T=torch.tensor([NAN, 1.0, NAN, NAN, 0.5], dtype=torch.float64),
        parts_SR=torch.tensor([[0.1, NAN], [1.0, 2.0], [3.0, 4.0]], dtype=torch.float64),
        lot_S=torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), train_version=5,
    )  # fmt: skip
    rows = (
        (Row([9, 9, 5, 6], [False, False, True, True], [0.0] * 4, [-1, -1, 3, 3]),),
        (Row([9, 9], [False, False], [0.0] * 2, [-1, -1]),),
        (Row([9, 7], [False, True], [0.0] * 2, [-1, 4]), Row([8, 1, 2], [False, True, True], [0.0] * 3, [-1, 4, 4])),
    )
    full = Current(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, NAN]), torch.tensor([0.1, 0.2]), torch.zeros(2))
    steps = (
        OptimizerStep((0,), full, 0.1 + 0.2, "stepped", True),
        OptimizerStep((2, 1), None, 0.0, "dead", False, (2, 1)),
        OptimizerStep((2, 1), Current(torch.zeros(3, dtype=torch.float64)), NAN, "skipped", False, (1,)),
    )
    return RolloutBatch(rows, (0, 0, 2), batch), LearnRecord(steps)


def same(one: object, other: object) -> bool:
    """Equal in every bit, NaN included, and of one type."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(123.0), other.nan_to_num(123.0))
    return one == other or (
        isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    )


def test_a_step_comes_back_as_it_was(tmp_path: Path) -> None:
    rollout, record = everything()
    BatchSink(tmp_path / "batches").write(7, *saved(SETTING, rollout, record))
    back = read_step(tmp_path, 7)
    assert back.setting == SETTING
    assert back.ids_T.tolist() == [5, 6, 7, 1, 2]
    wrong = [
        item.name
        for item in fields(Batch)
        if not same(getattr(rollout.batch, item.name), getattr(back.batch, item.name))
    ]
    assert wrong == []
    for was, again in zip(record.steps, back.record.steps, strict=True):
        facts = [(one.samples, one.outcome, one.unmoved, one.left_out) for one in (was, again)]
        assert facts[0] == facts[1]
        assert same(was.loss, again.loss)
        assert (was.current is None) == (again.current is None)
        for item in fields(Current) if was.current and again.current else ():
            assert same(getattr(was.current, item.name), getattr(again.current, item.name))


def test_what_is_one_value_per_sample_is_kept_once_and_the_same_step_gives_the_same_bytes(tmp_path: Path) -> None:
    rollout, record = everything()
    files = [BatchSink(tmp_path / name).write(7, *saved(SETTING, rollout, record)) for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    tensors = tensors_of(files[0])
    assert tensors["batch/advantages_T@S"].tolist() == [0.1, 0.0, -1 / 3]
    assert tensors["batch/version_T@S"].dtype == torch.int32
    assert tensors["batch/prompt_S"].dtype == torch.int64  # 2^40 has no room in 32 bits
    assert {name for name in tensors if name.startswith("batch/") and name.endswith("_T")} == {
        f"batch/{name}_T" for name in ("prox", "behaviour", "ref", "values", "token_rewards", "entropy", "returns", "step_rewards")
    }  # fmt: skip


def test_a_setting_has_every_algorithm_key_and_what_rules_remember(tmp_path: Path) -> None:
    config = RunConfig(algorithm="dapo", total_train_steps=1)
    algorithm = compose(config.actor, n_samples=8, max_new_tokens=64)
    setting = setting_of(2, 0, config, algorithm, {"trend": {"coef": NAN}})
    assert {f"actor.{item.name}" for item in fields(AlgorithmKeys)} < setting.keys.keys()
    assert setting.keys["gconfig.max_new_tokens"] == config.gconfig.max_new_tokens
    rollout, record = everything()
    BatchSink(tmp_path / "batches").write(2, *saved(setting, rollout, record))
    assert same(read_step(tmp_path, 2).setting.controls["trend"]["coef"], NAN)
    assert read_step(tmp_path, 2).setting.keys == setting.keys


def test_the_weights_of_reward_parts_are_kept_where_they_are_used() -> None:
    config = RunConfig(total_train_steps=1)
    actor = replace(config.actor, reward_norm=config.actor.adv_norm or None, reward_norm_per_part=False)
    assert setting_of(1, 0, config, compose(actor, n_samples=8, max_new_tokens=64), {}).part_weights == ()


def test_a_file_of_the_first_format_is_read_as_one_that_left_nothing_out(tmp_path: Path) -> None:
    rollout, record = everything()
    record = LearnRecord(tuple(replace(step, left_out=()) for step in record.steps))
    file = BatchSink(tmp_path / "batches").write(7, *saved(SETTING, rollout, record))
    assert header_of(file)["format"] == 2
    file.write_bytes(file.read_bytes().replace(rb"\"format\": 2", rb"\"format\": 1"))
    assert header_of(file)["format"] == 1
    assert [step.left_out for step in read_step(tmp_path, 7).record.steps] == [(), (), ()]
    file.write_bytes(file.read_bytes().replace(rb"\"format\": 1", rb"\"format\": 3"))
    with pytest.raises(RunFolderError, match="format 3, and this version of partita reads 1 and 2"):
        read_step(tmp_path, 7)


def test_a_step_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path) -> None:
    rollout, record = everything()
    sink = BatchSink(tmp_path / "batches")
    for step in (3, 4, 5, 7, 9, 10):
        sink.write(step, *saved(SETTING, rollout, record))
    with pytest.raises(
        RunFolderError, match=r"has no numbers of step 6; it has those of: 3 to 5, 7, 9 to 10 .report.keep_batches"
    ):
        read_step(tmp_path, 6)
    with pytest.raises(RunFolderError, match=r"has no numbers of step 1; it has those of: none"):
        read_step(tmp_path / "nowhere", 1)


SPOILT = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "other bytes": lambda data: b"x" * len(data),
    "another format": lambda data: data.replace(rb"\"format\": 2", rb"\"format\": 3"),
    "without a header": lambda data: data.replace(b'"partita"', b'"partite"'),
    "a tensor renamed": lambda data: data.replace(b'"losses_K"', b'"lasses_K"'),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_file_that_cannot_be_read_is_named_beside_the_others(tmp_path: Path, spoil) -> None:
    rollout, record = everything()
    sink = BatchSink(tmp_path / "batches")
    for step in (1, 2):
        file = sink.write(step, *saved(SETTING, rollout, record))
    file.write_bytes(changed := spoil(file.read_bytes()))
    assert changed == file.read_bytes()
    with pytest.raises(RunFolderError, match=r"step_000002.safetensors cannot be read .*other steps there: 1$"):
        read_step(tmp_path, 2)
    assert read_step(tmp_path, 1).setting == SETTING


def test_a_run_of_the_loop_keeps_the_newest_steps(tmp_path: Path) -> None:
    folder = toy_run(tmp_path, toy_config("drgrpo"))
    names = sorted(path.name for path in (folder / "batches").iterdir())
    assert names == [f"step_{step:06d}.safetensors" for step in (1, 2, 3)]
    header = header_of(folder / "batches" / names[1])
    assert (header["step"], header["algorithm"], header["outcomes"]) == (2, "drgrpo", ["dead", "stepped"] * 2)
    assert header["train_version"] == 2
