"""The folder of a run: where it goes on, and what is said when it cannot be written to."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from partita.launch.roles import FOLDER
from partita.run import RunConfig
from partita.runfolder import (
    CHECKPOINTS,
    DiskError,
    RunFolderError,
    begun_folder,
    disk_full_is_readable,
    new_folder,
    resume_point,
)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Quota"), SafetensorError("No space")]
)  # fmt: skip
def test_a_full_disk_is_one_sentence_with_the_folder_and_the_command(error: Exception) -> None:
    with (
        pytest.raises(DiskError, match=r"^runs/x cannot be written to: .*Free some space, then: partita go on$"),
        disk_full_is_readable(Path("runs/x"), "partita go on"),
    ):
        raise error


def test_other_errors_of_files_travel_as_they_are() -> None:
    with pytest.raises(PermissionError), disk_full_is_readable(Path("runs/x"), "partita go on"):
        raise PermissionError(errno.EACCES, "no")


def test_a_run_without_checkpoints_starts_at_0_and_one_with_damaged_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        resume_point(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert resume_point(tmp_path) is None
    for step in (1, 2):
        (tmp_path / CHECKPOINTS / f"step_00000{step}").mkdir(parents=True)
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(RunFolderError, match="all are damaged: step_000001, step_000002"),
    ):
        resume_point(tmp_path)


def test_a_process_that_a_launcher_started_takes_the_folder_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(total_train_steps=1, output_dir=str(tmp_path / "runs"))
    assert begun_folder() is None
    assert new_folder(config) == tmp_path / "runs" / "run" / "001"
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert (new_folder(config), begun_folder()) == (tmp_path, None)
    (tmp_path / "config.yaml").write_text("")
    assert begun_folder() == tmp_path  # its run has begun: it goes on
