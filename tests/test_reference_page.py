"""The pages below docs/reference are what the schema says today."""

import re

import pages
import reference

from partita.config.schema import keys_of
from partita.offline.config import KINDS


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(reference.generated(), reference.COMMAND) == []


def test_every_section_of_a_run_has_a_heading():
    text = reference.generated()[reference.PAGE]
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


def test_every_key_of_training_on_data_is_listed_once():
    text = reference.generated()[reference.OFFLINE]
    listed = re.findall(r"^\| `([\w.]+)` \|", text, flags=re.MULTILINE)
    assert sorted({*listed} - {"kind"}) == sorted(name for name in listed if name != "kind")
    assert listed.count("kind") == len(KINDS)
    for config in KINDS.values():
        for name, key in keys_of(config).items():
            assert name in listed if key.section is None else f"\n## `{name}`\n" in text


def test_a_stale_page_is_named_with_its_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("one\ntwo\n")
    assert pages.stale({page: "one\ntwo\n"}, "x.py") == []
    [message] = pages.stale({page: "one\nthree\n"}, "x.py")
    assert message == "page.md is out of date; run `python x.py`\n  @@ -2 +2 @@\n  -two\n  +three"
    [message] = pages.stale({tmp_path / "absent.md": "one\n"}, "x.py")
    assert message.startswith("absent.md is missing; run `python x.py`")
