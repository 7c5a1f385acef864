"""docs/scaling.md is made from the code and the results, and its simulations are what they say."""

import json

import pages
import pytest
import scaling


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(scaling.generated(), scaling.COMMAND) == []


@pytest.mark.parametrize(
    "lengths, slots, seconds",
    [
        ([3], 2, 3 * (1.0 + 0.1)),
        ([3, 1], 2, 1 * 1.2 + 2 * 1.1),
        ([2, 2, 2], 2, 2 * 1.2 + 2 * 1.1),  # the third waits for a slot
        ([2, 1, 1], 2, 1 * 1.2 + 1 * 1.2),  # and gets the first that is free
    ],
)
def test_decode_steps_are_counted(lengths, slots, seconds):
    assert scaling.decoded(lengths, 1.0, 0.1, slots) == pytest.approx(seconds)


def test_a_file_of_results_becomes_a_table_and_its_absence_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    words = scaling.WORDS["en"]
    assert scaling.measured("x.jsonl", "make x", words) == "No results yet; `make x` writes them."
    line = {
        "name": "served 64", "ours": 123.456, "unit": "tokens/s", "peer": "it", "peer_value": 100.0, "ratio": 1.2346,
        "ratio_min": 1.2, "ratio_max": 1.3, "pairs": 5, "date": "2026-01-01",
    }  # fmt: skip
    alone = {**line, "name": "k3", "unit": "", "peer": "", "peer_value": None, "ratio": None, "pairs": 0}
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(alone)}\n")
    assert scaling.measured("x.jsonl", "make x", words).splitlines()[2:] == [
        "| served 64 | 123.5 tokens/s | it | 100 | 1.23 (1.20 – 1.30) | 5 | 2026-01-01 |",
        "| k3 | 123.5 |  |  |  |  | 2026-01-01 |",
    ]
