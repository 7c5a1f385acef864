"""`partita replay` on runs of the real program: every step comes out again, whatever happened to the run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from replaying import rewrite, tensors_of
from running import Ended, call, settings

from partita.algo.presets import PRESETS, keys_of

TWICE = {"actor__ppo_epochs": 2, "actor__ppo_n_minibatches": 2, "actor__optimizer__lr": 0.003}


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str):
    """Overrides of a small run in `tmp_path / "runs"`, some of them changed."""

    def make(**changed: object) -> list[str]:
        given = {"actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": "t"} | TWICE
        return settings(tmp_path / "runs", **(given | changed))

    return make


def trained_as(name: str, words: list[str]) -> Path:
    ended = call("train", name, *words)
    assert ended.code == 0, ended.err
    given = dict(word.split("=", 1) for word in words)
    return Path(given["output_dir"]) / given["experiment_name"] / given["trial_name"]


def same(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert "DIFFERS" not in ended.out
    assert "same" in ended.out


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_step_of_every_algorithm_comes_out_again(words, name: str) -> None:
    keys, graded = keys_of(name), dict[str, object]()  # no vowels are a reward of 1
    if keys.dynamic_sampling is not None:
        graded["actor__dynamic_sampling__filter"] = "mixed_rewards"
    if keys.reward_threshold is not None:
        graded["actor__reward_threshold"] = 0.2
    folder, outcomes = trained_as(name, words(total_train_steps=3, train_dataset__batch_size=4, **graded)), list[str]()
    for step in (1, 2, 3):
        same(call("replay", folder, "--step", step, "--json", folder / "found.json"))
        told = json.loads((folder / "found.json").read_text())
        outcomes += [one["outcome"] for one in told["optimizer_steps"]]
        assert all(one["difference"] == 0 for one in told["credit"])
        assert all(one["difference"] <= 1e-6 for one in told["optimizer_steps"])
    assert outcomes.count("stepped") >= 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype, budget", [("bfloat16", 4096), ("float32", 60)])
def test_micro_batches_and_autocast_change_nothing(words, dtype: str, budget: int) -> None:
    changes = {"actor__dtype": dtype, "actor__mb_spec__max_tokens_per_mb": budget, "train_dataset__batch_size": 4}
    folder = trained_as("areal_grpo", words(**changes))
    same(call("replay", folder, "--step", 1, "--algorithm", "grpo", "--algorithm", "dapo"))


def batches(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "batches").iterdir()}


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_writes_the_same_files(tmp_path: Path, words) -> None:
    given = words(total_train_steps=4, checkpoint__freq_steps=2, report__keep_batches=2)
    whole = trained_as("sapo_selfadaptive", given)
    assert sorted(batches(whole)) == ["step_000003.safetensors", "step_000004.safetensors"]
    cut = shutil.copytree(whole, tmp_path / "cut")  # as a kill in step 4 leaves it
    shutil.rmtree(cut / "checkpoints/step_000004")
    shutil.rmtree(cut / "export")
    (cut / "batches/step_000004.safetensors").rename(cut / "batches/step_000004.safetensors.partial")
    (cut / "batches/step_000003.safetensors").write_bytes(b"of a step that is done again")
    ended = call("train", "--resume", cut)
    assert ended.code == 0, ended.err
    written = batches(cut)
    written.pop("step_000004.safetensors.partial", None)
    assert written == batches(whole)
    same(call("replay", cut, "--step", 4))


def test_a_step_is_shown_beside_other_algorithms(trained: Path) -> None:
    ended = call(
        "replay", trained, "--step", 2, "--algorithm", "dapo", "--algorithm", "ppo", "--algorithm", "skywork_or1",
        "--set", "actor.overlong_reward_penalty=false", "--sample", 5,
    )  # fmt: skip
    same(ended)
    assert f"Step 2 of {trained}, credit again" in ended.out
    rows = {line.split("  ")[1].strip(): line for line in ended.out.splitlines() if line.startswith("  ")}
    assert "100.0%" in rows["trained (grpo)"]
    other = "with actor.overlong_reward_penalty=false"
    assert f"ppo {other}: not computed, it needs" in ended.out
    assert "the values of a critic, and this run has none" in ended.out
    assert f"skywork_or1 {other}: not" not in ended.out  # one optimizer step: its entropies are those of before it
    assert "trained (grpo): c and cosine leave out the entropy bonus" in ended.out
    assert "Sample 5: group " in ended.out
    assert "c [dapo]" in ended.out


def test_markdown_and_json_hold_what_is_shown(tmp_path: Path, trained: Path) -> None:
    file = tmp_path / "found.json"
    asked = ("replay", trained, "--step", 3, "--set", "actor.eps_clip=0.1", "--exact", "--sample", 0)
    ended = call(*asked, "--markdown", "--json", file)
    same(ended)
    tables = ended.out.split("\n## ")
    assert len(tables) >= 5
    assert all("| ---" in table for table in tables)
    found = json.loads(file.read_text())
    assert found["same"] is True
    assert [one["name"] for one in found["algorithms"]] == ["trained (grpo)", "grpo with actor.eps_clip=0.1"]
    assert found["algorithms"][1]["cosine"] == pytest.approx(1.0)
    assert found["exact"]["weights"].endswith("checkpoints/step_000002")
    sample = found["sample"]
    row = json.loads((trained / "samples/step_000003.jsonl").read_text().splitlines()[0])
    assert [row["prompt_uid"] is not None, sample["group"], sample["reward"]] == [True, row["group"], row["reward"]]
    assert sample["ids"] == [i for i, own in zip(row["rows"][0]["ids"], row["rows"][0]["trained"], strict=True) if own]
    assert len(sample["texts"]) == len(sample["ids"])
    (step,) = sample["optimizer_steps"]
    assert step["algorithms"]["trained (grpo)"]["advantage"] == row["advantages"]
    assert step["algorithms"]["trained (grpo)"]["ratio"] == [1.0] * len(sample["ids"])
    lost = call(*asked[:4], "--json", tmp_path / "no/where.json")
    assert lost.code == 2 and "where.json cannot be written: No such file" in lost.err


def test_tokens_are_shown_by_their_ids_where_there_is_no_tokenizer(tmp_path: Path, trained: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "export")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("  path: /", "  path: /gone/"))
    ended = call("replay", run, "--step", 1, "--sample", 0)
    same(ended)
    table = ended.out[ended.out.index("Sample 0") :].splitlines()
    assert table[1].split() == ["token", "id", "A", "ρ", "c"]


def test_a_changed_number_ends_with_code_1_and_says_which(tmp_path: Path, trained: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    file = run / "batches/step_000002.safetensors"
    advantages_S = tensors_of(file)["batch/advantages_T@S"]
    rewrite(file, {"batch/advantages_T@S": advantages_S * torch.tensor(1.001)})
    ended = call("replay", run, "--step", 2)
    assert ended.code == 1
    assert "DIFFERS" in ended.out
    assert (
        f"error: step 2 of {run} does NOT come out again as it was trained:\n  advantage differs by 0.00" in ended.err
    )
    assert "Traceback" not in ended.err
    same(call("replay", run, "--step", 1))


def test_a_step_without_numbers_is_named(tmp_path: Path, trained: Path, words) -> None:
    def refused(run: Path, *asked: object) -> str:
        ended = call("replay", run, *asked)
        assert ended.code == 2 and ended.err.startswith("error: ") and "Traceback" not in ended.err
        return ended.err

    assert f"{trained} has no numbers of step 4; it has those of: 1 to 3" in refused(trained, "--step", 4)
    assert f"{tmp_path} is not a run folder: it has no config.yaml" in refused(tmp_path, "--step", 1)
    assert "--sample 12: step 1 has samples 0 to 11" in refused(trained, "--step", 1, "--sample", 12)
    assert "'grop' is not a preset. Near: grpo" in refused(trained, "--step", 1, "--algorithm", "grop")
    none = trained_as("drgrpo", words(report__keep_batches=0))
    assert not (none / "batches").exists()
    assert "it has those of: none (report.keep_batches says how many stay)" in refused(none, "--step", 1)
