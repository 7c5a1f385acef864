"""Runs that learn from samples of the policy they started from: on fakes at the edges, and by the command line."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import call, lines_of, settings
from test_loop import ToyRun, interrupted, made_of, make, run, timeless
from test_resume import folder_of, kill_after, outcome, train
from tiny_model import byte_tokenizer
from transformers import GraniteConfig, GraniteForCausalLM

from partita.train.config import OptimizerConfig

pytestmark = pytest.mark.slow  # whole runs, one after another

STEPS = 4


def rightness(made: ToyRun) -> float:
    """The mean reward of the policy of now."""
    return float(made.learner.model.table.detach().softmax(-1)[:4, 3].mean())  # type: ignore[union-attr]


def test_samples_of_the_starting_policy_teach_what_they_have_and_stay_as_they_are(tmp_path: Path) -> None:
    made = make(tmp_path / "rft", "rft", steps=20, evaluate=True)
    lines = run(made)
    assert rightness(made) > 0.4  # from an eighth; the rest of a right response is as random as it was sampled
    assert sum(line["reward/mean"] for line in lines) / 20 == pytest.approx(0.125, abs=0.06)
    assert made.engine.version == 0 and not made.engine.table.any()  # type: ignore[union-attr]
    still = make(tmp_path / "still", "rft", steps=20)
    still.learner.config = replace(still.learner.config, optimizer=OptimizerConfig(lr=0.0))
    still.phases = (replace(still.phase, config=replace(still.config, actor=still.learner.config)),)
    unmoved = run(still)
    assert rightness(still) == pytest.approx(0.125)
    assert [line["reward/mean"] for line in unmoved] == [line["reward/mean"] for line in lines]
    rows = [json.loads(line) for line in (tmp_path / "rft" / "samples" / "step_000012.jsonl").read_text().splitlines()]
    assert {version for row in rows for version in row["rows"][0]["versions"]} <= {-1, 0}


def test_an_evaluation_is_of_the_policy_of_now_whoever_samples(tmp_path: Path) -> None:
    made = make(tmp_path, "rft", steps=2, evaluate=True)
    with torch.no_grad():
        made.learner.model.table[:4, 3] = 100.0  # type: ignore[index]
    lines = run(made)
    assert lines[1]["eval/reward"] == 1.0
    assert lines[0]["reward/mean"] < 0.5 and lines[1]["reward/mean"] < 0.5


def test_a_resumed_run_goes_on_with_samples_of_the_starting_policy(tmp_path: Path) -> None:
    config = make(tmp_path / "unused", "rft", steps=6, evaluate=True).config
    whole = made_of(config, tmp_path / "whole")
    want = timeless(run(whole))
    got, second = interrupted(config, tmp_path, 4)
    assert timeless(got) == want
    assert torch.equal(whole.learner.model.table, second.learner.model.table)  # type: ignore[arg-type]


def test_how_old_a_sample_of_the_starting_policy_is(tmp_path: Path) -> None:
    made = make(tmp_path, "rft", steps=4)
    run(made)
    taken = asyncio.run(made.rollouts.take(2))
    batch = made.score(taken.groups, version=4).batch
    assert batch.train_version == 5 and batch.version_T is not None
    assert set(batch.version_T.tolist()) == {0}  # four versions before the newest


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str):
    """A run in which about half of the samples are right, with a checkpoint every two steps."""

    def override(name: str, **changed: object) -> list[str]:
        given = {
            "actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": name, "total_train_steps": STEPS,
            "actor__reward_threshold": 0.2, "actor__optimizer__lr": 0.03, "checkpoint__freq_steps": 2,
            "actor__ppo_n_minibatches": 2,
        }  # fmt: skip
        return settings(tmp_path, **(given | changed))

    return override


def finished(preset: str, words: list[str]) -> Path:
    ended = call("train", preset, *words)
    assert ended.code == 0, ended.err
    return folder_of(words)


def sampled(folder: Path) -> list[list[list[int]]]:
    """The tokens of every step's samples, all of them from weights of version 0."""
    steps = []
    for file in sorted((folder / "samples").iterdir()):
        rows = [json.loads(line)["rows"][0] for line in file.read_text().splitlines()]
        assert {version for row in rows for version in row["versions"]} <= {-1, 0}
        steps.append([row["ids"] for row in rows])
    return steps


