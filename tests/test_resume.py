"""A run that is killed and resumed is the run that was never killed: the same metrics, the same samples, the same weights."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from running import Ended, call, finish, settings, start
from tiny_model import make

pytestmark = pytest.mark.slow  # whole runs, one after another

STEPS = 8


def outcome(folder: Path) -> tuple[list[dict], bytes, dict[str, bytes]]:
    """Metrics without wall-clock values, exported weights, samples and the numbers of the steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in x.items() if not k.startswith(("time/", "tokens_per_second"))} for x in lines]
    samples = {file.name: file.read_bytes() for kept in ("samples", "batches") for file in (folder / kept).iterdir()}
    return timeless, (folder / "export" / "model.safetensors").read_bytes(), samples


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, vowels: str):
    """A run with everything that has to survive: moments, a schedule, refilled groups, two optimizer steps a batch."""

    def override(name: str, **changed: object) -> list[str]:
        given = {
            "actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
            "checkpoint__freq_steps": 2, "actor__ppo_n_minibatches": 2, "actor__optimizer__lr": 0.01,
            "actor__optimizer__lr_scheduler_type": "cosine", "actor__optimizer__warmup_steps": 2,
            "actor__dynamic_sampling__filter": "mixed_rewards", "train_dataset__size": 10,
        }  # fmt: skip
        return settings(root, **(given | changed))

    root = tmp_path_factory.mktemp("resumed")
    return override


def folder_of(words: list[str]) -> Path:
    given = dict(word.split("=", 1) for word in words)
    return Path(given["output_dir"]) / given["experiment_name"] / given["trial_name"]


def train(*words: object) -> Ended:
    ended = finish(start("-m", "partita.cli", "train", *words))
    assert ended.code == 0, ended.err
    return ended


@pytest.fixture(scope="module")
def straight(words) -> Path:
    """The run that nobody interrupts."""
    train("grpo", *words("straight"))
    return folder_of(words("straight"))


def kill_after(step: int, words: list[str], preset: str = "grpo") -> Path:
    """Start a run and kill it as soon as its metrics have the line of `step`."""
    process, folder = start("-m", "partita.cli", "train", preset, *words), folder_of(words)
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= step:
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (folder / "export").exists()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 5])
def test_killed_and_resumed_is_uninterrupted(words, straight: Path, step: int) -> None:
    freq = 2 if step > 1 else STEPS
    folder = kill_after(step, words(f"killed{step}", checkpoint__freq_steps=freq))
    saved = sorted(path.name for path in (folder / "checkpoints").glob("step_*"))
    assert bool(saved) == (step > 1)  # where there is nothing to go on from, it starts at 0
    ended = train("--resume", folder)
    first = next(line for line in ended.out.splitlines() if line.startswith("step "))
    assert first.split("/")[0].split()[1] == str(1 + (int(saved[-1].removeprefix("step_")) if saved else 0))
    assert outcome(folder) == outcome(straight)


# every kind of memory beside the weights: running statistics, rules, sizes of groups, a stage and its plateau
ADAPTIVE = {
    "actor__adv_norm": "{mean_level: ema, std_level: ema}",
    "actor__adaptive_entropy": "{target: 6.0, delta: 0.01}",
    "actor__kl_controller": "{type: ziegler, target: 0.1, horizon: 50}",
    "gconfig__adaptive_n": "{score: variance, max: 8}",
    "stages": "[{until: {step: 3}, set: {gconfig.max_new_tokens: 6}}, {until: {plateau: reward/mean, window: 1, delta: 1.0}}, "
    "{set: {actor.eps_clip_rule: {type: iqr}, train_dataset.batch_size: 3}}]",
}


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted_with_rules_and_stages(words) -> None:
    train("grpo", *words("adaptive", **ADAPTIVE))
    want = outcome(folder_of(words("adaptive")))
    assert [line["stage"] for line in want[0]] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert "control/eps_clip/eps" in want[0][-1]
    for step in (3, 5):  # goes on from step 2, in the first stage, and from step 4, with one value of the plateau
        folder = kill_after(step, words(f"adaptive{step}", **ADAPTIVE))
        assert "stages[" in train("--resume", folder).out
        assert outcome(folder) == want


