"""The comparison of algorithms: which runs it plans and repeats, what it measures, tables and pictures by hand."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import compare
import compare_report
import pytest
import tiny_task
from compare_pictures import Layout, Panel, Series, panels_svg

from partita.algo.presets import PRESETS
from partita.report.records import StepRecord
from partita.run import composed, load_run_config
from partita.trainer import QUICKSTART

JOBS = compare.jobs_of(compare.PARTS)


def line(part="tiny", arm="grpo", seed=1, reward=(0.25, 0.5, 0.75, 1.0), correct=(4, 6, None, 8), **changed):
    """A finished run of four steps."""
    curves = {"reward": list(reward), "length_correct": list(correct), "length_incorrect": [10, 20, 30, None]}
    curves |= {name: [0.4, 0.3, 0.2, 0.1] for name in ("entropy", "kl_step", "clip_fraction", "truncated")}
    name = f"{part}/{arm}/{seed}"
    found = {"name": name, "part": part, "arm": arm, "seed": seed, "words": ["a=1"], "steps": 4, "curves": curves}
    measured = {"reward_first3": 0.5, "reward_last3": 0.75, "kl_step": 0.25, "clip_fraction": 0.25, "held_out": 0.7}
    return found | measured | {"seconds": 12.4} | changed


def by_name(*lines):
    return {one["name"]: one for one in lines}


def test_every_preset_is_trained_with_three_seeds():
    tiny = [job for job in JOBS if job.part == "tiny"]
    assert {job.arm for job in tiny} == set(PRESETS)
    assert all(sorted(job.seed for job in tiny if job.arm == name) == [1, 2, 3] for name in {job.arm for job in tiny})
    assert len({job.name for job in JOBS}) == len(JOBS)
    assert {job.arm for job in JOBS if job.part == "smollm2"} == {"grpo", "drgrpo", "rloo", "dapo", "gspo", "sapo"}


@pytest.mark.parametrize("job", [job for job in JOBS if job.seed == 1], ids=lambda job: job.name)
def test_the_settings_of_a_run_are_valid_and_keep_the_preset(job):
    config = load_run_config([QUICKSTART] if job.part == "smollm2" else [], job.words).value
    assert composed(config)
    assert config.actor.ppo_n_minibatches == (1 if job.arm == "reinforce_on_policy" else 4)
    preset = config.algorithm
    asked = PRESETS[preset]
    assert (config.actor.dynamic_sampling is not None) == ("dynamic_sampling" in asked)
    if job.part != "reasons":
        assert config.actor.eps_clip == asked.get("eps_clip", 0.2)
        assert config.actor.gate == asked.get("gate", "min_clip")
    assert config.actor.entropy_coef == asked.get("entropy_coef", 0.0)  # 0.01 in the quickstart's own file
    if job.arm != "grpo_without_kl":
        assert config.actor.kl_loss_coef == asked.get("kl_loss_coef", 0.0)


def test_a_reason_differs_from_its_preset_in_what_it_names_only():
    for arm, (preset, own) in compare.REASONS.items():
        [plain] = [job for job in JOBS if job.name == f"tiny/{preset}/1"]
        [changed] = [job for job in JOBS if job.name == f"reasons/{arm}/1"]
        assert set(changed.words) - set(plain.words) == set(own)
        assert composed(load_run_config([], changed.words).value) != composed(load_run_config([], plain.words).value)


@pytest.mark.parametrize("part", ["tiny", "smollm2"])
def test_every_run_computes_all_its_samples(monkeypatch, tmp_path, part):
    """Its curves are over them, and so were those of the results that are there."""
    seen = []

    def trainer(config):
        seen.append(config.actor.skip_dead_samples)
        raise RuntimeError("enough")

    monkeypatch.setattr(compare, "PPOTrainer", trainer)
    [job] = [job for job in JOBS if job.name == f"{part}/grpo/1"]
    assert compare.run(job, tmp_path, 1)["error"] == "RuntimeError: enough"
    assert seen == [False]


def test_measured_reads_the_numbers_of_a_run():
    steps = [
        StepRecord(1, {"reward/mean": 0.2, "clip_fraction": 0.1, "kl_step/k3": 0.5, "response_length/correct": 3.0}),
        StepRecord(2, {"reward/mean": 0.4, "clip_fraction": 0.3, "kl_step/k3": math.nan}),
        StepRecord(3, {"reward/mean": 0.6}),
        StepRecord(4, {"reward/mean": 0.123456, "eval/reward": 0.7}),
    ]
    found = compare.measured(steps)
    assert found["reward_first3"] == pytest.approx(0.4)
    assert found["reward_last3"] == pytest.approx((0.4 + 0.6 + 0.1235) / 3)
    assert (found["clip_fraction"], found["kl_step"], found["held_out"]) == (pytest.approx(0.2), 0.5, 0.7)
    assert found["curves"]["reward"] == [0.2, 0.4, 0.6, 0.1235]
    assert found["curves"]["kl_step"] == [0.5, None, None, None]
    assert found["curves"]["length_correct"] == [3.0, None, None, None]
    assert compare.measured([StepRecord(1, {"reward/mean": 1.0})])["clip_fraction"] is None


def test_only_what_is_missing_failed_or_changed_is_trained():
    jobs = [compare.Job("tiny", arm, 1, ("a=1",)) for arm in ("grpo", "dapo", "gspo", "sapo")]
    lines = by_name(line(), line(arm="dapo", words=["a=2"]), line(arm="gspo", error="RolloutError: starved"))
    assert [job.arm for job in compare.missing(jobs, lines)] == ["dapo", "gspo", "sapo"]


def test_the_last_whole_line_of_a_name_counts(tmp_path):
    path = tmp_path / "comparison.jsonl"
    assert compare_report.read(path) == {}
    texts = [json.dumps(line(arm="sapo")), json.dumps(line(seconds=1.0)), json.dumps(line(seconds=2.0))]
    path.write_text("\n".join([*texts, texts[0][:40]]))
    lines = compare_report.read(path)
    assert {name: one["seconds"] for name, one in lines.items()} == {"tiny/sapo/1": 12.4, "tiny/grpo/1": 2.0}
    kept = compare.tidied(lines | by_name(line(arm="gone"))).splitlines()
    assert [json.loads(text)["name"] for text in kept] == ["tiny/grpo/1", "tiny/sapo/1"]  # order of the presets


def test_a_row_of_the_table_by_hand():
    second = line(seed=2, reward=(0.5, 0.5, 0.5, 0.5), reward_last3=1.0, clip_fraction=0.0, seconds=20.0)
    rows = compare_report.tables(by_name(line(), second), "en")["tiny"].splitlines()
    # correct: (.25·4 + .5·6 + .5·4 + .5·6) / 1.75 in the first three steps, of which the third has none; then with the last
    # incorrect: (.75·10 + .5·20 + .25·30 + .5·(10 + 20 + 30)) / 3, the same to the end
    assert rows[2] == (
        "| `grpo` | 0.50 → 0.88 | **+0.25** | 0.70 | 12 % | 5.1 → 6.5 | 18.3 → 18.3 | 0.30 → 0.20 | 2.5e-01 | 16 |"
    )
    assert len(rows) == 3 and len({row.count("|") for row in rows}) == 1


def test_gains_below_the_goal_errors_and_gates_that_cut_nothing_are_marked():
    lines = by_name(line(reward_last3=0.9, clip_fraction=None), line(arm="dapo", error="RolloutError: a | b"))
    rows = compare_report.tables(lines, "zh")["tiny"].splitlines()
    assert "| +0.40 |" in rows[2] and "| – |" in rows[2]
    assert rows[3].startswith("| `dapo` | RolloutError: a \\| b |")


def test_the_table_of_lengths_by_hand():
    reward, lengths = [0.5] * 150, [10.0] * 75 + [30.0] * 75
    run = line("lengths", "drgrpo", reward=reward, correct=lengths)
    run["curves"]["length_incorrect"] = [5.0] * 149 + [25.0]
    rows = compare_report.tables(by_name(run), "en")["lengths"].splitlines()
    assert rows[0].startswith("| run | of | steps 1–3 | steps 11–30 |")
    assert rows[2] == "| `drgrpo` | length, incorrect | 5.0 | 5.0 | 5.0 | 5.0 | 6.0 |"
    assert rows[3] == "| `drgrpo` | length, correct | 10.0 | 10.0 | 10.0 | 30.0 | 30.0 |"
    assert rows[4] == "| `drgrpo` | reward | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 |"


def test_only_what_lies_between_its_marks_is_replaced():
    page = "a\n<!-- tiny -->\nold\n<!-- end -->\nb\n<!-- lengths -->\nkept\n<!-- end -->\nc\n"
    assert compare_report.filled(page, {"tiny": "new\n", "other": "x\n"}) == page.replace("old", "new")


def test_averages_are_over_runs_and_the_last_steps():
    first, second = line(), line(seed=2, reward=(0.75, 0.5, 0.25, 0.0))
    assert compare_report.average([first, second], "reward") == ((1.0, 0.5), (2.0, 0.5), (3.0, 0.5), (4.0, 0.5))
    assert compare_report.average([first], "length_correct") == ((1.0, 4), (2.0, 5), (3.0, 5), (4.0, 6))


def test_every_picture_is_an_svg_with_its_runs():
    tiny = [line(arm=arm, seed=seed) for arm in ("grpo", "dapo") for seed in (1, 2, 3)]
    lines = by_name(*tiny, line("lengths", "drgrpo"), line("smollm2", "gspo"), line("smollm2", "sapo", error="x"))
    found = compare_report.pictures(lines)
    assert sorted(found) == [
        f"comparison_{name}.svg" for name in ("entropy", "kl_step", "length", "lengths", "reward", "smollm2")
    ]
    texts = {name: [*ElementTree.fromstring(text).itertext()] for name, text in found.items()}
    assert {"grpo", "dapo"} <= set(texts["comparison_reward.svg"])
    assert {"correct", "incorrect"} <= set(texts["comparison_length.svg"])
    assert "gspo" in texts["comparison_smollm2.svg"] and "sapo" not in texts["comparison_smollm2.svg"]


def test_a_panel_places_points_between_its_axes():
    panel = Panel("one & two", (Series(((0.0, 0.0), (4.0, 1.0), (5.0, math.nan)), "#111111", "<a>"),))
    root = ElementTree.fromstring(panels_svg("title", [panel, Panel("none", ())], Layout(2, 200, 100)))
    [points] = [node.get("points") for node in root.iter() if node.tag.endswith("polyline")]
    assert points == "44.0,76.0 188.0,26.0"  # left, bottom; right, top
    assert {"one & two", "<a>", "no values", "title"} <= set(root.itertext())


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    tiny_task.teach(folder, steps=100)
    return folder


@pytest.mark.slow
def test_a_run_is_measured_and_one_that_starves_says_so(taught):
    [job] = [job for job in JOBS if job.name == "tiny/gspo/2"]
    few = ("total_train_steps=2", "evaluator.freq_steps=2", "train_dataset.batch_size=4", "evaluator.n_prompts=4")
    job = replace(job, words=(*job.words, *few))
    found = compare.run(job, taught, threads=1)
    assert (found["name"], found["steps"], len(found["curves"]["entropy"])) == ("tiny/gspo/2", 2, 2)
    assert found["held_out"] is not None
    assert found["clip_fraction"] > 0  # four minibatches of one step, a gate of 3e-4
    assert json.loads(json.dumps(found))["words"] == list(job.words)
    starved = replace(job, words=(*job.words, "actor.dynamic_sampling.max_batches=1", "gconfig.max_new_tokens=1"))
    found = compare.run(starved, taught, threads=1)
    assert found["error"].startswith("partita.rollout.episodes.RolloutError: dynamic sampling")
    assert "curves" not in found
