"""What the commands for sampled runs make of a run on data: its model is asked as any other, the rest is one readable line."""

import pytest
from offline_runs import ROWS, finished, folder_of, settings, written
from running import call


@pytest.fixture(scope="module", params=["sft", "rm", "dpo"])
def run(request, tmp_path_factory, model_folder):
    """The command, and the folder of a finished run of it."""
    root = tmp_path_factory.mktemp(request.param)
    words = settings(root, model_folder, total_train_steps=1)
    folder, _ = finished(request.param, written(root, ROWS[request.param]), words)
    return request.param, folder


def test_a_run_on_data_is_no_run_of_train(run, tmp_path) -> None:
    kind, folder = run
    for words in (
        ("train", "--resume", folder), ("export", folder, tmp_path / "e"), ("replay", folder, "--step", 1),
        ("eval", folder, "--task", "addition", "--compare"),
    ):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, words
        assert (
            f"{folder} is a run of `partita {kind}`, which goes on by `partita {kind} --resume {folder}`" in ended.err
        )


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
