"""What a killed export leaves beside its target is removed, and nothing that anybody else put there."""

from pathlib import Path

from partita.models.export import remove_leftovers


def test_only_the_leftovers_of_this_folder_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".partita-export-export-ab12cd_9"
    foreign = [".export-kept", ".partita-export-other-ab12cd_9", ".partita-export-export-2-ab12cd_9", "export"]
    for folder in (leftover, *(tmp_path / name for name in foreign)):
        (folder / "deep").mkdir(parents=True)
    (tmp_path / ".partita-export-export-file0000").write_text("no folder")
    (tmp_path / ".partita-export-export-link0000").symlink_to(tmp_path / "export")
    remove_leftovers(tmp_path / "export")
    assert not leftover.exists()
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {*foreign, ".partita-export-export-file0000", ".partita-export-export-link0000"}
    assert (tmp_path / "export" / "deep").exists()
