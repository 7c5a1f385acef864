"""Runs that are rewarded by a judge at a real server: budgets, resumes, steps, and what is left in the run folder."""

from pathlib import Path

import pytest
import torch
import yaml
from judge_server import Running, serving
from running import Ended, call, lines_of, settings
from transformers import AutoTokenizer, LlamaConfig, LlamaForTokenClassification

BUDGET = "reward.judges.good.budget.max_requests"


@pytest.fixture
def server():
    with serving() as running:
        yield running


def train(root: Path, model: Path, server: Running, judge: dict | None = None, **changed: object) -> tuple[Ended, Path]:
    """A run of up to three steps, judged as `judge` changes it."""
    usual = {"base_url": server.url, "model": "vowels", "prompt": "{response}", "api_key_env": "JUDGE_KEY"}
    config = {"reward": {"judges": {"good": usual | (judge or {})}}}
    (root / "judge.yaml").write_text(yaml.safe_dump(config))
    words = settings(
        root, actor__path=model, trial_name="one", total_train_steps=3, train_dataset__columns__answer="null", **changed
    )
    return call("train", root / "judge.yaml", *words), root / "tiny" / "one"


@pytest.mark.slow
def test_a_budget_ends_the_run_with_a_checkpoint_and_a_resume_asks_nothing_twice(
    tmp_path, model_folder, server, monkeypatch
):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-123")
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole, folder = train(tmp_path / "a", model_folder, server)
    assert whole.code == 0, whole.err
    asked = server.stats()["requests"]
    assert [line["judge/good/requests"] + line["judge/good/cache_hits"] for line in lines_of(folder)] == [8.0] * 3
    assert sum(line["judge/good/requests"] for line in lines_of(folder)) == asked
    metrics = {name.rpartition("/")[2] for line in lines_of(folder) for name in line if name.startswith("judge/")}
    page = (
        (Path(__file__).parent.parent / "docs" / "run-folder.md").read_text(encoding="utf-8").partition("### Judges")[2]
    )
    assert metrics and all(f"/{name}`" in page for name in metrics)

    ended, other = train(
        tmp_path / "b", model_folder, server, judge={"budget": {"max_requests": asked - 3}, "concurrency": 1}
    )
    assert ended.code == 1
    assert f"error: {BUDGET}={asked - 3} is reached" in ended.err
    assert f"go on from step_000002: partita train --resume {other}" in ended.out + ended.err
    assert len(lines_of(other)) == 2
    resumed = call("train", "--resume", other, f"{BUDGET}=1000")
    assert resumed.code == 0, resumed.err
    assert server.stats()["requests"] == 2 * asked
    same = ("reward/mean", "loss", "reward/good")
    assert [{name: line.get(name) for name in same} for line in lines_of(folder)] == [
        {name: line.get(name) for name in same} for line in lines_of(other)
    ]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "good.jsonl" for file in files)
    assert not any(b"sk-secret" in file.read_bytes() for file in files)
    assert "sk-secret" not in whole.out + whole.err + ended.out + ended.err


@pytest.mark.slow
def test_steps_of_a_judge_are_credited(tmp_path, model_folder, server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "x")
    judge = {"steps": "(?<=.)", "prompt": "{prompt} {steps}"}
    ended, folder = train(tmp_path, model_folder, server, judge, actor__credit="process")
    assert ended.code == 0, ended.err
    line = lines_of(folder)[-1]
    assert line["reward/error_share"] < 0.5 and line["effective_tokens"] > 0


@pytest.mark.slow
def test_steps_of_a_process_model_are_credited_beside_a_judge(tmp_path, model_folder, server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "x")
    config = LlamaConfig.from_pretrained(model_folder)
    config.num_labels, folder = 2, tmp_path / "prm"
    torch.manual_seed(1)
    LlamaForTokenClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    ended, run = train(
        tmp_path, model_folder, server, actor__credit="process", reward__process_model=folder,
        reward__process_steps="(?<=.)",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    line = lines_of(run)[-1]
    assert 0 < line["reward/process_model"] < 1 and "reward/good" in line and line["effective_tokens"] > 0
