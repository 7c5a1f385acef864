"""`partita eval` as it is typed: figures, tables, files, and what it refuses."""

import json
from pathlib import Path

import pytest
from running import Ended, call


def refused(ended: Ended, *words: str) -> None:
    assert ended.code == 2, ended
    assert all(word in ended.err for word in words), ended.err
    assert "Traceback" not in ended.err


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six rows of two levels."""
    file = tmp_path_factory.mktemp("rows") / "held_out.jsonl"
    lines = [{"question": f"{i} + 1?", "answer": str(i + 1), "level": i % 2} for i in range(6)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Right is what has an even number of characters."""
    file = tmp_path_factory.mktemp("reward") / "easy.py"
    file.write_text(
        "def even(response):\n    return {'score': float(len(response) % 2 == 0), 'short': float(len(response) < 6)}\n"
        "def first(response):\n    return response[:1]\n"
    )
    return str(file)


def test_everything_of_two_models_on_rows_of_ones_own(
    tmp_path: Path, trained: Path, model_folder: Path, rows: Path, easy: str
) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "samples.jsonl"
    ended = call(
        "eval", trained, "--compare", "--task", rows, "--reward", f"{easy}:even", "--k", "1,4", "--by", "level",
        "--answer-of", f"{easy}:first", "--temperature", 1, "--json", figures, "--save", kept,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    first, second, difference, *table = ended.out.splitlines()
    for line, model in ((first, trained / "export"), (second, model_folder)):
        assert line.startswith(f"{model}: 0.")
        assert "95 % interval" in line and line.endswith("on 6 held-out prompts, 4 samples each, temperature 1")
    assert difference.startswith("difference on the same prompts: ")
    names = [line.split()[0] for line in table if line.startswith("  ")]
    assert names[:8] == ["measure", "reward", "avg@4", "pass@1", "pass@4", "maj@1", "maj@4", "cut"]
    assert "avg@4 by level" in table

    found = json.loads(figures.read_text())
    new, old = found["models"]
    assert (found["data"], found["n_samples"], found["k"], found["by"]) == (str(rows), 4, [1, 4], "level")
    assert new["measures"]["pass@1"]["mean"] == new["measures"]["avg@4"]["mean"] == new["measures"]["reward"]["mean"]
    gain = new["measures"]["avg@4"]["mean"] - old["measures"]["avg@4"]["mean"]
    assert found["differences"]["avg@4"]["mean"] == pytest.approx(gain)
    assert {name: one["prompts"] for name, one in new["categories"].items()} == {"0": 3, "1": 3}
    assert [one["prompt_uid"] for one in new["per_prompt"]] == [one["prompt_uid"] for one in old["per_prompt"]]

    samples = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(samples) == 2 * 6 * 4
    assert {sample["model"] for sample in samples} == {str(trained / "export"), str(model_folder)}
    own = [sample["right"] for sample in samples if sample["model"] == str(model_folder)]
    assert sum(own) / 24 == pytest.approx(old["measures"]["avg@4"]["mean"])


def test_two_models_by_name_and_the_same_numbers_every_time(model_folder: Path, rows: Path, easy: str) -> None:
    words = ["eval", model_folder, model_folder, "--task", rows, "--reward", f"{easy}:even", "--samples", 2, "--n", 3]
    short = ["--max-new-tokens", 4, "--top-p", 0.9, "--seed", 5, "--correct-by", "even/short"]
    ended = call(*words, *short)
    assert ended.code == 0, ended.err
    first, second, difference = ended.out.splitlines()[:3]
    assert first == second
    assert difference.endswith("p = 1.0000: both are alike")
    assert "a sample is right when even/short ≥ 1" in ended.out
    assert "warning: no maj@k: nothing says how to find the answer" in ended.err
    assert call(*words, *short).out == ended.out


def test_what_is_refused(trained: Path, model_folder: Path, rows: Path, tmp_path: Path) -> None:
    refused(
        call("eval", trained, "--samples", 4, "--temperature", 0),
        "evaluator",
        "all 4 samples of a prompt would be the same",
    )
    refused(call("eval", trained, "--samples", 2, "--k", "1,4"), "each must lie between 1 and n_samples=2")
    refused(call("eval", trained, "--k", "1;4"), "expected whole numbers from 1 on, as 1,4,16")
    refused(call("eval", trained, model_folder, "--compare"), "--compare: is with the model that the run started from")
    refused(call("eval", trained, "--json", tmp_path / "no" / "x.json"), "there is no folder")
    refused(call("eval", model_folder, "--compare"), f"{model_folder} is not a run folder")
    last = ("--reward", "last_number_correct")
    refused(call("eval", model_folder, "--task", rows, *last, "--by", "levl"), "no column 'levl' (near: level)")
    refused(
        call("eval", model_folder, "--task", rows, *last, "--correct-by", "acc"),
        "evaluator.correct_by",
        "last_number_correct",
    )


def test_solutions_with_a_boxed_answer_and_tasks_of_reasoning_gym_need_no_further_words(
    model_folder: Path, tmp_path: Path
) -> None:
    folder, figures = tmp_path / "math", tmp_path / "figures.json"
    folder.mkdir()
    rows = [
        {"problem": f"{i} + 1?", "solution": f"So \\boxed{{{i + 1}}}.", "level": f"Level {i % 2}"} for i in range(4)
    ]
    (folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ["--n", 4, "--max-new-tokens", 4, "--json", figures]
    ended = call("eval", model_folder, "--task", folder, "--split", "dev", "--by", "level", *few)
    assert ended.code == 0 and "a sample is right when math_correct ≥ 1" in ended.out, ended.err
    found = json.loads(figures.read_text())
    assert [one["answer"] for one in found["models"][0]["per_prompt"]] == ["1", "2", "3", "4"]
    assert found["models"][0]["categories"].keys() == {"Level 0", "Level 1"}
    refused(call("eval", model_folder, "--task", folder, *few), "no file of split 'test'; the folder has dev.jsonl")

    pytest.importorskip("reasoning_gym")
    ended = call("eval", model_folder, "--task", "reasoning_gym/gcd", *few)
    assert ended.code == 0 and "a sample is right when reward ≥ 1" in ended.out, ended.err
    assert json.loads(figures.read_text())["models"][0]["prompts"] == 4
