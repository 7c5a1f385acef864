"""Runs that end before their last step: what ends them, that nothing is lost, and that they go on as if they had not ended."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import test_loop
import torch
from test_loop import ToyRun, made_of, timeless

from partita.config import ConfigError
from partita.ends import EarlyStop, EarlyStopConfig, Ends, hearing, lines_of
from partita.report.config import ReportConfig
from partita.report.records import StepRecord
from partita.report.reporter import Reporter, RunFacts
from partita.rollout.rollouts import Refill, Taken
from partita.run import RunConfig, load_run_config, refuse_unevaluated
from partita.stages import StageConfig, UntilConfig

HOUR = 3600.0


def early(**changed) -> EarlyStop:
    return EarlyStop(EarlyStopConfig(**changed))


def fed(stop: EarlyStop, values: list[float]) -> list[bool]:
    """Whether each of these evaluations, one a step, is the last that it waits for."""
    seen = []
    for step, value in enumerate(values, 1):
        stop.observe(step, {stop.config.metric: value}, in_turn=True)
        seen.append(stop.over)
    return seen


# ---- early stop


def test_patience_counts_evaluations_since_the_best() -> None:
    stop = early(patience=2)
    assert fed(stop, [0.1, 0.3, 0.2, 0.4, 0.4, 0.3]) == [False] * 5 + [True]
    assert (stop.best, stop.best_step, stop.waited, stop.chosen) == (0.4, 4, 2, 4)


def test_a_rise_of_exactly_min_delta_is_none() -> None:
    assert fed(early(patience=1, min_delta=0.25), [0.0, 0.25]) == [False, True]
    assert fed(early(patience=1, min_delta=0.25), [0.0, 0.5, 0.75]) == [False, False, True]


def test_less_may_be_better() -> None:
    stop = early(patience=1, mode="min", metric="eval/response_length")
    assert fed(stop, [9.0, 8.0, 8.0]) == [False, False, True]
    assert stop.best_step == 2


def test_an_evaluation_out_of_turn_may_be_the_best_but_does_not_count() -> None:
    stop = early(patience=2)
    fed(stop, [0.5, 0.4])
    stop.observe(3, {"eval/reward": 0.9}, in_turn=False)
    assert (stop.chosen, stop.waited, stop.over) == (None, 1, False)  # None: the last weights
    again = early(patience=2)
    again.load_state_dict(json.loads(json.dumps(stop.state_dict())))
    assert again.chosen is None
    again.observe(4, {"eval/reward": 0.6}, in_turn=True)
    assert (again.chosen, again.best) == (4, 0.6)
    stop.observe(3, {"eval/reward": 0.1}, in_turn=False)
    assert stop.chosen == 1
    assert early(restore_best=False).chosen is None


def test_a_metric_that_evaluations_lack_is_named_and_does_not_count() -> None:
    stop = early(metric="eval/pass@4", patience=1)
    with pytest.warns(UserWarning, match=r"the evaluation has no eval/pass@4.*near: .*eval/pass@8"):
        stop.observe(2, {"eval/reward": 0.1, "eval/pass@8": 0.2, "eval/error_share": 0.0}, in_turn=True)
    stop.observe(4, {"eval/error_share": 1.0}, in_turn=True)  # nothing could be scored: said elsewhere
    assert (stop.waited, stop.best) == (0, None)


def test_memory_of_another_metric_is_not_compared_with() -> None:
    stop, other = early(patience=1), early(metric="eval/avg@4")
    fed(stop, [0.5, 0.4])
    other.load_state_dict(stop.state_dict())
    assert (other.best, other.waited) == (None, 0)
    patient = early(patience=2)
    patient.load_state_dict(stop.state_dict())
    assert (patient.best, patient.waited, patient.over) == (0.5, 1, False)


# ---- budgets


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record(step: int, seconds: float, saving: float = 0.0, tokens: int = 0) -> StepRecord:
    return StepRecord(step, {"time/step": seconds, "time/save": saving, "response_tokens": float(tokens)})


def test_hours_end_before_a_step_that_would_not_fit() -> None:
    clock = Clock()
    ends = Ends(max_hours=1.0, clock=clock)
    ends.recall([])
    assert ends.reason is None
    steps = 0
    while ends.reason is None:
        clock.now += 420.0
        ends.step_taken(10)
        steps += 1
    assert steps == 8  # 3360 s; a ninth step would end at 3780
    assert ends.reason is not None
    assert ends.reason.further == "max_hours=2"
    assert ends.reason.text.startswith("max_hours 1: ")


def test_hours_and_tokens_count_the_steps_of_earlier_processes() -> None:
    records = [record(1, 1000.0, 0.0, 40), record(2, 1000.0, 500.0, 60)]
    fits, over, tokens, more = (
        Ends(max_hours=3500.1 / HOUR, clock=Clock()), Ends(max_hours=3499.0 / HOUR, clock=Clock()),
        Ends(max_tokens=100, clock=Clock()), Ends(max_tokens=101, clock=Clock()),
    )  # fmt: skip
    for ends in (fits, over, tokens, more):
        ends.recall(records)
    assert [ends.reason is None for ends in (fits, over, tokens, more)] == [True, False, False, True]
    assert tokens.reason is not None and tokens.reason.further == "max_tokens=200"
    more.step_taken(1)
    assert more.reason is not None


def test_a_new_run_takes_one_step_whatever_the_hours() -> None:
    clock = Clock()
    ends = Ends(max_hours=1e-9, clock=clock)
    ends.recall([])
    clock.now += 1.0
    assert ends.reason is None
    ends.step_taken(1)
    assert ends.reason is not None and ends.reason.further == "max_hours=0.000555556"


def test_what_ends_a_run_in_words() -> None:
    assert lines_of(None, None, None) == ()
    assert lines_of(1.5, 2000, EarlyStopConfig(min_delta=0.1, restore_best=False)) == (
        "before the step that would pass 1.5 hours, all resumes together",
        "after the step that reaches 2,000 generated tokens",
        "after 3 evaluations without eval/reward above its best by more than 0.1; the last weights are exported",
    )


# ---- the config


def config(*words: str) -> RunConfig:
    return load_run_config([], ["total_train_steps=3", *words]).value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["early_stop={}"], "early_stop.metric=eval/reward: nothing is evaluated; set evaluator.freq_steps"),
        (["early_stop={metric: reward/mean}", "evaluator.freq_steps=1"], "reward/mean is not measured by evaluations"),
        (["early_stop={patience: 0}", "evaluator.freq_steps=1"], "early_stop.patience"),
        (["early_stop={patiense: 2}", "evaluator.freq_steps=1"], "Near: patience"),
        (["max_hours=0"], "max_hours"),
        (["max_tokens=0"], "max_tokens"),
    ],
)
def test_ends_that_make_no_sense_are_refused_while_loading(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*words)
    assert message in str(caught.value)


def test_what_waits_for_evaluations_needs_rows_to_evaluate_on() -> None:
    stages = "stages=[{until: {plateau: eval/reward}}, {}]"
    asked = config("early_stop={}", "evaluator.freq_steps=1", stages)
    refuse_unevaluated(asked, held_out=True)
    with pytest.raises(ConfigError) as caught:
        refuse_unevaluated(asked, held_out=False)
    for path in ("early_stop.metric", "stages[0].until.plateau"):
        assert f"{path}: eval/reward is never measured: no held-out rows, set valid_dataset" in str(caught.value)
    refuse_unevaluated(config(), held_out=False)


# ---- whole runs on the toy task


def toy(folder: Path, evaluate: bool = False, actor: dict | None = None, **changed) -> ToyRun:
    made = test_loop.make(folder / "unused", steps=8, evaluate=evaluate, **(actor or {}))
    return made_of(replace(made.config, **changed), folder)


def on_from(first: ToyRun, **changed) -> ToyRun:
    """A run that goes on in the folder of `first`, with some keys changed."""
    step, folder = first.finished, first.folder
    second = made_of(replace(first.config, **changed), folder)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(step))))
    second.learner.model.load_state_dict(first.learner.model.state_dict())
    second.learner.stepper.optimizer.load_state_dict(first.learner.stepper.optimizer.state_dict())
    second.rollouts.refill = first.rollouts.refill
    second.reporter = Reporter(ReportConfig(console="quiet"), RunFacts(folder, "toy", second.steps, {}, step))
    second.publish(step)
    return second


def test_generated_tokens_end_a_run_between_two_steps_with_a_checkpoint(tmp_path: Path) -> None:
    whole = toy(tmp_path / "whole")
    want = timeless(test_loop.run(whole))
    tokens = [int(line["response_tokens"]) for line in want]
    short = toy(tmp_path / "short", max_tokens=sum(tokens[:3]) - 1)
    assert timeless(test_loop.run(short)) == want[:3]
    assert (short.saved, short.finished) == (3, 3)
    assert short.ends.reason is not None
    again = on_from(short)
    test_loop.run(again)
    assert again.finished == 3  # nothing is left of the budget
    longer = on_from(again, max_tokens=sum(tokens[:5]))
    assert timeless(test_loop.run(longer)) == want[:5]
    last = on_from(longer, max_tokens=None)
    assert timeless(test_loop.run(last)) == want
    assert torch.equal(last.learner.model.table, whole.learner.model.table)  # type: ignore[arg-type]


def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    whole = toy(tmp_path / "whole", evaluate=True)
    want = timeless(test_loop.run(whole))
    made = toy(tmp_path / "told", evaluate=True)
    take = made.take

    async def told_meanwhile(step: int) -> Taken:
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return await take(step)

    made.take = told_meanwhile
    with hearing(made.ends.told):
        assert timeless(test_loop.run(made)) == want[:3]  # the third step was not evaluated out of turn
    assert (made.saved, made.finished, made.early) == (3, 3, True)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    again = on_from(made)
    assert timeless(test_loop.run(again)) == want
    assert not again.early


def test_a_run_ends_by_its_evaluations_and_goes_on_with_more_patience(tmp_path: Path) -> None:
    asked = EarlyStopConfig(patience=2, min_delta=10.0, restore_best=False)  # nothing is so much better
    whole = toy(tmp_path / "whole", evaluate=True)
    want = timeless(test_loop.run(whole))
    made = toy(tmp_path / "stopped", evaluate=True, early_stop=asked)
    assert timeless(test_loop.run(made)) == want[:6]  # evaluated after 2, 4 and 6
    assert made.saved == 6
    assert made.ends.reason is not None
    assert made.ends.reason.text.startswith("early_stop: eval/reward has not been better than ")
    again = on_from(made)
    test_loop.run(again)
    assert again.finished == 6
    longer = on_from(again, early_stop=replace(asked, patience=3))
    assert timeless(test_loop.run(longer)) == want
    assert longer.finished == 8


def test_an_evaluation_that_only_the_end_asked_for_ends_no_stage(tmp_path: Path) -> None:
    """Evaluated in turn after 2, 4, 6, 8; a run that ends after 5 evaluates once more, and goes on without having done so."""
    stages = [StageConfig(UntilConfig(plateau="eval/reward", window=1, delta=10.0), {}), StageConfig(None, {})]
    whole = toy(tmp_path / "whole", evaluate=True, stages=stages)
    want = [line["stage"] for line in test_loop.run(whole)]
    assert want == [0, 0, 0, 0, 1, 1, 1, 1]
    cut = toy(tmp_path / "cut", evaluate=True, stages=stages)
    cut.steps = 3
    lines = test_loop.run(cut)
    assert "eval/reward" in lines[-1]
    assert cut.progress.values == [lines[1]["eval/reward"]]
    longer = on_from(cut)
    assert [line["stage"] for line in test_loop.run(longer)] == want


# ---- groups that wait, and the learner


def filled(folder: Path, keep: Callable = lambda group: True, actor: dict | None = None, **changed) -> ToyRun:
    made = toy(folder, actor={"ppo_n_minibatches": 2, **(actor or {})}, **changed)
    asked = Refill(keep, 10, True, oversample=1.5)
    made.rollouts.refill, made.phases = asked, tuple(replace(phase, refill=asked) for phase in made.phases)
    return made


def test_old_log_probs_of_waiting_groups_are_those_of_the_policy_of_now(tmp_path: Path) -> None:
    """Behaviour log-probs and versions stay the sampler's; the clip centre is scored anew, with the newest weights."""
    made, seen = filled(tmp_path, actor={"use_decoupled_loss": True}), []
    learn = made.learn

    def watched(rollout, algorithm, step):
        seen.append(rollout.batch)
        return learn(rollout, algorithm, step)

    made.learn = watched  # type: ignore[method-assign]
    lines = test_loop.run(made)
    assert [line["surplus/used"] for line in lines] == [0, 2, 1, 2, 1, 2, 1, 2]
    for step, batch in enumerate(seen):
        age_T = batch.train_version - 1 - batch.version_T
        assert set(age_T.tolist()) == ({0, 1} if step else {0})
        apart_T = (batch.prox_T - batch.behaviour_T).abs()
        assert bool((apart_T[age_T == 0] < 1e-6).all())
        if step:
            assert float(apart_T[age_T == 1].max()) > 1e-3
    assert max(abs(line["correction/weight"] - 1) for line in lines[1:]) > 1e-4
    assert lines[0]["correction/weight"] == pytest.approx(1.0, abs=1e-6)


