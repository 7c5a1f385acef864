"""Every Python example of the hand-written pages runs, and the pages name every key and every metric."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import test_loop
from running import call

from partita.engine.servers.client import COUNTED
from partita.launch.start import launches
from partita.report.sinks import read_metrics
from partita.run import load_run_config
from partita.tasks.conversations import LAYOUTS, RowReader
from partita.tasks.reward import RewardConfig

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "src" not in page.parts)


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["rewards.md"])
def test_python_examples_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            Path(named[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, page, "exec"), {})


def test_the_printed_score_is_the_real_one(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rewards, attempt = blocks("rewards.md", "python")[:2]
    Path("my_rewards.py").write_text(rewards, encoding="utf-8")
    exec(compile(attempt, "rewards.md", "exec"), {})
    assert f"```\n{capfd.readouterr().out}```" in (DOCS / "rewards.md").read_text(encoding="utf-8")


def test_rewards_page_names_every_key():
    quoted = set(re.findall(r"`([\w.]+)`", (DOCS / "rewards.md").read_text(encoding="utf-8")))
    names = {item.name for item in fields(RewardConfig)}
    assert {name for name in names if not any(word.endswith(name) for word in quoted)} == set()


def documented(metric: str) -> bool:
    """Whether a table of the run folder's page has the metric in its first column, extremes beside their mean."""
    cells = re.findall(r"^\| (`[^|]*) \|", (DOCS / "run-folder.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = [re.findall(r"`([^`]+)`", cell) for cell in cells]
    whole = {name for row in names for name in row} | {
        re.sub(r"/[^/]*$", "", row[0]) + name for row in names for name in row if name.startswith("/")
    }
    return metric in whole or re.sub(r"/(?:min|max)$", "", metric) in whole


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo_smoothed", "skywork_or1", "sapo_selfadaptive"])
def test_every_metric_of_a_run_is_explained(name, tmp_path):
    records = test_loop.run(test_loop.make(tmp_path, name, steps=3, evaluate=True))
    found = {metric for record in records for metric in record} - {
        "step",
        "reward/first",
        "reward/first/min",
        "reward/first/max",
    }
    assert len(found) > 30
    assert {metric for metric in found if not documented(metric)} == set()
    assert not documented("reward/first")


@pytest.mark.parametrize("name", [*COUNTED, "probe_difference"])
def test_every_metric_of_engine_servers_is_explained(name):
    assert documented(f"engine/{name}")


@pytest.mark.parametrize(
    "path", sorted((DOCS.parent / "examples" / "scale").glob("*.yaml")), ids=lambda path: path.stem
)
def test_configs_beyond_one_process_launch_and_name_their_page(path):
    assert launches(load_run_config([path], []).value)
    [page] = re.findall(r"^# .*\((docs/[\w/]+\.md)\)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert (DOCS.parent / page).exists()
    assert f"examples/scale/{path.name}" in (DOCS.parent / page).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["sft", "rm", "dpo", "dpo loss.type=simpo", "dpo loss.type=kto"])
def test_every_metric_of_training_on_data_is_explained(words, tmp_path, model_folder):
    command, *rest = words.split()
    given, file = {"sft": 0, "rm": 5}.get(command, 5), tmp_path / "rows.jsonl"
    row = json.loads(blocks("training-on-data.md", "jsonl")[0].splitlines()[6 if "kto" in words else given])
    rows = [{**row, "prompt": f"What is {n}?"} if given else row for n in range(4)]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    settings = [f"actor.path={model_folder}", f"output_dir={tmp_path}", f"valid_dataset.path={file}"]
    ended = call(command, file, *settings, "report.console=quiet", *rest)
    assert ended.code == 0, ended.err
    [record] = read_metrics(tmp_path / "run" / "001" / "metrics.jsonl")
    names = {re.sub("^eval/(?!loss)", "", name) for name in record.metrics}
    assert len(names) > 10
    assert {name for name in names if not documented(name)} == set()


@pytest.mark.slow
def test_every_metric_of_a_critic_is_explained(tmp_path, model_folder, vowels):
    words = [f"actor.path={model_folder}", f"output_dir={tmp_path}", f"reward.functions=[{vowels}]"]
    small = ["train_dataset.batch_size=2", "gconfig.n_samples=2", "gconfig.max_new_tokens=4", "total_train_steps=1"]
    ended = call("train", "ppo", *words, *small, "report.console=quiet")
    assert ended.code == 0, ended.err
    [record] = read_metrics(tmp_path / "ppo" / "001" / "metrics.jsonl")
    names = {name for name in record.metrics if name.startswith("critic/")}
    assert len(names) > 5
    assert {name for name in names if not documented(name)} == set()


def test_the_printed_rows_are_read_as_the_page_says():
    lines = [json.loads(line) for line in blocks("training-on-data.md", "jsonl")[0].splitlines()]
    reader = RowReader()
    for row in lines[:5]:
        assert sum(reader.conversation(row).learned) == 1
    pair, judged = reader.comparison(lines[5]), reader.judgement(lines[6])
    assert (pair.chosen.messages[-1]["content"], pair.margin) == ("42", 1.0)
    assert not judged.good
    text = (DOCS / "training-on-data.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in LAYOUTS)


TWINS = [
    "training-on-data.md", "lora.md", "models-in-memory.md", "from-laptop-to-cluster.md", "plan.md", "scaling.md",
    *(f"launchers/{name}.md" for name in ("local", "ray", "slurm")),
    *(f"engines/{name}.md" for name in ("local", "vllm", "sglang")),
]  # fmt: skip


@pytest.mark.parametrize("page", TWINS)
def test_a_page_and_its_translation_have_the_same_shape(page):
    shapes = []
    for name in (page, f"zh/{page}"):
        text = (DOCS / name).read_text(encoding="utf-8")
        code = re.findall(r"^```.*?^```$", text, flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        counted = [len(re.findall(pattern, prose, re.MULTILINE)) for pattern in ("^#", "^- ", r"^\|")]
        shapes.append((re.sub(r"\s*# .*", "", "".join(code)), counted))
    assert shapes[0] == shapes[1]


def test_both_readmes_have_the_same_commands_and_headings():
    texts = [(DOCS.parent / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")]
    shapes = []
    for text in texts:
        code = re.findall(r"^```(?:bash|python)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        commands = [re.sub(r"\s*# .*", "", line) for block in code for line in block.splitlines()]
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        shapes.append((commands, len(re.findall("^#", prose, re.MULTILINE)), sorted(re.findall("@@.*?@@", text))))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
