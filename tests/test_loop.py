"""The whole loop on fakes at its edges: a table as the policy, an engine that samples from it, the real algorithms."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from tiny_model import byte_tokenizer
from toy import CountedPrompts, FirstToken, TableCritic, TableEngine, TableModel

from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    ClipRuleConfig,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)
from partita.algo.presets import PRESETS, keys_of, preset
from partita.engine.api import Sampling
from partita.engine.config import GenerationConfig, RolloutConfig
from partita.engine.local import EngineStats
from partita.evals.evaluate import Evaluator
from partita.evals.plan import EvalPlan
from partita.loop import train
from partita.records import Prompt
from partita.report.config import ReportConfig
from partita.report.reporter import Reporter, RunFacts
from partita.rollout.episodes import RolloutError
from partita.rollout.rollouts import Refill, Rollouts
from partita.rollout.summary import is_zero_variance
from partita.rollout.workflow import SingleTurn
from partita.run import REFERENCE, CheckpointConfig, EvaluatorConfig, RunConfig, composed
from partita.runner import Phase, Run
from partita.stages import StageConfig, UntilConfig
from partita.tasks.reward import Scored
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, CriticConfig, OptimizerConfig
from partita.train.critic import Critic
from partita.train.learner import Learner
from partita.train.team import Team

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(7,))


class ToyRun(Run):
    """A run whose checkpoints are in memory: the table is no Hugging Face model that could be exported."""

    def policy_weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self.learner.model.named_parameters()

    def save(self, step: int) -> None:
        self.saved = step

    def export(self, folder: Path) -> None:
        pass


def make(folder: Path, name: str = "drgrpo", steps: int = 12, evaluate: bool = False, **actor: object) -> ToyRun:
    """A toy run of a preset with some keys changed, and no reference policy."""
    keys = replace(keys_of(name), kl_loss_coef=0.0, kl_ctl=0.0)
    given = {item.name: getattr(keys, item.name) for item in fields(AlgorithmKeys)} | actor
    optimizer = OptimizerConfig(lr=0.5, gradient_clipping=None)
    config = RunConfig(
        total_train_steps=steps,
        gconfig=GenerationConfig(n_samples=6, max_new_tokens=4),
        rollout=RolloutConfig(policy=preset(name).get("rollout.policy", "newest")),
        actor=ActorConfig(**({"optimizer": optimizer} | given)),  # type: ignore[arg-type]
        train_dataset=DatasetConfig(batch_size=4),
        evaluator=EvaluatorConfig(freq_steps=2 if evaluate else None),
        checkpoint=CheckpointConfig(freq_steps=5),
    )
    return made_of(config, folder)


def made_of(config: RunConfig, folder: Path, reference: TableModel | None = None) -> ToyRun:
    """The toy run of any config."""
    engine, model, scorer, steps = TableEngine(), TableModel(), FirstToken(), config.total_train_steps or 0
    prompts = tuple(Prompt(f"v{i}", (i,), "", {}) for i in range(3))
    stages, critic = composed(config, (1.0,)).stages, None
    if any("values" in one.algorithm.needs for one in stages):
        section = config.critic or CriticConfig(optimizer=OptimizerConfig(lr=0.1, gradient_clipping=None))
        critic = Critic(TableCritic(), section, torch.float32, steps, 1, 3)  # type: ignore[arg-type]
    filtered = Refill(lambda group: not is_zero_variance(group), 10, refill=False)
    return ToyRun(
        config, folder, Team(Learner(model, config.actor, torch.float32, 1.0, steps, 1, reference), critic, byte_tokenizer()),  # type: ignore[arg-type]
        engine,
        Rollouts(engine, SingleTurn(), CountedPrompts(), scorer, SAMPLING, 6, 1),
        tuple(
            Phase(one.config, one.algorithm, filtered if one.config.actor.dynamic_sampling else None)
            for one in stages
        ),
        steps, Reporter(ReportConfig(console="quiet"), RunFacts(folder, "toy", steps, {})),
        EvalPlan(Evaluator(engine, SingleTurn(), scorer, 1), prompts, replace(SAMPLING, temperature=1.0)),
        part_names=("first",), starting={"table": TableModel().table.detach()},
    )  # fmt: skip


def resumed(first: ToyRun, step: int, folder: Path) -> ToyRun:
    """A new run that goes on from where `first` stands, through what a checkpoint holds."""
    second = made_of(first.config, folder, first.learner.reference)  # type: ignore[arg-type]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(step))))
    second.learner.model.load_state_dict(first.learner.model.state_dict())
    second.learner.stepper.optimizer.load_state_dict(first.learner.stepper.optimizer.state_dict())
    ours, theirs = first.team.critic, second.team.critic
    if ours is not None and theirs is not None:
        theirs.model.load_state_dict(ours.model.state_dict())
        theirs.stepper.optimizer.load_state_dict(ours.stepper.optimizer.state_dict())
    second.publish(step)
    return second


def run(made: ToyRun) -> list[dict]:
    made.reporter.start({})
    try:
        asyncio.run(train(made))
    finally:
        made.reporter.close()
    return [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]


QUICK = ("grpo", "gspo", "ppo", "online_rft")  # one of each shape of composition
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in PRESETS
    if name != "rft"  # whose samples stay as they are
]


@pytest.mark.parametrize("name", EVERY)
def test_every_preset_learns_the_toy_task(tmp_path: Path, name: str) -> None:
    lines = run(make(tmp_path, name, steps=20))
    rewards = [line["reward/mean"] for line in lines]
    assert sum(rewards[:3]) / 3 < 0.4
    # where nothing is pushed down, prompt 3 says what happened to follow a right first token, which is a 3 too
    assert sum(rewards[-3:]) / 3 > (0.7 if name == "online_rft" else 0.8)


@pytest.mark.parametrize(
    ("actor", "plateau", "skips"),
    [
        ({}, None, True),
        ({"skip_dead_samples": False}, None, False),
        ({"eps_clip_rule": ClipRuleConfig(type="clip_fraction", min=0.1, max=0.3)}, None, False),
        ({"eps_clip_rule": ClipRuleConfig(type="iqr", min=0.1, max=0.3)}, None, True),  # it reads advantages
        ({}, "entropy", False),
        ({}, "reward/mean", True),
    ],
)
def test_no_sample_is_left_out_where_something_reads_what_the_loss_reports(tmp_path, actor, plateau, skips) -> None:
    made = make(tmp_path, steps=3, **actor)
    until = None if plateau is None else UntilConfig(plateau=plateau)
    stages = [] if until is None else [StageConfig(until, {}), StageConfig(None, {})]
    lines = run(made_of(replace(made.config, stages=stages), tmp_path))
    live = [line for line in lines if line.get("optimizer_steps")]
    assert live and any(line["skipped_samples"] > 0 for line in live) is skips


class TimedEngine(TableEngine):
    """Says that its model took a millisecond for each submitted request, and one for each round."""

    def stats(self) -> EngineStats:
        asked = sum(map(len, self.rounds))
        return EngineStats(forward_seconds=(asked + len(self.rounds)) / 1000)


def test_what_is_neither_model_nor_optimizer_is_overhead(tmp_path: Path) -> None:
    made = make(tmp_path, steps=2)
    made.rollouts.engine = made.engine = TimedEngine()
    for line in run(made):
        assert line["time/generate"] == pytest.approx(0.025)  # 4 prompts, 6 samples, one round
        work = line["time/generate"] + line["time/forward_backward"] + line["time/optimizer"]
        assert line["time/overhead_share"] == pytest.approx(1 - work / line["time/step"])
        assert 0 < line["time/forward_backward"] < line["time/learn"]


def test_two_runs_of_one_seed_are_equal_but_for_the_clock(tmp_path: Path) -> None:
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


def timeless(lines: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "tokens_per"))} for line in lines]


def interrupted(config: RunConfig, folder: Path, step: int) -> tuple[list[dict], ToyRun]:
    """The metrics of a run that is stopped after `step` steps and goes on in another one."""
    first = made_of(config, folder / "cut", _reference(config))
    first.steps = step
    lines = run(first)
    second = resumed(first, step, folder / "on")
    return lines + run(second), second


def _reference(config: RunConfig) -> TableModel | None:
    wanted = any(stage.algorithm.needs & REFERENCE for stage in composed(config).stages)
    return TableModel() if wanted else None


# every kind of rule, and what it moves, in each of them by keys alone
RULES = {
    "none": {},
    "ema, adv_norm": {"adv_norm": NormConfig(mean_level="ema", std_level="ema", eps=1e-6)},
    "ema, reward_norm": {
        "adv_norm": None,
        "reward_norm": NormConfig(
            mean_level="ema", std_level="ema", ema=EmaConfig(order="use_then_update", init="bias_corrected")
        ),
    },
    "iqr": {"eps_clip_rule": ClipRuleConfig(type="iqr"), "ppo_n_minibatches": 2},
    "clip_fraction": {"eps_clip_rule": ClipRuleConfig(type="clip_fraction"), "ppo_n_minibatches": 2},
    "ziegler": {"kl_ctl": 0.05, "kl_controller": KlControllerConfig(type="ziegler", target=0.1, horizon=100)},
    "penalty": {
        "kl_penalty_coef": 0.1,
        "kl_penalty_estimator": "full",
        "kl_controller": KlControllerConfig(type="penalty", target=0.01),
        "ppo_epochs": 2,
    },
    "trend": {
        "kl_loss_coef": 0.1,
        "kl_loss_estimator": "full",
        "kl_controller": KlControllerConfig(type="trend", window=3),
    },
    "entropy, same step": {"adaptive_entropy": AdaptiveEntropyConfig(target=1.9, delta=0.01)},
    "entropy, previous step": {"adaptive_entropy": AdaptiveEntropyConfig(target=1.9, delta=0.01, gate="previous_step")},
    "several": {
        "adv_norm": NormConfig(mean_level="ema", std_level="ema", eps=1e-6),
        "eps_clip_rule": ClipRuleConfig(type="iqr"),
        "kl_loss_coef": 0.1,
        "kl_controller": KlControllerConfig(type="ziegler", target=0.1, horizon=100),
        "adaptive_entropy": AdaptiveEntropyConfig(target=1.9, delta=0.01),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_resumed_run_goes_on_exactly_with_every_kind_of_rule(tmp_path: Path, name: str) -> None:
    config = make(tmp_path / "unused", steps=6, **RULES[name]).config
    whole = made_of(config, tmp_path / "whole", _reference(config))
    want = timeless(run(whole))
    got, second = interrupted(config, tmp_path, 4)
    assert timeless(got) == want
    assert torch.equal(whole.learner.model.table, second.learner.model.table)  # type: ignore[arg-type]
    logged = [{k: v for k, v in line.items() if k.startswith("control/")} for line in want]
    assert bool(logged[0]) == (name != "none")
    assert name == "none" or len({tuple(line.items()) for line in logged}) > 1, "nothing moved"


@pytest.mark.parametrize("name", ["ema, reward_norm", "clip_fraction", "trend", "several"])
def test_steps_without_any_group_move_no_rule(tmp_path: Path, name: str) -> None:
    config = make(tmp_path / "unused", "dapo", steps=3, **RULES[name]).config
    first = made_of(config, tmp_path / "a", _reference(config))
    first.steps = 1
    run(first)
    second = resumed(first, 1, tmp_path / "b")
    with torch.no_grad():
        second.learner.model.table[:4, 1] = 100.0  # type: ignore[index]
    second.publish(1)  # a certain policy: the samples of a group are all the same
    before = second.controls.state_dict()
    lines = run(second)
    assert [(line["groups/dropped"], line["dead_steps"]) for line in lines] == [(4, 1)] * 2
    assert second.controls.state_dict() == before


def test_a_run_of_one_epoch_ends_with_its_prompts(tmp_path: Path) -> None:
    made = make(tmp_path, steps=5)
    schedule = OptimizerConfig(lr=0.3, lr_scheduler_type="linear", gradient_clipping=None)
    made.phases = (
        replace(made.phase, config=replace(made.config, actor=replace(made.config.actor, optimizer=schedule))),
    )
    made.learner.config = made.phase.config.actor
    made.rollouts.prompt_limit = 20
    # every step needs two rounds of 4 prompts; the third finds only one
    made.rollouts.refill = Refill(lambda group: group.serial // 4 in (1, 3, 4), 10, refill=True)
    saved: list[int] = []
    made.save = saved.append  # type: ignore[method-assign]
    lines = run(made)
    assert [line["prompts_used"] for line in lines] == [8, 16, 20]
    assert [line["lr"] for line in lines] == pytest.approx([0.3, 0.2, 0.1])
    assert saved == [3]


def test_a_resumed_epoch_ends_where_it_would_have(tmp_path: Path) -> None:
    first = make(tmp_path / "a", steps=5)
    first.rollouts.prompt_limit, first.steps = 14, 2
    run(first)
    second = resumed(first, 2, tmp_path / "b")
    second.rollouts.prompt_limit = 14
    assert [line["prompts_used"] for line in run(second)] == [12, 14]
    assert list(second.remaining()) == []


PARTS = {
    "adv_norm": None,
    "reward_norm": NormConfig(mean_level="group", std_level="group"),
    "reward_norm_per_part": True,
}


def test_a_single_reward_function_is_a_part_of_its_own(tmp_path: Path) -> None:
    per_part = run(make(tmp_path / "a", steps=4, **PARTS))
    whole = run(make(tmp_path / "b", steps=4, **(PARTS | {"reward_norm_per_part": False})))
    assert timeless(per_part) == timeless(whole)


class Fussy(FirstToken):
    """Two functions, one of them with numbers of its own, and a workflow's addition."""

    async def score(self, prompt, text, ids, stop_reason) -> Scored:
        value, short = float(ids[0] == 3), -float(len(ids))
        parts = {"first": value, "first/odd": 7.0, "brief": short, "turns": 1.0 + len(ids)}
        return Scored(2 * value + 0.5 * short, parts, "ok", "")


