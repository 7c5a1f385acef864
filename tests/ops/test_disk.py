"""What is synced is the file or folder itself, and a failure is not swallowed."""

import os
from pathlib import Path

import pytest

from partita.ops.disk import sync


def test_files_and_folders_are_forced_to_the_disk_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    seen: list[tuple[int, int]] = []
    forced = os.fsync

    def watch(handle: int) -> None:
        forced(handle)
        seen.append((handle, os.fstat(handle).st_ino))

    monkeypatch.setattr(os, "fsync", watch)
    sync(file)
    sync(tmp_path)
    assert [number for _, number in seen] == [file.stat().st_ino, tmp_path.stat().st_ino]
    for handle, _ in seen:
        with pytest.raises(OSError):
            os.fstat(handle)


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        sync(tmp_path / "gone")
