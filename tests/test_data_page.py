"""docs/data.md names every key, and its rows, configs and programs do what it says."""

import json
import re
from dataclasses import fields
from pathlib import Path

import yaml

from partita.run import load_run_config
from partita.tasks.dataset import load_rows
from partita.tasks.settings import (
    ColumnsConfig,
    CurriculumConfig,
    DatasetConfig,
    MixedSourceConfig,
    PassRatesConfig,
)

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_key_is_named():
    quoted = set(re.findall(r"`([\w.]+)`", PAGE))
    names = {item.name for config in (DatasetConfig, MixedSourceConfig) for item in fields(config)}
    sections = {"columns": ColumnsConfig, "curriculum": CurriculumConfig, "pass_rates": PassRatesConfig}
    names = names - set(sections) | {f"{name}.{one.name}" for name, of in sections.items() for one in fields(of)}
    assert names - quoted - {"streaming", "held_out"} == set()
    assert "`streaming=true`" in PAGE and "`train_dataset.held_out=0.05`" in PAGE


def test_the_rows_are_read_as_the_page_says(tmp_path):
    answers = ["42", "45", "\\frac{5}{2}", "42", "42", "42", "42"]
    for line, answer in zip(blocks("jsonl")[0].splitlines(), answers, strict=True):
        (tmp_path / "rows.jsonl").write_text(line)
        (row,) = load_rows(DatasetConfig(path=str(tmp_path / "rows.jsonl")), seed=1).rows
        assert row.answer == answer and row.messages[-1]["role"] == "user"


def test_the_configs_load_and_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "countdown.jsonl").write_text('{"target": 33, "nums": [3, 7, 12]}')
    for number, block in enumerate(blocks("yaml")):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"total_train_steps: 1\n{block}")
        section = load_run_config([file]).value.train_dataset
        assert yaml.safe_load(block)["train_dataset"].keys() >= ({"mix"} if section.mix else {"template"})
        if not section.mix:
            (row,) = load_rows(section, seed=1).rows
            said = [message["content"] for message in row.messages]
            assert said == [
                "You think before you answer.",
                "Using the numbers [1, 2], make an equation that equals 3.",
                "<think>1 + 2</think> 1 + 2 = 3",
                "Using the numbers [3, 7, 12], make an equation that equals 33.",
            ]


def test_the_programs_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            Path(named[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, "data.md", "exec"), {})


def test_the_pass_rates_line_is_the_files_own():
    assert set(json.loads(blocks("json")[0])) == {"prompt", "tries", "right"}