def test_parts_are_the_functions_own_values_in_the_order_of_their_weights(tmp_path: Path) -> None:
    made = make(tmp_path, steps=1, **PARTS)
    made.rollouts.scorer, made.part_names = Fussy(), ("brief", "first")
    taken = asyncio.run(made.rollouts.take(2))
    parts_SR = made.score(taken.groups, version=0).batch.parts_SR
    assert parts_SR is not None
    samples = [sample for group in taken.groups for sample in group.samples]
    assert parts_SR.tolist() == [[sample.parts["brief"], sample.parts["first"]] for sample in samples]
    made.part_names = ("second", "third")
    with pytest.raises(
        RolloutError, match="normalises second, third one by one, and a sample's parts have none of them"
    ):
        made.score(taken.groups, version=0)


def test_a_function_that_applies_to_no_sample_of_a_step_is_no_part_of_it(tmp_path: Path) -> None:
    made = make(tmp_path, steps=1, **PARTS)
    made.rollouts.scorer, made.part_names = Fussy(), ("brief", "python")
    taken = asyncio.run(made.rollouts.take(2))
    parts_SR = made.score(taken.groups, version=0).batch.parts_SR
    assert parts_SR is not None
    assert bool(parts_SR[:, 1].isnan().all()) and not bool(parts_SR[:, 0].isnan().any())


