"""A verl `compute_score` that reads JSON from its ground truth, returns a dict, and has an argument from the config."""

import json
from pathlib import Path

import pytest
from scoring import metrics_of, score_groups

from partita.records import Prompt
from partita.run import load_run_config
from partita.tasks.dataset import TaskRow
from partita.tasks.reward import FunctionOptions, RewardConfig, RewardRuntime, Scored
from partita.trainer import QUICKSTART

REWARDS = r"""
import json, re


def compute_score(data_source, solution_str, ground_truth, extra_info=None, wrong=0.0, **kwargs):
    gold = json.loads(ground_truth)
    found = re.findall(r"=\s*(-?\d+(?:\.\d+)?)\s*([a-z/]*)$", solution_str.strip())
    if not found:
        return {"score": wrong, "acc": 0.0, "parsed": 0.0, "pred": ""}
    value, unit = float(found[-1][0]), found[-1][1]
    ok = unit == gold["unit"] and abs(value - gold["value"]) <= gold["tol"]
    return {"score": 1.0 if ok else wrong + 0.1 * (unit == gold["unit"]), "acc": float(ok), "parsed": 1.0, "pred": found[-1][0]}


def bare(solution_str, ground_truth):
    return "m/s" in solution_str


def sparse(solution_str, ground_truth):
    return {"score": 1.0} if "=" not in solution_str else {"score": 0.0, "decimals": solution_str.count(".")}


def nameless(solution_str, ground_truth):
    return {"acc": 1.0, "pred": "x"}
"""
GOLD = json.dumps({"value": 19.62, "tol": 0.05, "unit": "m/s"})
ROW = {
    "data_source": "lab/units",
    "prompt": [{"role": "user", "content": "A stone falls for 2 s. How fast is it? End with '= number unit'."}],
    "ability": "physics",
    "reward_model": {"style": "rule", "ground_truth": GOLD},
    "extra_info": {"index": 3, "split": "train"},
}
PROMPT = Prompt("1", (1,), "<user>...<assistant>", ROW, tuple(ROW["prompt"]), GOLD)
RESPONSES = {
    "v = g t = 19.6 m/s": (1.0, 1.0, 1.0, "19.6"),
    "v = 19.6 km/h": (-0.5, 0.0, 1.0, "19.6"),
    "v = 20 m/s": (-0.4, 0.0, 1.0, "20"),
    "about twenty": (-0.5, 0.0, 0.0, ""),
    "": (-0.5, 0.0, 0.0, ""),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "units.py").write_text(REWARDS)
    return tmp_path / "units.py"


def scored(file: Path, name: str, **options: FunctionOptions) -> list[Scored]:
    runtime = RewardRuntime(RewardConfig(functions=[f"{file}:{name}"], options=options, processes=2))
    try:
        runtime.check(TaskRow("1", PROMPT.messages, GOLD, ROW))
        return score_groups(runtime, [(PROMPT, list(RESPONSES))])[0]
    finally:
        runtime.close()


def test_score_is_the_reward_and_other_numbers_are_metrics(file: Path) -> None:
    found = scored(file, "compute_score", compute_score=FunctionOptions(kwargs={"wrong": -0.5}))
    for one, (score, acc, parsed, pred) in zip(found, RESPONSES.values(), strict=True):
        assert one.reward == pytest.approx(score)
        assert one.parts == {
            "compute_score": pytest.approx(score),
            "compute_score/acc": acc,
            "compute_score/parsed": parsed,
        }
        assert one.notes == {"compute_score/pred": pred}
    metrics = metrics_of(found)
    assert metrics["reward/compute_score/acc"] == pytest.approx(0.2)
    assert metrics["reward/compute_score/parsed"] == pytest.approx(0.6)
    assert not any("pred" in name for name in metrics)


def test_without_the_argument_its_default_holds(file: Path) -> None:
    assert [one.reward for one in scored(file, "compute_score")] == pytest.approx([1.0, 0.0, 0.1, 0.0, 0.0])


def test_the_argument_is_a_key_of_the_config(file: Path) -> None:
    words = [f"reward.functions=[{file}:compute_score]", "+reward.options.compute_score.kwargs.wrong=-0.5"]
    config = load_run_config([QUICKSTART], words).value.reward
    assert config.options == {"compute_score": FunctionOptions(kwargs={"wrong": -0.5})}


def test_a_bare_truth_value_works(file: Path) -> None:
    assert [one.reward for one in scored(file, "bare")] == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_key_that_some_samples_lack_is_averaged_over_those_that_have_it(file: Path) -> None:
    assert metrics_of(scored(file, "sparse"))["reward/sparse/decimals"] == pytest.approx(2 / 3)


def test_without_a_score_the_keys_that_were_found_are_named(file: Path) -> None:
    found = scored(file, "nameless")
    assert {one.error for one in found} == {"nameless: returned a dict without 'score'; its keys: acc, pred"}