def test_the_starting_policy_samples_whatever_is_learned(words) -> None:
    still = finished("rft", words("still", actor__optimizer__lr=0.0))
    moved = finished("rft", words("moved"))
    assert len(sampled(still)) == STEPS
    assert sampled(still) == sampled(moved)
    apart = [[line["mismatch/k3"] for line in lines_of(folder)] for folder in (still, moved)]
    assert max(apart[0]) < 1e-6 < 1e-3 < apart[1][-1]  # the sampler against the policy of now
    learned = [line["optimizer_steps"] for line in lines_of(moved)]
    assert max(learned) == 2


def test_the_newest_policy_samples_online(words) -> None:
    first, second = (
        finished("online_rft", words(name, actor__optimizer__lr=lr)) for name, lr in (("a", 0.0), ("b", 0.03))
    )
    one, other = (sorted((folder / "samples").iterdir()) for folder in (first, second))
    ids = [[json.loads(line)["rows"][0]["ids"] for line in file.read_text().splitlines()] for file in (*one, *other)]
    assert ids[0] == ids[STEPS] and ids[STEPS - 1] != ids[-1]


@pytest.mark.parametrize("changed", [{}, {"actor__lora": "{rank: 4, init: pissa}"}])
def test_a_resumed_run_samples_from_the_starting_policy_and_evaluates_the_newest(words, changed: dict) -> None:
    given = {"evaluator__freq_steps": 1, "evaluator__n_prompts": 4, "evaluator__temperature": 1.0} | changed
    whole = finished("rft", words("whole", **given))
    short = finished("rft", words("short", **given, total_train_steps=2))
    ended = call("train", "--resume", short, f"total_train_steps={STEPS}")
    assert ended.code == 0, ended.err
    assert outcome(short) == outcome(whole)
    assert sampled(whole) == sampled(finished("rft", words("unwatched", **changed)))
    still = finished("rft", words("still", **given, actor__optimizer__lr=0.0))
    held_out = [[line["eval/reward"] for line in lines_of(folder)] for folder in (still, whole)]
    assert len(set(held_out[0])) == 1 and len(set(held_out[1])) > 1


def test_a_run_in_which_nothing_is_right_learns_nothing(words) -> None:
    lines = lines_of(finished("rft", words("none", actor__reward_threshold=2.0, total_train_steps=2)))
    assert [(line["dead_steps"], line["advantage/abs"]) for line in lines] == [(2, 0.0)] * 2  # of two minibatches
    assert all("optimizer_steps" not in line for line in lines)


def test_modules_that_are_trained_do_not_sample(words, tmp_path: Path) -> None:
    """A family without fused layers decodes through the policy's own modules, where these sample the policy of now."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    scaled = GraniteConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, logits_scaling=2.0,
        residual_multiplier=0.7, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    GraniteForCausalLM(scaled).save_pretrained(tmp_path / "granite")
    tokenizer.save_pretrained(tmp_path / "granite")
    given = {"actor__path": tmp_path / "granite", "total_train_steps": 3}
    ended = call("train", "rft", *words("said", **given))
    assert "decoding through the family's modules" in ended.out
    still = finished("rft", words("still", actor__optimizer__lr=0.0, **given))
    assert sampled(still) == sampled(folder_of(words("said", **given)))


def test_the_run_says_whose_samples_it_learns_from(words) -> None:
    ended = call("train", "rft", *words("said", total_train_steps=1))
    assert "2 prompts x 4 samples of the starting policy, at most 8 new tokens" in ended.out
    assert "importance_sampling_level token" not in ended.out
    warned = call("train", "grpo", *words("warned", total_train_steps=1, rollout__policy="starting"))
    assert warned.code == 0, warned.err
    assert "actor.importance_sampling_level token takes them for samples of the policy before the step" in warned.out


@pytest.mark.parametrize("step", [1, 3])
def test_a_killed_run_samples_from_the_starting_policy(words, step: int) -> None:
    train("rft", *words("straight", total_train_steps=6))
    folder = kill_after(step, words(f"killed{step}", total_train_steps=6), "rft")
    train("--resume", folder)
    assert outcome(folder) == outcome(folder_of(words("straight")))
