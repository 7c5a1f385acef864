"""The command line as a user meets it: every mistake ends with a message that names it, every command works on a run folder."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from running import Ended, call, finish, settings, start
from safetensors.torch import load_file
from tiny_model import byte_tokenizer

from partita.models.load import load_tokenizer
from partita.report.sinks import read_metrics
from partita.runfolder import run_config_of


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str):
    """Overrides of a small run in `tmp_path / "runs"`, some of them changed."""

    def make(**changed: object) -> list[str]:
        given = {"actor__path": model_folder, "reward__functions": f"[{vowels}]", "trial_name": "t"} | changed
        return settings(tmp_path / "runs", **given)

    return make


def reward_file(folder: Path, body: str) -> str:
    (folder / "own.py").write_text(f"import time\ndef own(response, answer):\n    {body}\n")
    return f"[{folder}/own.py:own]"


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "runs/tiny/t/metrics.jsonl").read_text().splitlines()]


def refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended.err
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


WRONG = {
    "unknown key": (["actor.eps_clip_highr=0.3"], "actor.eps_clip_highr: unknown key", "eps_clip_higher", "[command line]"),
    "foreign key": (["actor.learning_rate=1"], "actor.learning_rate: unknown key", "actor.optimizer.lr"),
    "wrong type": (["actor.eps_clip=abc"], 'actor.eps_clip: expected float, got "abc"', "[command line]"),
    "two at once": (["gconfig.n_samples=0", "seed=x"], "2 problems", "gconfig.n_samples", "must be", 'seed: expected int, got "x"'),
    "launcher": (["scheduler.type=rya"], "scheduler.type: expected one of local, ray, slurm", 'got "rya"'),
    "greedy": (["gconfig.temperature=0"], "gconfig: temperature=0", "greedy"),
    "seed": (["seed=4294967296"], "seed:", "< 4294967296"),
    "stale samples": (["rollout.max_head_offpolicyness=2"], "rollout.max_head_offpolicyness=2", "trains in turns"),
    "one sample": (["gconfig.n_samples=1"], "actor.adv_norm.mean_level: group with gconfig.n_samples 1", "Raise n_samples"),
    "group size": (["actor.adv_norm.group_size=3"], "actor.adv_norm.group_size: 3 must equal gconfig.n_samples 4", "leave it out"),
    "truncated": (["gconfig.top_p=0.9"], "gconfig: top_p=0.9", "full softmax", "allow_truncated_sampling=true"),
    "conflicts in two sections": (["gconfig.top_k=5", "gconfig.n_samples=1"], "gconfig: top_k=5", "actor.adv_norm.std_level"),
    "reward name": (["reward.functions=[math_corect]"], "'math_corect' is not a built-in reward", "near: math_correct"),
    "reward file": (["reward.functions=[nope.py:f]"], "reward.functions", "nope.py: no such file"),
    "data file": (["train_dataset.path=nowhere/rows.jsonl"], "train_dataset: nowhere/rows.jsonl: no such file"),
    "task name": (["train_dataset.path=additon"], "'additon': no such task", "near: addition"),
    "task object": (["train_dataset.path=nope.py:task"], "train_dataset", "nope.py: no such file"),
    "task object without rows": (["train_dataset.path=os.path:join"], "train_dataset: os.path:join", "expected a partita.tasks"),
    "tokenizer folder": (["tokenizer_path=./no/words"], "./no/words: no such folder"),
    "model folder": (["actor.path=./no/model"], "./no/model: no such folder"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes, parts", [(v[0], v[1:]) for v in WRONG.values()], ids=WRONG.keys())
def test_a_mistake_is_named_before_anything_is_written(tmp_path: Path, words, changes: list[str], parts) -> None:
    refused(call("train", "grpo", *words(), *changes), *parts)
    assert not (tmp_path / "runs").exists()


def test_a_missing_tracker_is_named_before_anything_is_written(tmp_path: Path, words, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    refused(call("train", "grpo", *words(), "report.trackers=[trackio]"), "names trackio", "partita[trackers]")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.yaml", "samples/step_000001.jsonl"])
def test_a_full_disk_ends_the_run_with_one_sentence(tmp_path: Path, words, file: str) -> None:
    folder = tmp_path / "runs/tiny/t"
    full = folder / f"{file}.partial"
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")  # writing to it fails as on a full disk
    ended = call("train", "grpo", *words())
    assert ended.code == 1, ended.err
    assert ended.err.startswith(f"error: {folder} cannot be written to: [Errno 28] No space left on device")
    assert f"partita train --resume {folder}" in ended.err
    assert "Traceback" not in ended.err


def test_a_foreign_line_among_the_metrics_is_named(tmp_path: Path, trained: Path) -> None:
    spoilt = shutil.copytree(trained, tmp_path / "spoilt")
    with (spoilt / "metrics.jsonl").open("a") as file:
        file.write("hello\n")
    refused(
        call("train", "--resume", spoilt), f"{spoilt}/metrics.jsonl:4: not the record of a step", "Remove this line"
    )


def held_out(folder: Path, *answers: str) -> str:
    """A data section with these gold answers."""
    rows = folder / "held_out.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": "1 + 1?", "answer": a, "n": i}) + "\n" for i, a in enumerate(answers))
    )
    return f"valid_dataset.path={rows}"


@pytest.mark.slow
def test_a_held_out_set_that_cannot_be_scored_costs_no_step(tmp_path: Path, words) -> None:
    own = reward_file(tmp_path, "return float(answer) * len(response)")
    given = words(reward__functions=own, total_train_steps=1, evaluator__freq_steps=1)
    ended = call("train", "grpo", *given, held_out(tmp_path, "none", "none"))
    assert ended.code == 0, ended.err
    assert "warning: evaluation: no sample could be scored; the first error: own: ValueError" in ended.out
    [line] = metrics(tmp_path)
    assert line["eval/error_share"] == 1
    assert "eval/reward" not in line
    assert (tmp_path / "runs/tiny/t/checkpoints/step_000001").exists()
    half = call("train", "grpo", *given, held_out(tmp_path, "none", "2"), "trial_name=h")
    assert half.code == 0, half.err
    [line] = [json.loads(line) for line in (tmp_path / "runs/tiny/h/metrics.jsonl").read_text().splitlines()]
    assert line["eval/error_share"] == 0.5
    assert "eval/reward" in line


def test_a_held_out_set_without_what_the_reward_asks_for_is_refused(tmp_path: Path, words) -> None:
    (tmp_path / "own.py").write_text("def own(response, answer, colour):\n    return 1.0\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": "2", "colour": "red"}\n')
    given = words(
        reward__functions=f"[{tmp_path}/own.py:own]", train_dataset__path=rows, train_dataset__size=None,
        train_dataset__batch_size=1, evaluator__freq_steps=1,
    )  # fmt: skip
    refused(call("train", "grpo", *given, held_out(tmp_path, "2")), "valid_dataset: row", "asks for 'colour'")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_with_another_tokenizer_keeps_it(tmp_path: Path, words) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "Q{% for m in messages %}{{ m.content }}{% endfor %}A"
    tokenizer.save_pretrained(tmp_path / "words")
    ended = call("train", "grpo", *words(tokenizer_path=tmp_path / "words"))
    assert ended.code == 0, ended.err
    folder = tmp_path / "runs/tiny/t"
    row = json.loads((folder / "samples/step_000001.jsonl").read_text().splitlines()[0])
    assert row["prompt"].startswith("QWhat is")
    assert call("export", folder, tmp_path / "model").code == 0
    for exported in (folder / "export", tmp_path / "model"):
        assert load_tokenizer(str(exported)).chat_template == tokenizer.chat_template
    shutil.rmtree(tmp_path / "words")  # the export has all that playing needs
    assert call("generate", folder, "--prompt", "1 + 1?", "--max-new-tokens", 2).code == 0
    played = call("eval", folder, "--n", 2)
    assert played.code == 0, played.err


@pytest.mark.slow
def test_a_run_with_a_reward_from_python_is_not_judged_by_another(tmp_path: Path, trained: Path, vowels: str) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "python.json").write_text('{"rewards": ["own"], "workflow": "Twice", "filter": false}')
    refused(
        call("eval", run, "--n", 2), f"the reward of {run} came from Python (own)", "--reward path/file.py:function"
    )
    judged = call("eval", run, "--n", 2, "--reward", vowels)
    assert judged.code == 0, judged.err
    assert "trained with the workflow Twice" in judged.err
    assert call("generate", run, "--prompt", "x", "--max-new-tokens", 2).code == 0
    refused(
        call("train", "--resume", run), f"{run} was started with reward own, workflow Twice from Python", "brings nothing",
        f"PPOTrainer(config, rewards=[own], resume='{run}').train(workflow=Twice(...))",
    )  # fmt: skip
    (run / "python.json").write_text("[]")
    refused(call("eval", run), f"{run}/python.json: not a note of what Python brought")


def test_wrong_targets_are_named(tmp_path: Path) -> None:
    refused(call("train", tmp_path / "no.yaml"), f"cannot read {tmp_path}/no.yaml: No such file or directory")
    refused(
        call("train", "grop"),
        "grop: neither a YAML file nor a preset. Near: grpo. Presets: reinforce, rft, online_rft, ppo",
    )
    refused(call("train", "--resume", tmp_path), f"{tmp_path} is not a run folder", "config.yaml")
    nothing = call("train")
    assert nothing.code == 2
    assert "--resume RUN" in nothing.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "ppo_penalty", "areal_ppo"])
def test_an_algorithm_with_a_critic_is_trained_and_explained(tmp_path: Path, words, name: str) -> None:
    ended = call("train", name, *words(total_train_steps=2))
    assert ended.code == 0, ended.err
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    last = read_metrics(folder / "metrics.jsonl")[-1].metrics
    assert {
        "critic/loss",
        "critic/lr",
        "critic/grad_norm",
        "critic/optimizer_steps",
        "critic/value",
        "critic/return",
    } <= last.keys()
    assert "critic" in ended.out and "the starting policy with a value head" in ended.out
    assert call("explain", name).code == 0


def test_rows_that_cannot_be_used_are_named(tmp_path: Path, words) -> None:
    empty, rows, broken = tmp_path / "empty.jsonl", tmp_path / "rows.jsonl", tmp_path / "broken.jsonl"
    empty.write_text("\n")
    rows.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "", "answer": "3"}\n')
    broken.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": \n')

    def with_rows(file: Path) -> Ended:
        return call("train", "grpo", *words(train_dataset__path=file, train_dataset__size=None))

    refused(with_rows(empty), f"train_dataset: {empty}: no rows")
    refused(with_rows(tmp_path / "row.jsonl"), "row.jsonl: no such file", "rows.jsonl")
    refused(with_rows(rows), "1 of 2 rows cannot be used", "rows.jsonl row 2", "on_bad_row=skip")
    refused(with_rows(broken), f"{broken}:2: broken JSON")


@pytest.mark.slow
def test_prompts_that_do_not_fit_the_context(words) -> None:
    refused(
        call("train", "grpo", *words(gconfig__max_new_tokens=500)),
        "train_dataset: 40 of 40 prompts are too long", "at most 12 are allowed", "context 512 with 500 reserved",
        "lower gconfig.max_new_tokens",
    )  # fmt: skip
    some = words(train_dataset__max_length=37)
    refused(
        call("train", "grpo", *some, "train_dataset.too_long=error"),
        "9 of 40 prompts are too long", "has 38 tokens, at most 37", "set too_long=skip",
    )  # fmt: skip
    dropped = call("train", "grpo", *some)
    assert dropped.code == 0, dropped.err
    assert "9 of 40 prompts left out: over 37 tokens" in dropped.out


def test_a_model_without_a_chat_template(tmp_path: Path, words, model_folder: Path) -> None:
    base = shutil.copytree(model_folder, tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    refused(
        call("train", "grpo", *words(actor__path=base)), str(base), "has no chat template", "set chat_template", "none"
    )
    bare = call("train", "grpo", *words(actor__path=base), "train_dataset.chat_template=none")
    assert bare.code == 0, bare.err


@pytest.mark.slow
def test_an_unknown_model_name_without_a_network(words) -> None:
    ended = finish(start("-m", "partita.cli", "train", "grpo", *words(actor__path="some/model")))
    refused(
        ended, "some/model: no folder of this name here", "HF_HUB_OFFLINE=1", "hf download some/model", "smollm2-135m"
    )


def test_the_start_says_what_is_assumed_and_what_has_no_effect(words) -> None:
    changes = [
        "actor.kl_ctl=0.1",
        "actor.overlong_tokens=4",
        "dynamic_bs=true",
        "gconfig.top_p=0.9",
        "gconfig.allow_truncated_sampling=true",
    ]
    ended = call("train", "grpo", *words(), *changes)
    assert ended.code == 0, ended.err
    lines = {line.split()[0]: line for line in ended.out.splitlines() if line.startswith("  ") and line.split()}
    assert "the starting policy, float32" in lines["reference"]
    assert "KL" in lines["reference"]
    assert "actor.overlong_tokens 4: no effect, needs actor.overlong_reward_penalty: true" in lines["inactive"]
    assert "dynamic_bs True: no effect, needs actor.dynamic_sampling" in lines["inactive"]
    assert "samples are drawn with top_p=0.9" in ended.out
    assert "biased" in ended.out


def test_a_batch_without_any_difference_is_counted_and_the_run_goes_on(tmp_path: Path, words) -> None:
    same = words(reward__functions=reward_file(tmp_path, "return 0.0"), total_train_steps=2, actor__kl_loss_coef=0.0)
    ended = call("train", "grpo", *same)
    assert ended.code == 0, ended.err
    for line in metrics(tmp_path):
        assert line["dead_steps"] == 1
        assert line["zero_variance_groups"] == 1
        assert "optimizer_steps" not in line
    assert "optimizer steps without a learning signal, left out: 2" in ended.out


def test_a_reward_that_always_raises_ends_the_run_with_its_traceback(tmp_path: Path, words) -> None:
    broken = reward_file(tmp_path, 'raise KeyError("no such column")')
    ended = call("train", "grpo", *words(reward__functions=broken))
    assert ended.code == 1
    assert "8 of 8 samples have no reward because of errors (reward.max_error_share=0.5)" in ended.err
    assert "own: KeyError: 'no such column'" in ended.err
    assert f'File "{tmp_path}/own.py", line 3, in own' in ended.err
    assert metrics(tmp_path) == []


def test_a_reward_that_hangs_costs_its_own_sample_only(tmp_path: Path, words) -> None:
    # two of the six prompts have such an answer
    hangs = reward_file(tmp_path, "time.sleep(60 * (int(answer) > 20)); return len(response) % 3")
    slow = words(
        reward__functions=hangs, reward__timeout_seconds=0.3, reward__max_error_share=0.9, reward__processes=12,
        train_dataset__batch_size=6, gconfig__n_samples=2,
    )  # fmt: skip
    ended = call("train", "grpo", *slow)
    assert ended.code == 0, ended.err
    [line] = metrics(tmp_path)
    rows = [json.loads(row) for row in (tmp_path / "runs/tiny/t/samples/step_000001.jsonl").read_text().splitlines()]
    failed = [row for row in rows if row["status"] == "reward_error"]
    assert len(failed) == 12 * line["reward/error_share"]
    assert 0 < len(failed) < 12
    assert all("no result within 0.3 seconds (reward.timeout_seconds)" in row["error"] for row in failed)
    assert all(row["reward"] is None and set(row["advantages"]) == {0.0} for row in failed)
    assert all(row["reward"] is not None for row in rows if row not in failed)
    assert line["time/sample"] < 10
    assert line["optimizer_steps"] == 1


@pytest.mark.slow
def test_a_run_that_diverges_ends_and_keeps_its_last_whole_checkpoint(tmp_path: Path, words) -> None:
    # from the fourth step on the loss is beyond float32
    stages = "[{until: {step: 3}}, {set: {actor: {entropy_coef: 1.0e39}}}]"
    torn = words(total_train_steps=8, checkpoint__freq_steps=1, stages=stages)
    ended = call("train", "grpo", *torn)
    assert ended.code == 1
    assert "3 optimizer steps in a row had a non-finite loss or gradient" in ended.err
    assert "actor.optimizer.lr" in ended.err
    assert "Traceback" not in ended.err
    assert f"partita train --resume {tmp_path}/runs/tiny/t" in ended.out
    lines = metrics(tmp_path)
    skipped = [line["step"] for line in lines if line.get("nonfinite_steps") == 1]
    assert skipped == [lines[-1]["step"] - 1, lines[-1]["step"]]  # the third one ended the run before its line
    assert all("grad_norm" not in line for line in lines if line["step"] in skipped)
    assert call("export", tmp_path / "runs/tiny/t", tmp_path / "model").code == 0
    assert all(bool(t.isfinite().all()) for t in load_file(tmp_path / "model" / "model.safetensors").values())


@pytest.mark.slow
def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, words) -> None:
    saving = call("train", "grpo", *words(checkpoint__freq_steps=1, actor__optimizer__lr=1e38))
    assert saving.code == 1
    assert "step 1: the weights of actor are not finite and were not saved. Lower actor.optimizer.lr" in saving.err
    sampling = call("train", "grpo", *words(trial_name="u", total_train_steps=3, actor__optimizer__lr=1e38))
    assert sampling.code == 1
    assert "cannot be sampled from" in sampling.err
    assert "Lower actor.optimizer.lr" in sampling.err
    assert not list((tmp_path / "runs").rglob("model.safetensors"))


def test_a_taken_trial_name_is_refused(trained: Path, trained_words: list[str]) -> None:
    refused(
        call("train", "grpo", *trained_words), f"{trained} holds a run already", f"--resume {trained}", "trial_name"
    )


def test_an_output_folder_that_cannot_be_made(tmp_path: Path, words) -> None:
    (tmp_path / "runs").write_text("a file")
    refused(
        call("train", "grpo", *words()), f"{tmp_path}/runs/tiny cannot be made", "Not a directory", "set output_dir"
    )


def test_config_prints_the_source_of_values_and_loads_again(tmp_path: Path, trained: Path, words) -> None:
    printed = call("config", "grpo", *words(seed=7))
    assert printed.code == 0
    sources = {
        line.split(":")[0].strip(): line.split("#")[-1].strip() for line in printed.out.splitlines() if "#" in line
    }
    assert sources["seed"] == "command line"
    assert sources["kl_loss_coef"].startswith("preset grpo")
    assert sources["discount"] == "default"
    (tmp_path / "again.yaml").write_text(printed.out)
    again = call("config", tmp_path / "again.yaml")
    assert [line.split("  #")[0].rstrip() for line in again.out.splitlines()] == [
        line.split("  #")[0].rstrip() for line in printed.out.splitlines()
    ]
    assert call("config", trained / "config.yaml").code == 0
    refused(call("config", "grpo", "gconfig.n_samples=1"), "actor.adv_norm.mean_level")


@pytest.mark.slow
def test_generate_on_a_run_folder_depends_on_the_seed_only(trained: Path) -> None:
    def said(seed: int) -> str:
        ended = call(
            "generate", trained, "--prompt", "What is 1 + 2?", "--samples", 3, "--temperature", 1, "--seed", seed,
            "--max-new-tokens", 6,
        )  # fmt: skip
        assert ended.code == 0, ended.err
        return ended.out

    assert said(1) == said(1) != said(2)
    refused(call("generate", trained, "--prompt", 600 * "x"), "prompt: 1 of 1", "at most 511", "fills the context")


def test_eval_reports_a_mean_with_its_interval_and_compares_in_pairs(trained: Path, model_folder: Path) -> None:
    ended = call("eval", trained, "--n", 6, "--samples", 2, "--compare")
    assert ended.code == 0, ended.err
    after, before, difference = ended.out.splitlines()[:3]
    for line, model in ((after, trained / "export"), (before, model_folder)):
        assert line.startswith(f"{model}: ")
        assert "95 % interval" in line
        assert "on 6 held-out prompts, 2 samples each, temperature 1" in line
    assert difference.startswith("difference on the same prompts: ")
    assert "95 % interval" in difference
    means = [float(line.split(": ")[1].split(" ")[0]) for line in (after, before, difference)]
    assert means[0] - means[1] == pytest.approx(means[2], abs=0.0011)
    refused(call("eval", model_folder, "--compare"), f"{model_folder} is not a run folder")


def test_eval_on_rows_of_ones_own(tmp_path: Path, trained: Path) -> None:
    rows = tmp_path / "held_out.jsonl"
    rows.write_text("".join(f'{{"question": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(5)))
    ended = call("eval", trained, "--task", rows)
    assert ended.code == 0, ended.err
    assert "on 5 held-out prompts, greedy" in ended.out
    refused(call("eval", trained, "--task", tmp_path / "no.jsonl"), "valid_dataset", "no such file")


def test_export_of_an_earlier_step_and_of_none(tmp_path: Path, trained: Path) -> None:
    assert call("export", trained, tmp_path / "two", "--step", 2).code == 0
    assert call("export", trained, tmp_path / "newest").code == 0
    weights = [folder / "model.safetensors" for folder in (tmp_path / "two", tmp_path / "newest", trained / "export")]
    assert weights[0].read_bytes() != weights[2].read_bytes()
    assert weights[1].read_bytes() == weights[2].read_bytes()
    refused(
        call("export", trained, tmp_path / "x", "--step", 1),
        "no whole checkpoint of step 1",
        "step_000002, step_000003",
    )
    refused(call("export", tmp_path, tmp_path / "x"), f"{tmp_path} is not a run folder")
    refused(call("export", trained, tmp_path), f"{tmp_path} exists and is not an empty folder")
    assert weights[0].exists()  # what was there is still there


def test_a_run_that_did_not_end_says_how_to_play_with_it(tmp_path: Path, trained: Path) -> None:
    cut = shutil.copytree(trained, tmp_path / "cut")
    shutil.rmtree(cut / "export")
    refused(call("generate", cut, "--prompt", "x"), f"{cut} has no export/", f"--resume {cut}", f"partita export {cut}")


LOAD = """
import sys
from transformers import pipeline
chat = pipeline("text-generation", model=sys.argv[1])
print(repr(chat([{"role": "user", "content": "What is 1 + 2?"}], max_new_tokens=5)[0]["generated_text"][-1]["content"]))
"""


@pytest.mark.slow
def test_the_export_is_a_model_for_transformers_in_another_process(trained: Path) -> None:
    ended = finish(start("-c", LOAD, trained / "export"))
    assert ended.code == 0, ended.err
    assert ended.out.strip().startswith(("'", '"'))


ROWS = [(f"Tom has {i} apples and buys {i + 1} more. How many are there?", 2 * i + 1) for i in range(8)]


@pytest.mark.slow
def test_the_gsm8k_example_runs_on_rows_of_that_layout(tmp_path: Path, model_folder: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": q, "answer": f"Add them.\n#### {gold}"}) + "\n" for q, gold in ROWS)
    )
    math = Path(__file__).parent.parent / "examples" / "math"
    changed = [
        "scheduler.type=local",
        f"actor.path={model_folder}",
        f"train_dataset.path={rows}",
        f"output_dir={tmp_path}",
    ]
    short = ["gconfig.max_new_tokens=16", "total_train_steps=1", "report.console=plain"]
    script = (math / "gsm8k_rl.py", "--config", math / "gsm8k_grpo.yaml")
    running, refusing = start(*script, *changed, *short), start(*script, *changed, "train_dataset.path=gone.jsonl")
    ended = finish(running)
    assert ended.code == 0, ended.err
    folder = tmp_path / "gsm8k-grpo" / "001"
    [line] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert "reward/math_correct" in line
    samples = [json.loads(row) for row in (folder / "samples/step_000001.jsonl").read_text().splitlines()]
    assert len(samples) == 32
    assert all("within \\boxed{}" in row["prompt"] for row in samples)
    assert run_config_of(folder, []).value.actor.path == str(model_folder)
    refused(finish(refusing), "train_dataset: gone.jsonl: no such file")
