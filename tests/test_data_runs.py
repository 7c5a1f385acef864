"""Runs on data of all kinds: several sources, streaming, rows held out, pass rates that the next run chooses by."""

import json
from pathlib import Path

import pytest
from running import call, lines_of, settings

from partita.tasks.rates import FILE, PassRates


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    lines = ({"question": f"{i} + {i}?", "answer": str(2 * i), "level": i % 3} for i in range(24))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


@pytest.fixture
def train(tmp_path, model_folder, vowels):
    def train(*words, **changed):
        given = {"actor__path": model_folder, "reward__functions": f"[{vowels}]", "train_dataset__size": None} | changed
        ended = call("train", "grpo", *settings(tmp_path / "runs", **given), *words)
        assert ended.code == 0, ended.err
        return tmp_path / "runs" / "tiny"

    return train


def mix(rows: Path) -> dict[str, object]:
    return {
        "train_dataset__path": "null", "train_dataset__batch_size": 4, "total_train_steps": 2, "checkpoint__freq_steps": 1,
        "train_dataset__mix": f"{{own: {{path: {rows}, weight: 3}}, sums: {{path: addition, size: 10}}}}",
    }  # fmt: skip


@pytest.mark.slow
def test_several_sources_are_drawn_by_their_weights_and_told_apart(train, rows):
    folder = train(trial_name="a", **mix(rows)) / "a"
    for line in lines_of(folder):
        assert (line["mix/own/share"], line["mix/sums/share"]) == (0.75, 0.25)
        assert 0 <= line["mix/own/reward"] <= 1
    counted = PassRates.read([folder / FILE])
    assert len(counted.known) == 8 and {tries for tries, _ in counted.known.values()} == {4}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mix", "streaming", "streamed mix", "curriculum"])
def test_a_resumed_run_draws_what_it_would_have_drawn(train, rows, tmp_path, kind):
    keys = {
        "mix": mix(rows),
        "streaming": {"train_dataset__path": rows, "train_dataset__streaming": "true", "train_dataset__buffer_rows": 7},
        "streamed mix": {
            "train_dataset__path": "null", "train_dataset__streaming": "true", "train_dataset__buffer_rows": 7,
            "train_dataset__mix": f"{{own: {{path: {rows}, weight: 3}}, again: {{path: {rows}, where: {{level: 1}}}}}}",
        },
        "curriculum": {"train_dataset__path": rows, "train_dataset__curriculum": "{by: level}"},
    }[kind]  # fmt: skip
    keys = keys | {"checkpoint__freq_steps": 1, "checkpoint__keep_last": 9}
    whole = train(trial_name="whole", **(keys | {"total_train_steps": 4})) / "whole"
    half = train(trial_name="half", **(keys | {"total_train_steps": 2})) / "half"
    ended = call("train", "--resume", half, "total_train_steps=4")
    assert ended.code == 0, ended.err
    told, again = (
        [
            {name: value for name, value in line.items() if name.startswith(("reward", "response"))}
            for line in lines_of(folder)
        ]
        for folder in (whole, half)
    )
    assert told == again
    assert (whole / FILE).read_text() == (half / FILE).read_text()


@pytest.mark.slow
def test_pass_rates_of_one_run_choose_the_prompts_of_the_next(train, rows):
    folder = train(trial_name="first", train_dataset__path=rows, train_dataset__batch_size=24) / "first"
    counted = folder / FILE
    assert len(counted.read_text().splitlines()) == 24
    one = json.loads(counted.read_text().splitlines()[0])
    counted.write_text(json.dumps({**one, "tries": 8, "right": 4}) + "\n")
    second = train(
        trial_name="second", train_dataset__path=rows, train_dataset__batch_size=1,
        train_dataset__pass_rates=f"{{files: [{counted}], min: 0.1, unseen: skip}}",
    )  # fmt: skip
    assert json.loads((second / "second" / FILE).read_text().splitlines()[0])["prompt"] == one["prompt"]


@pytest.mark.slow
def test_rows_that_are_held_out_are_evaluated_and_never_trained_on(train, rows):
    keys = {"train_dataset__path": rows, "train_dataset__held_out": 0.3, "train_dataset__batch_size": 24}
    folder = train(trial_name="a", evaluator__freq_steps=1, **keys) / "a"
    [line] = lines_of(folder)
    trained = len((folder / FILE).read_text().splitlines())
    assert 0 < trained < 24 and any(name.startswith("eval/") for name in line)


@pytest.mark.slow
def test_rows_held_out_of_a_stream_are_evaluated_and_rows_left_out_are_counted(train, rows):
    rows.write_text(rows.read_text() + "no row\n")
    keys = {"train_dataset__path": rows, "train_dataset__held_out": 0.3, "train_dataset__streaming": "true"}
    keys |= {"train_dataset__buffer_rows": 10, "train_dataset__on_bad_row": "skip", "train_dataset__batch_size": 24}
    [line] = lines_of(train(trial_name="a", evaluator__freq_steps=1, **keys) / "a")
    assert any(name.startswith("eval/") for name in line)
    assert line["prompts_left_out"] == 1


@pytest.mark.slow
def test_keys_that_need_others_are_refused(rows, model_folder):
    for words, told in [
        ((f"train_dataset.path={rows}", "train_dataset.streaming=true", "total_train_steps=null", "total_train_epochs=1"),
         "train_dataset.streaming: nobody knows how long an epoch is; set total_train_steps"),
        ((f"train_dataset.path={rows}", "train_dataset.held_out=0.1", f"valid_dataset.path={rows}"),
         "valid_dataset is set and train_dataset.held_out=0.1: drop one of the two"),
        ((f"train_dataset.path={rows}", f"valid_dataset.path={rows}", "valid_dataset.held_out=0.1"),
         "valid_dataset.held_out=0.1: all of its rows are held out; leave it 0"),
    ]:  # fmt: skip
        ended = call("train", "grpo", f"actor.path={model_folder}", *words)
        assert ended.code == 2 and told in ended.err, ended.err