def test_a_staleness_limit_sees_the_age_of_waiting_groups(tmp_path: Path) -> None:
    made = filled(tmp_path, actor={"max_staleness": 0})
    used = [(line["surplus/used"], line["effective_tokens"], line["response_tokens"]) for line in test_loop.run(made)]
    assert used[0][0] == 0 and used[1][0] == 2
    free = filled(tmp_path / "free")
    assert test_loop.run(free)[1]["effective_tokens"] > used[1][1]


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_run_goes_on_with_what_waited(tmp_path: Path, cut: int) -> None:
    whole = filled(tmp_path / "whole")
    want = timeless(test_loop.run(whole))
    first = filled(tmp_path / "cut")
    first.steps = cut
    test_loop.run(first)
    second = on_from(first)
    assert timeless(test_loop.run(second)) == want
    assert torch.equal(whole.learner.model.table, second.learner.model.table)  # type: ignore[arg-type]


def test_a_stage_begins_without_what_waited(tmp_path: Path) -> None:
    made = filled(tmp_path, stages=[StageConfig(UntilConfig(step=2), {}), StageConfig(None, {})])
    lines = test_loop.run(made)
    assert [(line["stage"], line["surplus/used"], line["surplus/dropped"]) for line in lines[:4]] == [
        (0, 0, 0), (0, 2, 0), (1, 0, 1), (1, 2, 0),
    ]  # fmt: skip


def test_the_schedule_ends_with_the_prompts_where_groups_wait(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.rollouts.prompt_limit = 15
    lines = test_loop.run(made)
    assert [line["prompts_used"] for line in lines] == [6, 9, 14, 15]
    assert made.saved == 4
    lengths = [made._length(step) for step in range(4)]
    assert lengths[-1] == 4
