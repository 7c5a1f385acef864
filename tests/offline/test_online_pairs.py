"""Pairs of the policy's own answers: which are made, what is learned from them, and that a kill changes nothing."""

import json
from pathlib import Path

import pytest
from offline_runs import killed, lines_of, outcome, resumed
from running import call

from partita.config import ConfigError
from partita.offline.config import load_offline_config
from partita.offline.online import pairs_of
from partita.records import Group, Prompt, Row, Sample


def sample(reward: float | None, token: int, length: int = 2) -> Sample:
    ids = [1, *[token] * length]
    row = Row(ids, [False, *[True] * length], [0.0] * len(ids), [-1, *[0] * length])
    return Sample([row], "stop", "", reward, status="ok" if reward is not None else "reward_error")  # type: ignore[arg-type]


def group(serial: int, *samples: Sample) -> Group:
    return Group(serial, Prompt("p", (1,), "", {}), list(samples))


def test_the_first_of_the_best_and_the_first_of_the_worst_make_a_pair() -> None:
    found = pairs_of([group(7, sample(0.5, 2), sample(1.0, 3), sample(0.0, 4), sample(1.0, 5), sample(0.0, 6))])
    assert [item.uid for item in found] == ["7"]
    ((chosen,), (rejected,)) = found[0].samples
    assert (chosen.ids, rejected.ids) == ([1, 3, 3], [1, 4, 4])


def test_equal_rewards_and_answers_without_a_reward_make_none() -> None:
    assert pairs_of([group(1, sample(1.0, 2), sample(1.0, 3)), group(2, sample(None, 2), sample(1.0, 3))]) == []
    assert pairs_of([group(3, sample(None, 2), sample(None, 3)), group(4)]) == []
    ((chosen,), (rejected,)) = pairs_of([group(5, sample(None, 2), sample(0.1, 3), sample(0.2, 4))])[0].samples
    assert (chosen.ids, rejected.ids) == ([1, 4, 4], [1, 3, 3])


@pytest.fixture
def config(tmp_path: Path, model_folder: Path, vowels: str):
    """Writes a config file and names its run."""

    def written(name: str = "t", **changed: object) -> Path:
        tree = {
            "output_dir": str(tmp_path / "runs"), "experiment_name": "own", "trial_name": name, "total_train_steps": 6,
            "actor": {"path": str(model_folder), "dtype": "float32", "optimizer": {"lr": 0.01}},
            "ref": {"log_probs": "online"}, "checkpoint": {"freq_steps": 2},
            "online": {
                "prompts": {"path": "addition", "batch_size": 4},
                "gconfig": {"n_samples": 4, "max_new_tokens": 8}, "reward": {"functions": [vowels]},
            },
            "report": {"console": "plain"},
        }  # fmt: skip
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(tree | changed))
        return path

    return written


@pytest.mark.slow
def test_answers_earn_more_than_at_first(config, tmp_path: Path) -> None:
    ended = call("dpo", config(total_train_steps=40))
    assert ended.code == 0, ended.err
    lines = lines_of(tmp_path / "runs" / "own" / "t")
    rewards = [line["reward/mean"] for line in lines]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5
    assert lines[0]["pairs"] > 0
    assert all(line["items"] == line["pairs"] <= 4 for line in lines)
    assert "mean reward" in ended.out and (tmp_path / "runs" / "own" / "t" / "reward.svg").exists()
    assert not list((tmp_path / "runs" / "own" / "t" / "samples").glob("*"))


def test_a_step_without_a_pair_moves_nothing(config, tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("def one(response):\n    return 1.0\n")
    online = json.loads(config().read_text())["online"] | {"reward": {"functions": [f"{file}:one"]}}
    ended = call("dpo", config(online=online, total_train_steps=2))
    assert ended.code == 0, ended.err
    lines = lines_of(tmp_path / "runs" / "own" / "t")
    assert [(line["pairs"], line["dead_steps"]) for line in lines] == [(0, 1), (0, 1)]
    assert all("optimizer_steps" not in line for line in lines)


@pytest.mark.slow
def test_adapters_off_are_the_reference(config) -> None:
    given = json.loads(config().read_text())
    actor = given["actor"] | {"lora": {"rank": 4}}
    ended = call("dpo", config(actor=actor, ref={"log_probs": "adapter_off"}, total_train_steps=2))
    assert ended.code == 0, ended.err
    assert "adapter off" in ended.out


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"train_dataset": {"path": "rows.jsonl"}}, "pairs come from one of the two"),
        ({"loss": {"type": "kto"}}, "take a loss of pairs"),
        ({"ref": {"log_probs": "precomputed"}}, "online pairs are not known before"),
        ({"online": {"gconfig": {"n_samples": 1}}}, "a pair needs two answers"),
        (
            {"online": {"gconfig": {"n_samples": 2}, "rollout": {"policy": "starting"}}},
            "pairs are the newest policy's own",
        ),
    ],
)
def test_what_does_not_go_together_is_named(config, changed, told) -> None:
    with pytest.raises(ConfigError, match=told):
        load_offline_config("dpo", config(**changed))


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted(config, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert call("dpo", config("straight", total_train_steps=12)).code == 0
    want = outcome(root / "own" / "straight")
    for step in (3, 7):
        name = f"killed{step}"
        words = [f"output_dir={root}", "experiment_name=own", f"trial_name={name}", "total_train_steps=12"]
        folder = killed("dpo", config(name), words, step)
        resumed("dpo", folder)
        assert outcome(folder) == want