class Selective(FirstToken):
    """Applies to every second prompt only."""

    async def score(self, prompt, text, ids, stop_reason) -> Scored:
        if int(prompt.uid[1:]) % 2:
            return Scored(None, {}, "not_applicable", "not applicable to first")
        return await super().score(prompt, text, ids, stop_reason)


def test_samples_that_no_reward_applies_to_are_left_out_and_counted(tmp_path: Path) -> None:
    made = make(tmp_path, steps=2)
    made.rollouts.scorer = Selective()
    first, _ = run(made)
    assert (first["reward/not_applicable"], first["reward/error_share"], first["samples/invalid"]) == (0.5, 0.0, 0.5)
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_000001.jsonl").read_text().splitlines()]
    left = [row for row in rows if row["status"] == "not_applicable"]
    assert {row["error"] for row in left} == {"not applicable to first"}
    assert all(row["reward"] is None and row["advantages"] == [0.0] * row["length"] for row in left)
    assert first["effective_tokens"] == first["response_tokens"] - sum(row["length"] for row in left)


def test_a_step_in_which_no_sample_has_step_rewards_teaches_nothing(tmp_path: Path) -> None:
    made = make(tmp_path, steps=2, credit="process")
    lines = run(made)
    assert [line["dead_steps"] for line in lines] == [1, 1]
    assert lines[0]["advantage/abs"] == 0


def test_what_learning_did_is_kept_until_the_next_step(tmp_path: Path) -> None:
    made = make(tmp_path, steps=2, ppo_n_minibatches=2, ppo_epochs=2)
    run(made)
    assert len(made.record.steps) == 4
    assert sum(len(step.samples) for step in made.record.steps) == 2 * 24
