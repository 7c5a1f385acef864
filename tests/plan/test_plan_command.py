"""`partita plan` as a user meets it: tables, one JSON document, and refusals that can be followed."""

import json
import re
from pathlib import Path

import pytest
from running import Ended, call, settings

from partita.plan.memory import ALWAYS


@pytest.fixture
def words(tmp_path: Path, model_folder: Path) -> list[str]:
    """Overrides of a small run on the tiny model."""
    return settings(tmp_path, actor__path=model_folder, total_train_steps=10)


def document(ended: Ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_tables(words: list[str]):
    ended = call("plan", "grpo", *words, "--no-calibrate")
    assert ended.code == 0, ended.err
    rows = {line.split("  ")[1]: line for line in ended.out.splitlines() if line.startswith("  ")}
    assert rows["samples"].endswith("8 (4 each)")
    assert "64, at most 64" in rows["generated tokens"]
    assert "reference: weights" in rows and "policy: two moments" in rows
    assert re.search(r"^memory: 0\.\d+ GiB on a machine at the peak, of .*: fits$", ended.out, re.M)
    assert re.search(r"^time: .* for 10 train steps", ended.out, re.M)


def test_one_document(words: list[str]):
    found = document(call("plan", "grpo", *words, "--no-calibrate", "--json", "--response", "6"))
    [stage] = found["stages"]
    assert (found["fits"], found["steps"], stage["lengths"]["response"]) == (True, 10, 6.0)
    assert stage["batch"]["expected"]["generated"] == 8 * 6
    assert stage["most"]["most"]["generated"] == 8 * 8
    [process] = stage["processes"]
    at = {moment: sum(part["bytes"] for part in process["parts"] if moment in part["moments"]) for moment in ALWAYS}
    assert max(at.values()) == at[process["peak_at"]] == process["peak_bytes"] == found["need_bytes"]
    assert found["expected_bytes"] < found["need_bytes"]
    seconds = stage["seconds"]
    assert seconds.pop("step") == pytest.approx(sum(seconds.values()))
    assert found["seconds"] == pytest.approx(10 * sum(seconds.values()))


@pytest.mark.slow
def test_ten_seconds_of_the_real_work(words: list[str]):
    found = document(call("plan", "ppo", *words, "--json"))
    speed, [stage] = found["speed"], found["stages"]
    assert speed["source"].startswith("measured here")
    assert speed["learn"] > speed["forward"] > 0
    assert 0 <= speed["stop"] < 1
    assert 1 <= stage["lengths"]["response"] <= 8
    assert stage["seconds"]["critic"] > 0
    assert stage["seconds"]["score"] > 0


@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_what_it_says_helps(words: list[str]):
    big = [*words, "gconfig.max_new_tokens=200", "train_dataset.batch_size=40", "actor.mb_spec.max_tokens_per_mb=65536"]
    big.append("gconfig.n_samples=16")
    for _ in range(2):  # this process keeps the memory that the first plan took, and a plan counts what a process has
        plenty = document(call("plan", "grpo", *big, "--no-calibrate", "--json"))["need_bytes"] / 2**30
    ended = call("plan", "grpo", *big, "--no-calibrate", "--memory", f"{plenty - 0.1:.4f}")
    assert ended.code == 2
    assert "memory of learner" in ended.out  # what takes so much is shown all the same
    assert "does not fit" in ended.out
    told = re.search(r"--memory has \S+ GiB\. Change to fit: (.*)", ended.err)
    assert told is not None, ended.err
    ways = told[1].split("; or ")
    for way in ways:
        keys = way.rpartition(" (")[0].split(" ")
        again = document(call("plan", "grpo", *big, *keys, "--no-calibrate", "--json"))
        assert again["need_bytes"] / 2**30 < plenty - 0.07, keys  # this process itself has grown a little meanwhile


def test_nothing_helps_a_model_without_room(words: list[str]):
    ended = call("plan", "grpo", *words, "--no-calibrate", "--memory", "0.01")
    assert ended.code == 2
    assert "no change of memory keys is enough" in ended.err
    assert "Traceback" not in ended.err


def test_stages_have_a_column_each(words: list[str], tmp_path: Path):
    file = tmp_path / "staged.yaml"
    file.write_text(
        "algorithm: grpo\nactor: {kl_loss_coef: 0.0}\nstages:\n"
        "  - {until: {step: 4}, set: {gconfig.max_new_tokens: 4}}\n"
        "  - {set: {gconfig.n_samples: 2, train_dataset.batch_size: 8}}\n"
    )
    ended = call("plan", file, *words, "--no-calibrate")
    assert ended.code == 0, ended.err
    assert re.search(r"samples +8 \(4 each\) +16 \(2 each\)", ended.out)
    found = document(call("plan", file, *words, "--no-calibrate", "--json"))
    first, second = (one["seconds"]["step"] for one in found["stages"])
    assert found["seconds"] == pytest.approx(4 * first + 6 * second)
    assert found["stages"][0]["batch"]["expected"]["generated"] == 8 * 4


def test_learners_and_servers_have_tables_of_their_own(words: list[str]):
    more = ["allocation.learners=2", "allocation.servers=2", "scheduler.type=ray", "cluster.nodes=2"]
    found = document(call("plan", "grpo", *words, *more, "--no-calibrate", "--json"))
    [stage] = found["stages"]
    names = {(one["name"], one["count"]): one["peak_bytes"] for one in stage["processes"]}
    assert set(names) == {("learner 0", 1), ("each other learner", 1), ("each server", 2)}
    assert found["need_bytes"] == max(names["learner 0", 1], names["each other learner", 1]) + names["each server", 2]
    assert stage["batch"]["actor"]["per_rank"] * 2 >= stage["batch"]["actor"]["micro_batches"]
    assert stage["seconds"]["communicate"] > 0
    parts = {part["name"] for one in stage["processes"] if one["name"] == "each server" for part in one["parts"]}
    assert "engine: keys and values" in parts and "policy: two moments" not in parts


def test_mistakes_are_those_of_a_run(words: list[str], tmp_path: Path):
    (tmp_path / "sft.yaml").write_text("kind: sft\n")
    ended = call("plan", tmp_path / "sft.yaml")
    assert ended.code == 2 and "a config of `partita sft`; this plans runs of `partita train`" in ended.err
    ended = call("plan", "grpo", *words, "actor.path=./no/model")
    assert ended.code == 2 and "./no/model: no such folder" in ended.err
