"""The whole loop on fakes at its edges: a table as the policy, an engine that samples from it, the real algorithms."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import byte_tokenizer
from toy import CountedPrompts, FirstToken, TableEngine, TableModel

from partita.algo.compose import compose
from partita.algo.control import Controls
from partita.algo.explain import keys_of
from partita.algo.presets import PRESETS
from partita.engine.api import Sampling
from partita.engine.config import GenerationConfig
from partita.evals.evaluate import Evaluator
from partita.loop import train
from partita.records import Prompt
from partita.report.config import ReportConfig
from partita.report.reporter import Reporter, RunFacts
from partita.rollout.rollouts import Refill, Rollouts
from partita.rollout.summary import is_zero_variance
from partita.rollout.workflow import SingleTurn
from partita.run import CheckpointConfig, EvaluatorConfig, RunConfig
from partita.runner import EvalPlan, Run
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, OptimizerConfig
from partita.train.learner import Learner

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(7,))


class ToyRun(Run):
    """A run whose checkpoints are in memory: the table is no Hugging Face model that could be exported."""

    def publish(self, version: int) -> None:
        self.engine.publish(self.learner.model.named_parameters(), version)

    def save(self, step: int) -> None:
        self.saved = step

    def export(self, folder: Path) -> None:
        pass


def make(folder: Path, name: str = "drgrpo", steps: int = 12, evaluate: bool = False) -> ToyRun:
    keys = replace(keys_of(name), kl_loss_coef=0.0, kl_ctl=0.0)
    config = RunConfig(
        total_train_steps=steps,
        gconfig=GenerationConfig(n_samples=6, max_new_tokens=4),
        actor=ActorConfig(optimizer=OptimizerConfig(lr=0.5, gradient_clipping=None)),
        train_dataset=DatasetConfig(batch_size=4),
        evaluator=EvaluatorConfig(freq_steps=2 if evaluate else None),
        checkpoint=CheckpointConfig(freq_steps=5),
    )
    engine, model, scorer = TableEngine(), TableModel(), FirstToken()
    algorithm = compose(keys, n_samples=6, max_new_tokens=4)
    refill = None if keys.dynamic_sampling is None else Refill(lambda g: not is_zero_variance(g), 10, refill=False)
    prompts = tuple(Prompt(f"v{i}", (i,), "", {}) for i in range(3))
    return ToyRun(
        config, folder, byte_tokenizer(), Learner(model, config.actor, torch.float32, 1.0, steps, 1), engine,  # type: ignore[arg-type]
        Rollouts(engine, SingleTurn(), CountedPrompts(), scorer, SAMPLING, 6, 1, refill), algorithm, Controls(), steps,
        Reporter(ReportConfig(console="quiet"), RunFacts(folder, "toy", steps, {})),
        EvalPlan(Evaluator(engine, SingleTurn(), scorer, 1), prompts, replace(SAMPLING, temperature=1.0)),
    )  # fmt: skip


def run(made: ToyRun) -> list[dict]:
    made.reporter.start({})
    try:
        asyncio.run(train(made))
    finally:
        made.reporter.close()
    return [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_learns_the_toy_task(tmp_path: Path, name: str) -> None:
    lines = run(make(tmp_path, name, steps=20))
    rewards = [line["reward/mean"] for line in lines]
    assert sum(rewards[:3]) / 3 < 0.4
    assert sum(rewards[-3:]) / 3 > 0.8


def test_two_runs_of_one_seed_are_equal_but_for_the_clock(tmp_path: Path) -> None:
    def timeless(lines: list[dict]) -> list[dict]:
        return [{k: v for k, v in x.items() if not k.startswith(("time/", "tokens_per"))} for x in lines]

    assert timeless(run(make(tmp_path / "a"))) == timeless(run(make(tmp_path / "b")))


def test_evaluation_changes_nothing_in_training(tmp_path: Path) -> None:
    plain, watched = make(tmp_path / "a"), make(tmp_path / "b", evaluate=True)
    run(plain)
    lines = run(watched)
    assert torch.equal(plain.learner.model.table, watched.learner.model.table)  # type: ignore[arg-type]
    assert [("eval/reward" in line) for line in lines] == [step % 2 == 0 for step in range(1, 13)]
    assert {request.draw.stream for sent in watched.engine.rounds for request in sent} == {0, 1}


def test_every_step_writes_a_line_with_the_named_metrics_and_all_samples(tmp_path: Path) -> None:
    made = make(tmp_path, steps=3)
    lines = run(made)
    assert [line["step"] for line in lines] == [1, 2, 3]
    named = {
        "reward/mean", "reward/first", "response_length/mean", "kl_step/k3", "mismatch/k3", "entropy", "clip_fraction",
        "truncated", "zero_variance_groups", "effective_tokens", "tokens_per_second", "time/sample", "time/learn",
        "time/publish", "grad_norm", "loss", "lr",
    }  # fmt: skip
    assert named <= lines[0].keys()
    assert lines[0]["entropy"] == pytest.approx(2.0794415, abs=1e-6)
    assert lines[0]["mismatch/k3"] == pytest.approx(0.0, abs=1e-9)  # engine and learner hold the same table
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_000002.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert all(row["rows"][0]["versions"][-1] == 1 for row in rows)  # sampled from the weights of step 1
    assert all(len(row["advantages"]) == row["length"] for row in rows)
    assert (tmp_path / "reward.svg").exists()


def test_checkpoints_when_due_and_after_the_last_step(tmp_path: Path) -> None:
    made = make(tmp_path, steps=12)
    saved: list[int] = []
    made.save = saved.append  # type: ignore[method-assign]
    run(made)
    assert saved == [5, 10, 12]


def test_a_resumed_run_goes_on_exactly(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", steps=8)
    want = run(whole)
    first = make(tmp_path / "cut", steps=8)
    first.steps = 5
    run(first)
    second = make(tmp_path / "cut2", steps=8)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(5))))
    second.learner.model.load_state_dict(first.learner.model.state_dict())
    second.learner.optimizer.load_state_dict(first.learner.optimizer.state_dict())
    second.publish(5)
    got = run(second)
    assert [line["reward/mean"] for line in got] == [line["reward/mean"] for line in want[5:]]
    assert torch.equal(whole.learner.model.table, second.learner.model.table)  # type: ignore[arg-type]
