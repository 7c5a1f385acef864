"""A run on data that is killed and resumed is the run that was never killed: the same metrics and the same bytes."""

import shutil
from pathlib import Path

import pytest
from offline_runs import ROWS, finished, killed, outcome, resumed, settings, written
from running import call
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow  # whole runs, one after another

STEPS = 12
KINDS = {
    "sft": ("sft", {"loss_agg_mode": "seq_mean_token_mean"}),
    "rm": ("rm", {"centring": 0.01}),
    "dpo": ("dpo", {}),
    "dpo, ipo, online": ("dpo", {"loss__type": "ipo", "ref__log_probs": "online", "ref__dtype": "float32"}),
    "kto": ("dpo", {"loss__type": "kto"}),
}
LORA = {"+actor.lora": "{rank: 2}"}


@pytest.fixture
def words(tmp_path: Path, model_folder: Path):
    """A run with everything that has to survive: moments, a schedule, epochs whose order differs, evaluations."""

    def override(name: str, **changed: object) -> list[str]:
        given = {
            "trial_name": name, "total_train_steps": STEPS, "checkpoint__freq_steps": 2, "train_dataset__batch_size": 5,
            "actor__optimizer__lr": 0.01, "actor__optimizer__lr_scheduler_type": "cosine", "train_dataset__held_out": 0.3,
            "actor__optimizer__warmup_steps": 2, "evaluator__freq_steps": 3,
        }  # fmt: skip
        return settings(tmp_path, model_folder, **(given | changed))

    return override


def state(folder: Path) -> dict[str, bytes]:
    """The last checkpoint: weights, moments, counters."""
    return {file.name: file.read_bytes() for file in (folder / "checkpoints" / f"step_{STEPS:06d}").iterdir()}


@pytest.mark.parametrize("adapters", [{}, LORA], ids=["weights", "adapters"])
@pytest.mark.parametrize("name", KINDS)
def test_killed_and_resumed_is_uninterrupted(words, tmp_path, name, adapters) -> None:
    kind, changed = KINDS[name]
    file, given = written(tmp_path, ROWS["kto" if name == "kto" else kind]), changed | adapters
    straight, _ = finished(kind, file, words("straight", **given))
    want = outcome(straight), state(straight)
    for step in (1, 3, 8):
        folder = killed(kind, file, words(f"killed{step}", **given), step)
        resumed(kind, folder)
        assert (outcome(folder), state(folder)) == want


def test_twenty_kills_of_preferences_at_any_moment(words, tmp_path) -> None:
    file, given = written(tmp_path, ROWS["dpo"]), {"checkpoint__freq_steps": 1, "checkpoint__keep_last": 2}
    straight, _ = finished("dpo", file, words("straight", **given))
    want, left = (outcome(straight), state(straight)), set[str]()
    for step in (1, 3, 5, 7, 10):
        for wait in (0.0, 0.007, 0.015, 0.022):  # a step and its checkpoint take about 0.03 s
            folder = killed("dpo", file, words(f"{step}_{wait}", **given), step, wait)
            left |= {path.name.rstrip("0123456789") for path in (folder / "checkpoints").glob("*")}
            resumed("dpo", folder)
            assert (outcome(folder), state(folder)) == want
    assert "step_" in left


def test_a_run_stopped_before_its_first_checkpoint_starts_again_with_the_same_reference(words, tmp_path) -> None:
    file, given = written(tmp_path, ROWS["dpo"]), {"checkpoint__freq_steps": STEPS}
    straight, _ = finished("dpo", file, words("straight", **given))
    folder = killed("dpo", file, words("killed", **given), 4)
    assert not list((folder / "checkpoints").glob("step_*"))
    kept = (folder / "reference.safetensors").read_bytes()
    resumed("dpo", folder)
    assert (folder / "reference.safetensors").read_bytes() == kept
    assert outcome(folder) == outcome(straight)


@pytest.mark.parametrize(
    ("changed", "refused"),
    [(LORA, True), ({"ref__log_probs": "online"}, True), ({}, False), ({"loss__type": "simpo"}, False)],
    ids=["adapters", "reference", "reference of before", "no reference"],
)
def test_a_start_that_was_changed_meanwhile_is_refused_where_it_is_in_use(
    words, model_folder, tmp_path, changed, refused
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    given = words("one", **{"actor__path": model, "total_train_steps": 2, **changed})
    folder, _ = finished("dpo", written(tmp_path, ROWS["dpo"]), given)
    (file,) = model.glob("*.safetensors")
    weights = load_file(file)
    for name in weights:
        weights[name][..., 0] += 0.01
    save_file(weights, file, {"format": "pt"})
    ended = call("dpo", "--resume", folder, "total_train_steps=3")
    assert (ended.code == 2) == refused, ended.err
    assert (f"actor.path={model} holds other weights than when this run began" in ended.err) == refused
