"""What the commands for sampled runs make of a run on data: its model is asked as any other, the rest is one readable line."""

import pytest
from offline_runs import ROWS, finished, folder_of, settings, written
from running import call

pytestmark = pytest.mark.slow  # whole runs, one after another


@pytest.fixture(scope="module", params=["sft", "rm", "dpo"])
def run(request, tmp_path_factory, model_folder):
    """The command, and the folder of a finished run of it."""
    root = tmp_path_factory.mktemp(request.param)
    words = settings(root, model_folder, total_train_steps=1)
    folder, _ = finished(request.param, written(root, ROWS[request.param]), words)
    return request.param, folder


def test_a_run_on_data_is_no_run_of_train(run) -> None:
    kind, folder = run
    for words in (
        ("train", "--resume", folder), ("replay", folder, "--step", 1),
        ("eval", folder, "--task", "addition", "--compare"),
    ):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, words
        assert (
            f"{folder} is a run of `partita {kind}`, which goes on by `partita {kind} --resume {folder}`" in ended.err
        )


def test_a_checkpoint_is_exported_as_the_end_of_the_run_was(run, tmp_path) -> None:
    _, folder = run
    ended = call("export", folder, tmp_path / "model")
    assert ended.code == 0 and ended.out == f"wrote {tmp_path / 'model'}\n", ended.err
    files = {path.name for path in (folder / "export").iterdir()} - {"reward_stats.json"}  # known at the end only
    assert {path.name for path in (tmp_path / "model").iterdir()} == files
    for name in files:
        assert (tmp_path / "model" / name).read_bytes() == (folder / "export" / name).read_bytes(), name


def test_its_config_is_printed_and_explained(run) -> None:
    kind, folder = run
    file = folder / "config.yaml"
    printed, told = call("config", file, "actor.optimizer.lr=0.5"), call("explain", file)
    assert printed.code == told.code == 0, printed.err + told.err
    assert "lr: 0.5" in printed.out and f"kind: {kind}" in printed.out
    loss = {"sft": "-log π(answer), token_mean", "rm": "-log σ(s_c - s_r - m)", "dpo": "sigmoid: -log σ(0.1 h)"}[kind]
    assert f"minimise  {loss}\n" in told.out
    assert ("log π/π_ref of chosen and rejected" in told.out) == (kind == "dpo")
    assert ("each token  1" in told.out, "+β σ(-βh) chosen" in told.out) == (kind == "sft", kind == "dpo")
    assert call("explain", file, "--markdown").out.startswith(f"# {file}\n")
    trained, compared = call("train", file), call("explain", file, "--against", "grpo")
    assert trained.code == compared.code == 2
    assert f"a config of `partita {kind}`, not of `partita train`" in trained.err
    assert f"a config of `partita {kind}`, which has no presets" in compared.err


def test_its_model_answers_unless_it_gives_scores(run) -> None:
    kind, folder = run
    asked = call("generate", folder, "--prompt", "hi", "--max-new-tokens", 2)
    judged = call("eval", folder, "--task", "addition", "--n", 2)
    if kind == "rm":
        assert (asked.code, judged.code) == (2, 2)
        assert "a reward model, for reward.model" in asked.err
    else:
        assert (asked.code, judged.code) == (0, 0), asked.err + judged.err


def test_a_folder_that_is_no_run_is_named(run, tmp_path) -> None:
    kind, folder = run
    gone = call(kind, "--resume", tmp_path)
    assert gone.code == 2 and f"{tmp_path} is not a run folder" in gone.err
    above = call(kind, "--resume", folder.parent)
    assert above.code == 2 and f"did you mean {folder}" in above.err


def test_a_taken_name_says_how_to_go_on(run, model_folder, tmp_path) -> None:
    kind, folder = run
    root = folder.parents[1]
    words = settings(root, model_folder, total_train_steps=1)
    assert folder_of(words) == folder
    again = call(kind, written(tmp_path, ROWS[kind]), *words)
    assert again.code == 2 and f"go on with it (partita {kind} --resume {folder})" in again.err