# groups that wait, of several weight versions, weighed by how far they are from the policy of now
WAITING = {
    "actor__dynamic_sampling__oversample": 3.0, "actor__dynamic_sampling__surplus_steps": 2, "actor__use_decoupled_loss": "true",
}  # fmt: skip


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted_with_groups_that_wait(words) -> None:
    train("grpo", *words("waiting", **WAITING))
    want = outcome(folder_of(words("waiting", **WAITING)))
    assert sum(line["surplus/used"] for line in want[0]) > 0
    assert all(line["groups/lacking"] == 0 for line in want[0])
    waited = []
    for step in (3, 5):  # goes on from steps 2 and 4
        folder = kill_after(step, words(f"waiting{step}", **WAITING))
        *_, last = sorted(folder.glob("checkpoints/*/state.json"))
        waited.append(len(json.loads(last.read_text())["rollouts"].get("surplus", ())))
        train("--resume", folder)
        assert outcome(folder) == want
    assert sum(waited) > 0


@pytest.mark.slow
def test_a_budget_ends_a_run_and_a_larger_one_goes_on_as_if_it_had_not(words, straight: Path) -> None:
    want = outcome(straight)
    tokens = [int(line["response_tokens"]) for line in want[0]]
    given = words("tokens", max_tokens=sum(tokens[:3]), checkpoint__freq_steps=100)
    ended = train("grpo", *given)
    folder = folder_of(given)
    assert "ended by max_tokens" in ended.out
    assert f"partita train --resume {folder} max_tokens={2 * sum(tokens[:3])}" in ended.out
    assert outcome(folder)[0] == want[0][:3]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_000003"]
    assert (folder / "export" / "model.safetensors").exists()
    again = train("--resume", folder)
    assert "ended by max_tokens" in again.out and len(outcome(folder)[0]) == 3
    train("--resume", folder, "max_tokens=null", "checkpoint.freq_steps=2")
    assert outcome(folder) == want


@pytest.mark.slow
def test_hours_end_a_run_and_are_counted_over_its_resumes(words, straight: Path) -> None:
    given = words("hours", max_hours=1e-6, checkpoint__freq_steps=100)
    ended = train("grpo", *given)
    folder = folder_of(given)
    assert "ended by max_hours 1e-06" in ended.out and "before the step that would pass 1e-06 hours" in ended.out
    assert len(outcome(folder)[0]) == 1
    spent = json.loads((folder / "metrics.jsonl").read_text())["time/step"] / 3600
    again = train("--resume", folder, f"max_hours={spent}")  # what is used up is used up
    assert "ended by max_hours" in again.out and len(outcome(folder)[0]) == 1
    train("--resume", folder, "max_hours=1", "checkpoint.freq_steps=2")
    assert outcome(folder) == outcome(straight)


@pytest.mark.slow
def test_an_early_stop_exports_the_best_weights_and_goes_on_from_the_last(words, tmp_path: Path) -> None:
    watched = {
        "evaluator__freq_steps": 1,
        "evaluator__n_prompts": 8,
        "checkpoint__freq_steps": 1,
        "checkpoint__keep_last": 100,
    }
    asked = {"early_stop__patience": 2, "early_stop__min_delta": 10, "early_stop__mode": "min"}
    given = words("early", **watched, **asked)
    ended = train("grpo", *given)
    folder = folder_of(given)
    assert "ended by early_stop: eval/reward has not been better than" in ended.out
    assert "export/ holds the weights after step 1, the best: eval/reward" in ended.out
    assert "after 2 evaluations without eval/reward below its best by more than 10" in ended.out
    assert len(outcome(folder)[0]) == 3
    for step in (1, 3):
        assert call("export", folder, tmp_path / f"at{step}", "--step", step).code == 0
    exported = (folder / "export" / "model.safetensors").read_bytes()
    assert exported == (tmp_path / "at1" / "model.safetensors").read_bytes()
    assert exported != (tmp_path / "at3" / "model.safetensors").read_bytes()
    assert [path.name for path in (folder / "best").iterdir()] == ["step_000001"]
    train("--resume", folder, "early_stop=null")
    whole = words("watched", **watched)
    train("grpo", *whole)
    assert outcome(folder) == outcome(folder_of(whole))


@pytest.mark.slow
def test_a_run_stopped_from_the_keyboard_says_how_to_go_on(words) -> None:
    given = words("stopped", total_train_steps=2000, checkpoint__freq_steps=1, checkpoint__keep_last=2)
    process, folder = start("-m", "partita.cli", "train", "grpo", *given), folder_of(given)
    deadline = time.monotonic() + 120
    while not (folder / "checkpoints" / "step_000002").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert f"partita train --resume {folder}" in ended.out


