"""Stages of a run: where they end, what they change, and that a resumed run is in the same one with the same memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import test_loop
import torch
from running import call

from partita.algo.compose import controllers
from partita.algo.control import Controls
from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    ClipRuleConfig,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)
from partita.algo.presets import PRESETS
from partita.config import ConfigError
from partita.idle import never_begun
from partita.run import RunConfig, composed, load_run_config
from partita.stages import Progress, StageConfig, UntilConfig, carried, levelled_off, stage_at

GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).parent.parent / "examples" / "stages.yaml"


def config(stages: object, *words: str) -> RunConfig:
    given = ["total_train_steps=12", "gconfig.n_samples=4", "gconfig.max_new_tokens=8", *words]
    return load_run_config([], [*given, f"stages={json.dumps(stages)}"]).value


def by_step(*ends: int) -> tuple[StageConfig, ...]:
    return (*(StageConfig(UntilConfig(step=end)) for end in ends), StageConfig())


def test_skyworks_lengths_by_step() -> None:
    case = json.loads((GOLDEN / "ctl_multistage_length.json").read_text())
    ends, lengths = case["config"]["boundaries"], case["config"]["lengths"]
    named = [
        {"until": {"step": end}, "set": {"gconfig.max_new_tokens": n}} for end, n in zip(ends, lengths, strict=False)
    ]
    named.append({"set": {"gconfig.max_new_tokens": lengths[-1]}})
    whole = config(named, "total_train_steps=2000")
    plan = composed(whole)
    found = [
        plan.stages[stage_at(whole.stages, step)].config.gconfig.max_new_tokens for step in case["inputs"]["steps"]
    ]
    assert found == case["expected"]["max_len"]


def test_a_stage_ends_after_its_steps_and_never_goes_back() -> None:
    stages = by_step(2, 5)
    assert [stage_at(stages, step) for step in range(7)] == [0, 0, 1, 1, 1, 2, 2]
    assert stage_at(stages, 0, index=2) == 2
    assert stage_at((), 9) == 0
    waits = (StageConfig(UntilConfig(plateau="reward/mean")), *by_step(3))
    assert stage_at(waits, 9) == 0
    assert stage_at(waits, 9, index=1) == 2


@pytest.mark.parametrize(
    ("values", "delta", "over"),
    [
        ([1, 2, 3], 0.0, False),  # not two windows yet
        ([1, 2, 2, 1], 0.0, True),  # 1.5 after 1.5
        ([1, 2, 2, 2], 0.0, False),  # 2 after 1.5
        ([1, 2, 2, 2], 0.5, True),  # a rise of exactly delta is none
        ([0, 0, 3, 3, 2, 2], 0.0, True),  # only the last two windows count
    ],
)
def test_a_plateau_compares_the_means_of_two_windows(values: list[float], delta: float, over: bool) -> None:
    assert levelled_off(values, 2, delta) == over


def test_the_first_of_two_ends_counts_and_each_stage_looks_at_its_own_steps() -> None:
    stages = (
        StageConfig(UntilConfig(step=9, plateau="reward/mean", window=1)),
        StageConfig(UntilConfig(plateau="reward/mean", window=1)),
        StageConfig(),
    )
    progress = Progress(stages)
    begun = [progress.advance(step, {"reward/mean": value}) for step, value in enumerate([0.1, 0.3, 0.3, 0.2, 0.1], 1)]
    assert begun == [False, False, True, False, True]  # 0.2 after 0.3 is in two stages: no comparison
    assert progress.index == 2
    timed = Progress((StageConfig(UntilConfig(step=2, plateau="reward/mean")), StageConfig()))
    assert [timed.advance(step, {"reward/mean": step}) for step in (1, 2)] == [False, True]


def test_a_metric_that_a_step_lacks_is_no_value_and_one_that_no_step_has_is_named() -> None:
    progress = Progress((StageConfig(UntilConfig(plateau="reward/mean", window=1)), StageConfig()))
    with pytest.warns(UserWarning, match=r"stages\[0\].until.plateau: no step so far has reward/mean; .* reward/min"):
        assert not progress.advance(1, {"reward/min": 0.0})
    assert not progress.advance(2, {"reward/mean": 0.5})
    assert not progress.advance(3, {})
    assert progress.advance(4, {"reward/mean": 0.5})


def test_a_plateau_of_evaluations_counts_them_and_names_a_metric_that_they_lack() -> None:
    stages = (StageConfig(UntilConfig(plateau="eval/reward", window=2)), StageConfig())
    progress = Progress(stages)
    measured = {2: 0.1, 4: 0.3, 6: 0.3, 8: 0.1}
    begun = [
        progress.advance(step, {"eval/reward": measured[step]} if step in measured else {"reward/mean": 0.5})
        for step in range(1, 9)
    ]
    assert begun == [False] * 7 + [True]  # 0.2 after 0.2, at the fourth evaluation
    lacking = Progress((StageConfig(UntilConfig(plateau="eval/avg@4", window=2)), StageConfig()))
    assert not lacking.advance(1, {"reward/mean": 0.5})
    with pytest.warns(UserWarning, match="no step so far has eval/avg@4; this step had eval/avg@2"):
        lacking.advance(2, {"eval/reward": 0.5, "eval/avg@2": 0.5})


def test_progress_goes_on_from_a_saved_place() -> None:
    stages = (*by_step(1)[:1], StageConfig(UntilConfig(plateau="x", window=2)), StageConfig())
    progress = Progress(stages)
    progress.advance(1, {})
    progress.advance(2, {"x": 0.25})
    other = Progress(stages)
    other.load_state_dict(json.loads(json.dumps(progress.state_dict())))
    assert (other.index, other.values) == (1, [0.25])
    with pytest.raises(ValueError, match=r"saved in stages\[1\], and stages has 0 entries"):
        Progress(()).load_state_dict(progress.state_dict())


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{}, {}], "stages[0] has no until"),
        ([{"until": {"step": 3}}], "stages[0].until: the last stage goes on"),
        (
            [{"until": {"step": 3}}, {"until": {"step": 3}}, {}],
            "stages[1].until.step=3: the stage before ends after step 3",
        ),
        ([{"until": {}}, {}], "neither step nor plateau is set"),
        ([{"until": {"step": 3, "window": 4}}, {}], "window and delta belong to plateau"),
        ([{"until": {"plateau": "time/step"}}, {}], "depends on the machine's speed"),
        ([{"until": {"plateau": "eval/reward"}}, {}], "nothing is evaluated; set evaluator.freq_steps"),
        ([{"until": {"stp": 3}}, {}], "stages.0.until.stp: unknown key. Near: step"),
    ],
)
def test_stages_that_make_no_sense_are_refused_while_loading(stages: list, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(stages)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"actor.eps_clp": 0.1}, "stages[1].set.actor.eps_clp: unknown key. Near: eps_clip"),
        ({"actor": {"eps_clp": 0.1}}, "stages[1].set.actor.eps_clp: unknown key. Near: eps_clip"),
        ({"actor.eps_clip": "wide"}, 'stages[1].set.actor.eps_clip: expected float, got "wide"'),
        ({"actor.adv_norm": {"mean_level": "row"}}, "stages[1].set.actor.adv_norm.mean_level: expected one of batch"),
        ({"gconfig.max_new_tokens": 0}, "stages[1].set.gconfig.max_new_tokens: must be >= 1, got 0"),
        ({"algorithm": "dappo"}, "stages[1].set.algorithm: 'dappo' is not a preset"),
        (
            {"actor.use_sapo_loss": True, "actor.use_decoupled_loss": True},
            "stages[1].set.actor.use_sapo_loss: true with",
        ),
        (
            {"gconfig.n_samples": 1},
            "stages[1]: with its keys set: actor.adv_norm.mean_level: group with gconfig.n_samples 1",
        ),
        ({"gconfig.temperature": 0.0}, "stages[1]: with its keys set: gconfig: temperature=0 is greedy"),
        ({"gconfig.adaptive_n": {"max": 3}}, "stages[1]: with its keys set: gconfig: n_samples=4"),
        ({"seed": 2}, "stages[1].set.seed: is fixed for the whole run. A stage may set algorithm"),
        ({"actor.optimizer.lr": 0.1}, "stages[1].set.actor.optimizer.lr: is fixed for the whole run"),
        ({"stages": []}, "stages[1].set.stages: is fixed for the whole run"),
    ],
)
def test_what_a_stage_sets_is_judged_like_a_config_and_named(given: dict, message: str) -> None:
    wrong = config([{"until": {"step": 3}}, {"set": given}], "algorithm=drgrpo")
    with pytest.raises(ConfigError) as caught:
        composed(wrong)
    assert message in str(caught.value)


def test_all_stages_are_judged_at_once_and_a_shared_fault_is_said_once() -> None:
    stages = [{"until": {"step": 3}, "set": {"actor.eps_clp": 1}}, {"set": {"actor.eps_clip": -1.0}}]
    with pytest.raises(ConfigError) as caught:
        composed(config(stages))
    assert [problem.path for problem in caught.value.problems] == [
        "stages[0].set.actor.eps_clp", "stages[1].set.actor.eps_clip",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        composed(config([{"until": {"step": 3}}, {}], "gconfig.temperature=0"))
    assert [problem.path for problem in caught.value.problems] == ["stages[0]"]


def test_a_stage_stands_on_the_config_and_a_preset_resets_the_algorithm() -> None:
    stages = [
        {"until": {"step": 3}, "set": {"actor.eps_clip": 0.3}},
        {"set": {"algorithm": "dapo", "actor.eps_clip": 0.1}},
    ]
    whole = config(stages, "algorithm=drgrpo", "actor.c_clip=3", "actor.path=somewhere", "actor.max_new_tokens=8")
    first, second = (one.config for one in composed(whole).stages)
    assert (first.actor.eps_clip, first.actor.c_clip, first.actor.loss_agg_mode) == (
        0.3,
        3.0,
        "seq_mean_token_sum_norm",
    )
    assert second.actor.overlong_reward_penalty
    assert (second.actor.eps_clip, second.actor.eps_clip_higher, second.actor.c_clip) == (0.1, 0.28, None)
    assert second.actor.path == "somewhere"
    assert second.gconfig == first.gconfig == whole.gconfig


def test_text_that_looks_like_an_interpolation_survives_a_stage() -> None:
    whole = config([{"set": {"actor.eps_clip": 0.3}}], "train_dataset.instruction='say \\${x}'")
    assert composed(whole).stages[0].config.train_dataset.instruction == whole.train_dataset.instruction == "say ${x}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("areal_")])
def test_every_preset_may_begin_in_a_stage(name: str) -> None:
    sampler = "starting" if name == "rft" else "newest"
    words = ("algorithm=reinforce", f"rollout.policy={sampler}")  # fixed for the whole run
    whole = config([{"until": {"step": 3}}, {"set": {"algorithm": name}}], *words)
    alone = composed(config([], f"algorithm={name}")).stages[0]
    staged = composed(whole).stages[1]
    assert replace(staged.config.actor, loss_agg_constant=None) == replace(alone.config.actor, loss_agg_constant=None)
    assert staged.config.gconfig == alone.config.gconfig
    assert staged.algorithm == alone.algorithm


@pytest.mark.parametrize(("run", "stage"), [("online_rft", "rft"), ("rft", "online_rft"), ("rft", "grpo")])
def test_a_stage_cannot_change_whose_samples_a_run_learns_from(run: str, stage: str) -> None:
    whole = config([{"until": {"step": 3}}, {"set": {"algorithm": stage}}], f"algorithm={run}")
    with pytest.raises(
        ConfigError, match=rf"stages\[1\].set.algorithm: {stage} samples from rollout.policy=.* whole run"
    ):
        composed(whole)


def test_the_constant_is_one_number_for_the_whole_run() -> None:
    stages = [{"until": {"step": 3}, "set": {"gconfig.max_new_tokens": 16}}, {"set": {"gconfig.max_new_tokens": 64}}]
    plan = composed(config(stages, "algorithm=drgrpo", "actor.overlong_reward_penalty=true"))
    assert [one.algorithm.reduce.constant for one in plan.stages] == [64.0, 64.0]  # type: ignore[attr-defined]
    assert [one.algorithm.shape[0].limit for one in plan.stages] == [16, 64]  # type: ignore[attr-defined]
    given = composed(config(stages, "algorithm=drgrpo", "actor.loss_agg_constant=5"))
    assert [one.algorithm.reduce.constant for one in given.stages] == [5.0, 5.0]  # type: ignore[attr-defined]


def test_a_stage_after_the_end_of_the_run_is_named() -> None:
    stages = [{"until": {"step": 3}}, {"until": {"step": 12}}, {}]
    assert list(never_begun(config(stages))) == [
        "stages[2]: never begins, stages[1].until.step 12 and total_train_steps 12"
    ]
    assert list(never_begun(config(stages, "total_train_steps=13"))) == []


EMA = NormConfig(mean_level="ema", std_level="ema")
ENTROPY = AdaptiveEntropyConfig(start=0.5)


def rules(**keys: object) -> Controls:
    return Controls(controllers(AlgorithmKeys(**keys)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "metrics", "kept"),
    [
        ({"adv_norm": EMA}, {"adv_norm": replace(EMA, ema=EmaConfig(beta=0.5))}, ("adv_norm/mean", 2.0), True),
        ({"adv_norm": EMA}, {"reward_norm": EMA}, ("adv_norm/mean", 2.0), False),
        ({"eps_clip_rule": ClipRuleConfig()}, {"eps_clip_rule": ClipRuleConfig(max=0.4)}, ("eps_clip/reference", 2.0), True),
        ({"eps_clip_rule": ClipRuleConfig()}, {"eps_clip_rule": ClipRuleConfig("clip_fraction")}, ("eps_clip/eps", 0.3), False),
        ({"adaptive_entropy": ENTROPY}, {"adaptive_entropy": replace(ENTROPY, delta=0.1)}, ("entropy/coef", 0.6), True),
        ({"adaptive_entropy": ENTROPY}, {"adaptive_entropy": replace(ENTROPY, start=0.2)}, ("entropy/coef", 0.6), False),
    ],
)  # fmt: skip
def test_a_rule_keeps_its_memory_unless_its_start_was_changed(before, after, metrics, kept: bool) -> None:
    old, new = rules(**before), rules(**after)
    fresh, saved = new.state_dict(), old.state_dict()
    rule, value = metrics[0].rsplit("/", 1)
    name = f"ema_{rule}" if rule == "adv_norm" else rule
    saved[name][value] = metrics[1]
    old.load_state_dict(saved)
    assert carried(old, new).state_dict() == ({name: saved[name]} if kept else fresh)


def test_a_kl_rule_keeps_its_coefficient_until_a_stage_sets_it() -> None:
    penalty = KlControllerConfig(type="penalty", target=0.01)
    old = rules(kl_loss_coef=0.1, kl_controller=penalty)
    old.observe("after_epochs", {"kl_ref/k3": 1.0})
    trend = replace(penalty, type="trend")
    assert carried(old, rules(kl_loss_coef=0.1, kl_controller=trend)).state_dict() == {"kl_loss": {"coef": 0.2}}
    assert carried(old, rules(kl_loss_coef=0.3, kl_controller=trend)).state_dict() == {"kl_loss": {"coef": 0.3}}


def toy(folder: Path, stages: object, steps: int = 12, **actor: object) -> test_loop.ToyRun:
    made = test_loop.make(folder / "unused", steps=steps, **actor)
    named = config(stages).stages
    return test_loop.made_of(replace(made.config, stages=named), folder)


CHANGING = [
    {"until": {"step": 3}, "set": {"gconfig.max_new_tokens": 2, "train_dataset.batch_size": 3}},
    {"until": {"step": 5}, "set": {"gconfig.temperature": 0.5, "gconfig.n_samples": 4}},
    {"set": {"actor.ppo_n_minibatches": 2, "gconfig.adaptive_n": {"min": 2, "max": 8, "score": "variance"}}},
]


def test_a_stage_changes_how_a_run_samples_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = toy(tmp_path, CHANGING)
    made.reporter.console.mode = "plain"
    lines = test_loop.run(made)
    assert [line["stage"] for line in lines] == [0, 0, 0, 1, 1, *[2] * 7]
    sampled = [requests for requests in made.engine.rounds if requests[0].draw.stream == 0]  # type: ignore[attr-defined]
    assert [len(requests) for requests in sampled] == [18, 18, 18, 16, 16, *[24] * 7]
    assert [requests[0].sampling.max_new_tokens for requests in sampled] == [2, 2, 2, *[4] * 9]
    assert [requests[0].sampling.temperature for requests in sampled] == [1, 1, 1, 0.5, 0.5, *[1] * 7]
    assert [line["optimizer_steps"] for line in lines[:6]] == [1, 1, 1, 1, 1, 2]
    assert made.rollouts.adaptive is not None
    assert len(made.rollouts.adaptive.known) == 7 * 4  # the prompts that it has seen
    assert lines[2]["mismatch/k3"] == pytest.approx(0.0, abs=1e-9)
    assert lines[4]["mismatch/k3"] == pytest.approx(0.0, abs=1e-9)  # the learner scores at the stage's temperature
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stages[")]
    assert said == [
        "stages[1] begins: gconfig.temperature 0.5, gconfig.n_samples 4",
        'stages[2] begins: actor.ppo_n_minibatches 2, gconfig.adaptive_n {"min": 2, "max": 8, "score": "variance"}',
    ]


IQR = {"type": "iqr", "min": 0.1, "max": 0.3}
SECOND_HALF = [{"until": {"step": 5}}, {"set": {"actor.eps_clip_rule": IQR}}]


def test_the_adaptive_clip_is_turned_on_in_the_second_half(tmp_path: Path) -> None:
    lines = test_loop.run(toy(tmp_path, SECOND_HALF, steps=10, ppo_n_minibatches=2))
    before, after = lines[:5], lines[5:]
    assert not [name for line in before for name in line if name.startswith("control/")]
    start = after[0]["advantage/iqr"]  # its own first step is what it is measured by
    assert {line["control/eps_clip/reference"] for line in after} == {start}
    eps = [line["control/eps_clip/eps"] for line in after]
    assert eps == pytest.approx([min(0.1 + 0.2 * line["advantage/iqr"] / start, 0.3) for line in after])
    assert eps[0] == pytest.approx(0.3)
    assert min(eps) < 0.2


def test_a_rule_of_both_stages_is_not_reset(tmp_path: Path) -> None:
    keys = {"steps": 4, "adaptive_entropy": AdaptiveEntropyConfig(target=3.0, delta=0.01)}
    stages = [{"until": {"step": 2}}, {"set": {"actor.adaptive_entropy.delta": 0.1}}]
    lines = test_loop.run(toy(tmp_path, stages, **keys))
    assert [line["control/entropy/coef"] for line in lines] == pytest.approx([0.01, 0.02, 0.12, 0.22])


SWITCHED = [
    {"until": {"step": 3}, "set": {"actor.eps_clip_rule": IQR, "gconfig.max_new_tokens": 2}},
    {
        "until": {"plateau": "reward/mean", "window": 1, "delta": 0.05},
        "set": {"algorithm": "gspo_smoothed", "actor.eps_clip_rule": IQR},
    },
    {"set": {"algorithm": "dapo", "gconfig.adaptive_n": {"score": "variance", "max": 8}, "actor.ppo_n_minibatches": 2}},
]


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> tuple[test_loop.ToyRun, list[dict]]:
    """A run through three stages that nobody interrupts."""
    whole = toy(tmp_path_factory.mktemp("switched"), SWITCHED, steps=8)
    return whole, test_loop.timeless(test_loop.run(whole))


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4, 6])
def test_a_run_that_is_resumed_in_any_stage_goes_on_exactly(tmp_path: Path, switched, step: int) -> None:
    whole, want = switched
    assert [line["stage"] for line in want] == [0, 0, 0, 1, 1, 2, 2, 2]
    got, second = test_loop.interrupted(whole.config, tmp_path, step)
    assert test_loop.timeless(got) == want
    assert torch.equal(whole.learner.model.table, second.learner.model.table)  # type: ignore[arg-type]


def test_a_checkpoint_of_a_stage_that_is_gone_is_refused(tmp_path: Path) -> None:
    first = toy(tmp_path / "a", SECOND_HALF)
    first.progress.index = 1
    with pytest.raises(ValueError, match=r"saved in stages\[1\], and stages has 0 entries"):
        test_loop.make(tmp_path / "b").load_state_dict(first.state_dict(12))


@pytest.mark.slow
def test_the_example_runs_through_its_stages(tmp_path: Path, model_folder: Path) -> None:
    words = [f"actor.path={model_folder}", f"output_dir={tmp_path}", "trial_name=t", "train_dataset.batch_size=1"]
    ended = call("train", EXAMPLE, *words, "gconfig.n_samples=2", "report.console=plain")
    assert ended.code == 0, ended.err
    text = (tmp_path / "stages" / "t" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["stage"] for line in lines} == {0, 1, 2}
    assert max(line["response_length/max"] for line in lines if line["stage"] == 0) <= 16
    assert max(line["response_length/max"] for line in lines) > 16
    assert "control/eps_clip/eps" not in lines[15]
    assert "control/eps_clip/eps" in lines[16]
    header = dict(line.strip().split("  ", 1) for line in ended.out.splitlines() if line.startswith("  stages "))
    assert "[0] until step 8 or until reward/mean" in header["stages"]
    assert "stages[1] begins: the config as it is" in ended.out
    assert "stages[2] begins: actor.eps_clip_rule" in ended.out
