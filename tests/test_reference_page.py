"""docs/reference/config.md is what the schema says today."""

import pages
import reference


def test_the_page_on_disk_is_the_generated_one():
    assert pages.stale(reference.generated(), reference.COMMAND) == []


def test_every_section_of_a_run_has_a_heading():
    [text] = reference.generated().values()
    for section in (
        "gconfig",
        "rollout",
        "actor",
        "actor.optimizer",
        "train_dataset",
        "reward",
        "checkpoint",
        "report",
    ):
        assert f"\n## `{section}`\n" in text


def test_a_stale_page_is_named_with_its_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("one\ntwo\n")
    assert pages.stale({page: "one\ntwo\n"}, "x.py") == []
    [message] = pages.stale({page: "one\nthree\n"}, "x.py")
    assert message == "page.md is out of date; run `python x.py`\n  @@ -2 +2 @@\n  -two\n  +three"
    [message] = pages.stale({tmp_path / "absent.md": "one\n"}, "x.py")
    assert message.startswith("absent.md is missing; run `python x.py`")