def finished(words: list[str]) -> Path:
    ended = call("train", "grpo", *words)
    assert ended.code == 0, ended.err
    return folder_of(words)


def test_a_finished_run_goes_on_to_more_steps_as_if_it_had_been_asked_for_them(words) -> None:
    constant = {"actor__optimizer__lr_scheduler_type": "constant"}
    short, long = (
        finished(words("short", total_train_steps=3, **constant)),
        finished(words("long", total_train_steps=5, **constant)),
    )
    ended = call("train", "--resume", short, "total_train_steps=5")
    assert ended.code == 0, ended.err
    assert outcome(short) == outcome(long)


def test_resuming_a_finished_run_changes_nothing_and_restores_its_export(words) -> None:
    folder = finished(words("over", total_train_steps=2))
    want = outcome(folder)
    shutil.rmtree(folder / "export")  # as if killed between the last checkpoint and the export
    (folder / ".partita-export-export-ab12cd_9").mkdir()
    ended = call("train", "--resume", folder)
    assert ended.code == 0, ended.err
    assert not list(folder.glob(".partita-export-*"))
    assert outcome(folder) == want


def test_a_cut_checkpoint_is_named_and_the_one_before_it_is_used(words) -> None:
    folder = finished(words("cut", total_train_steps=4))
    want = outcome(folder)
    weights = folder / "checkpoints" / "step_000004" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"step_000004 is skipped: model\.safetensors is missing or cut"):
        ended = call("train", "--resume", folder)
    assert ended.code == 0, ended.err
    assert "step 3/4" in ended.out
    assert "step 2/4" not in ended.out
    assert outcome(folder) == want


def test_a_run_with_damaged_checkpoints_only_does_not_start_at_0(words) -> None:
    folder = finished(words("torn", total_train_steps=1))
    kept = (folder / "metrics.jsonl").read_bytes()
    (folder / "checkpoints" / "step_000001" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="step_000001 is skipped"):
        ended = call("train", "--resume", folder)
    assert ended.code == 2
    assert f"{folder} has no whole checkpoint to go on from, all are damaged: step_000001" in ended.err
    assert (folder / "metrics.jsonl").read_bytes() == kept


def test_a_resume_that_is_refused_leaves_the_folder_as_it_was(words) -> None:
    folder = finished(words("refused", total_train_steps=2, checkpoint__freq_steps=1))
    shutil.rmtree(folder / "checkpoints" / "step_000002")  # a resume would go on from 1, without the line of 2

    def content() -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    kept = content()
    ended = call("train", "--resume", folder, "seed=4")
    assert ended.code == 2
    assert "step_000001 cannot be continued with this config: the saved data position is for " in ended.err
    assert content() == kept


def test_a_checkpoint_with_a_flipped_bit_is_an_error_that_names_it(words) -> None:
    folder = finished(words("flipped", total_train_steps=1))
    weights = folder / "checkpoints" / "step_000001" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    ended = call("train", "--resume", folder)
    assert ended.code == 1
    assert f"{weights.parent}: model.safetensors is damaged; without this folder a run resumes" in ended.err


def test_a_checkpoint_of_another_model_is_an_error(words, tmp_path: Path) -> None:
    folder = finished(words("other", total_train_steps=1))
    other = call("train", "--resume", folder, f"actor.path={make(tmp_path / 'wide', hidden=64)}", "total_train_steps=2")
    assert other.code == 1
    assert "step_000001" in other.err
    assert "has shape" in other.err


def test_a_wrong_folder_is_an_error_that_names_the_run_inside(words, tmp_path: Path) -> None:
    folder = finished(words("inside", total_train_steps=1))
    above = call("train", "--resume", folder.parent)
    assert above.code == 2
    assert f"{folder.parent} is not a run folder: it has no config.yaml; did you mean {folder.parent}" in above.err
    missing = call("train", "--resume", tmp_path / "gone")
    assert missing.code == 2
    assert f"{tmp_path}/gone is not a run folder" in missing.err
    unknown = call("train", "--resume", folder, "actor.eps_clp=0.1")
    assert unknown.code == 2
    assert "actor.eps_clp: unknown key. Near: eps_clip" in unknown.err
