"""The table of measured memory: its numbers, and its place in both pages."""

import json
import re

import memory
import pytest

LINES = [
    {"name": way.name, "peak_gib": 2.0 + index, "told": way.told, "words": list(way.words)}
    for index, way in enumerate(memory.WAYS)
]


def test_every_way_has_a_line_with_what_it_takes_beyond_the_first():
    for language in memory.HEADS:
        lines = memory.table(LINES, language).splitlines()
        assert len(lines) == 2 + len(memory.WAYS)
        assert lines[2] == "| grpo | `actor.kl_loss_coef=0` | 18 | 2.00 |  |"
        assert lines[3].endswith("| 20 | 3.00 | +1.00 |")
    assert memory.table(LINES[1:2], "en").splitlines()[2].endswith("| 3.00 |  |")


@pytest.mark.parametrize("language", memory.PAGES)
def test_both_pages_have_a_place_for_it(language):
    page = memory.PAGES[language].read_text(encoding="utf-8")
    assert len(re.findall("<!-- memory -->\n.*?<!-- end -->", page, flags=re.DOTALL)) == 1


@pytest.mark.slow
def test_a_run_is_measured_in_a_process_of_its_own(tmp_path, model_folder, monkeypatch, capsys):
    words = ["memory.py", "--only", "grpo", "--model", str(model_folder), "--steps", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    memory.main()
    [line] = map(json.loads, (tmp_path / "memory.jsonl").read_text().splitlines())
    assert line["name"] == "grpo"
    assert 0.1 < line["peak_gib"] < 4
    assert f"| {line['peak_gib']:.2f} |" in capsys.readouterr().out
