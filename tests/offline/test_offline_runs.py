"""`partita sft`, `rm` and `dpo` from the command line on a tiny model: what they write, and that others can load it."""

import json
import shutil

import pytest
import torch
from offline_items import plain_logprobs
from offline_runs import PAIRS, ROWS, finished, folder_of, lines_of, outcome, settings, written
from running import call
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from partita.offline.build import build, load_data
from partita.offline.config import load_offline_config
from partita.offline.models import load_model
from partita.ops.packing import pack
from partita.runfolder import CONFIG
from partita.train.config import OptimizerConfig

pytestmark = pytest.mark.slow  # whole runs, one after another

LORA = {"+actor.lora": "{rank: 2}"}
LOSSES = ["sigmoid", "hinge", "ipo", "robust", "simpo", "orpo", "kto"]


@pytest.fixture
def run(tmp_path, model_folder):
    """Runs a command on its rows to the end."""

    def made(kind: str, rows=None, **changed):
        return finished(
            kind, written(tmp_path, ROWS[kind] if rows is None else rows), settings(tmp_path, model_folder, **changed)
        )

    return made


def opened(folder, overrides=()):
    """The run again, at its newest checkpoint."""
    kind = load_kind(folder)
    return build(load_offline_config(kind, folder / CONFIG, ["report.console=quiet", *overrides]).value, folder)


def load_kind(folder) -> str:
    (line,) = [line for line in (folder / CONFIG).read_text().splitlines() if line.startswith("kind:")]
    return line.split()[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_preference_loss_trains(run, loss) -> None:
    rows = ROWS["kto" if loss == "kto" else "dpo"]
    folder, ended = run("dpo", rows, loss__type=loss, total_train_steps=3, train_dataset__batch_size=12)
    lines = lines_of(folder)
    assert [line["optimizer_steps"] for line in lines] == [1, 1, 1]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["preference/accuracy"] >= lines[0]["preference/accuracy"]
    assert f"loss       {loss}: " in ended.out
    with_reference = loss not in ("simpo", "orpo")
    assert (folder / "reference.safetensors").exists() == with_reference
    assert ("reference  the starting model, precomputed" in ended.out) == with_reference
    assert ended.out.startswith("asking the reference about 12 items, once") == with_reference
    assert (folder / "accuracy.svg").exists()
    assert f"{'answers' if loss == 'kto' else 'pairs'} ranked rightly" in ended.out


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_imitation_trains(run, mode) -> None:
    folder, ended = run("sft", loss_agg_mode=mode, total_train_epochs=2)
    lines = lines_of(folder)
    assert len(lines) == 6 and lines[-1]["loss"] < lines[0]["loss"]
    assert [line["epoch"] for line in lines] == pytest.approx([n / 3 for n in range(1, 7)])
    assert f"-log π(answer), {mode}" in ended.out
    assert f"partita sft --resume {folder} total_train_epochs=3" in ended.out


def test_a_trained_policy_loads_in_transformers_and_can_be_asked(run) -> None:
    folder, ended = run("dpo", total_train_steps=2)
    saved = load_file(folder / "checkpoints" / "step_000002" / "model.safetensors")
    lm = AutoModelForCausalLM.from_pretrained(folder / "export")
    for name, p in lm.named_parameters():
        assert torch.equal(p, saved[f"lm.{name}"])
    AutoTokenizer.from_pretrained(folder / "export")
    assert f"partita dpo --resume {folder} total_train_steps=4" in ended.out
    asked = call("generate", folder / "export", "--prompt", "hi", "--max-new-tokens", 2)
    assert asked.code == 0, asked.err


@pytest.mark.parametrize("changed", [{}, LORA])
def test_a_reward_model_loads_in_transformers_with_the_same_scores(run, tmp_path, changed) -> None:
    folder, ended = run("rm", total_train_epochs=2, actor__optimizer__lr=0.01, **changed)
    assert f"partita train FILE reward.model={folder}/export" in ended.out
    with opened(folder) as again:
        items = load_items(folder)
        ours_S = again.learner.scores(items)
    rows = [rows[0].ids for item in items for rows in item.samples]
    tokenizer = AutoTokenizer.from_pretrained(folder / "export")
    scorer = AutoModelForSequenceClassification.from_pretrained(folder / "export").eval()
    assert tokenizer.pad_token_id == scorer.config.pad_token_id != tokenizer.eos_token_id
    with torch.no_grad():
        alone = [scorer(torch.tensor([ids])).logits[0, 0].item() for ids in rows]
        assert alone == pytest.approx(ours_S.tolist(), abs=1e-5)
        for side in ("left", "right"):
            tokenizer.padding_side = side
            batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
            assert scorer(**batch).logits[:, 0].tolist() == pytest.approx(ours_S.tolist(), abs=1e-5)
    stats = json.loads((folder / "export" / "reward_stats.json").read_text())
    assert stats["mean"] == pytest.approx(ours_S.mean().item(), abs=1e-5)
    assert stats["std"] == pytest.approx(ours_S.std(correction=0).item(), abs=1e-5)
    # a text by the folder's own chat template is what was trained on
    said = [{"role": "user", "content": PAIRS[0]["prompt"]}, {"role": "assistant", "content": PAIRS[0]["chosen"]}]
    assert tokenizer.apply_chat_template(said, return_dict=False) == rows[0]


def load_items(folder):
    config = load_offline_config(load_kind(folder), folder / CONFIG).value
    return load_data(config, load_model(config, torch.device("cpu"))).items


def test_a_reward_model_whose_head_has_not_moved_is_exported_without_statistics(run) -> None:
    folder, _ = run("rm", total_train_steps=1, actor__optimizer__lr=0.0)
    assert not (folder / "export" / "reward_stats.json").exists()
    assert (folder / "export" / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_adapters_alone_are_trained_and_merged_into_the_export(run, model_folder, kind) -> None:
    folder, _ = run(kind, total_train_steps=2, actor__optimizer__lr=0.02, **LORA)
    saved = load_file(folder / "checkpoints" / "step_000002" / "model.safetensors")
    assert saved and all("lora" in name for name in saved)
    start, end = load_file(model_folder / "model.safetensors"), load_file(folder / "export" / "model.safetensors")
    assert set(start) == set(end)
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed and all("proj" in name for name in changed)  # embedding, tied head and norms are as they were
    row, lm = load_items(folder)[0].samples[0][0], AutoModelForCausalLM.from_pretrained(folder / "export").eval()
    with opened(folder) as again, torch.no_grad():  # adapters beside their weights
        beside = again.learner.model(pack([[row]], [0]), temperature=1.0).logprobs_T
        merged = plain_logprobs(lm, [row])
    torch.testing.assert_close(merged, beside, rtol=0, atol=1e-5)


def test_three_ways_to_have_a_reference_train_the_same(tmp_path, model_folder) -> None:
    file, found = written(tmp_path, PAIRS), {}
    ways = {
        "precomputed": {}, "online": {}, "adapter_off": {},
        "another": {"ref__path": shutil.copytree(model_folder, tmp_path / "same")},
    }  # fmt: skip
    for way, changed in ways.items():
        log_probs = "precomputed" if way == "another" else way
        given = {
            "trial_name": way,
            "ref__log_probs": log_probs,
            "ref__dtype": "float32",
            "total_train_steps": 4,
            **LORA,
        }
        folder, _ = finished("dpo", file, settings(tmp_path, model_folder, **given, **changed))
        found[way] = lines_of(folder)
        assert (folder / "reference.safetensors").exists() == (log_probs == "precomputed")
    for lines in found.values():
        for got, want in zip(lines, found["precomputed"], strict=True):
            assert got == pytest.approx(want, rel=1e-3, abs=1e-5)
    assert found["precomputed"][0]["preference/margin"] == pytest.approx(0, abs=1e-6)
    assert abs(found["precomputed"][-1]["preference/margin"]) > 1e-4


def test_held_out_rows_are_evaluated_and_not_learned(tmp_path, model_folder) -> None:
    words = settings(tmp_path, model_folder, train_dataset__held_out=0.3, evaluator__freq_steps=1, total_train_epochs=1)
    folder, ended = finished("dpo", written(tmp_path, PAIRS), words)
    lines, held = lines_of(folder), len(PAIRS) - sum(line["items"] for line in lines_of(folder))
    assert 0 < held < len(PAIRS)
    assert all("eval/loss" in line and "eval/preference/accuracy" in line for line in lines)
    assert f"{held:.0f} held out" in ended.out
    assert f"held out: loss {lines[-1]['eval/loss']:.4g}" in ended.out


def test_a_valid_dataset_of_its_own_may_have_bad_rows_left_out(tmp_path, model_folder) -> None:
    rows = [
        *PAIRS,
        {"prompt": "Same?", "chosen": "yes", "rejected": "yes"},
        {"prompt": "Long?", "chosen": "y" * 300, "rejected": "no"},
    ]
    file, other = written(tmp_path, rows), written(tmp_path, PAIRS[:3], "valid")
    words = settings(
        tmp_path, model_folder, train_dataset__max_length=120, valid_dataset__path=other, total_train_epochs=1,
        evaluator__size=2,
    )  # fmt: skip
    folder, ended = finished("dpo", file, words)
    assert "2 of 14 rows left out: " in ended.out
    assert "over 120 tokens" in ended.out
    assert "4 of 12 items, 2 held out" in ended.out
    assert "eval/loss" in lines_of(folder)[-1] and "eval/loss" not in lines_of(folder)[0]


def test_a_pair_of_which_one_side_is_too_long_is_left_out_whole(tmp_path, model_folder) -> None:
    rows = [{"prompt": f"Q{n}", "chosen": f"c{n}", "rejected": f"r{n}" + "." * 200 * (n == 2)} for n in range(5)]
    words = settings(tmp_path, model_folder, train_dataset__max_length=100)
    config = load_offline_config("dpo", written(tmp_path, rows), words).value
    loaded = load_model(config, torch.device("cpu"))
    items = load_data(config, loaded).items
    assert len(items) == 4
    for item, n in zip(items, (0, 1, 3, 4), strict=True):
        texts = [loaded.tokenizer.decode(sample[0].ids) for sample in item.samples]
        assert texts == [f"<|user|>Q{n}<eos><|assistant|>{side}{n}<eos>" for side in ("c", "r")]
        for (row,) in item.samples:
            assert all(type(one) is int for one in row.ids)
            assert row.ids[-1] == loaded.tokenizer.eos_token_id and row.trained[-1]  # pad is the end here
            assert loaded.tokenizer.pad_token_id == row.ids[-1]


def test_judged_answers_stand_beside_the_answer_to_another_question_that_fits(tmp_path, model_folder) -> None:
    rows = [
        {"prompt": "A", "completion": "first", "label": True},
        {"prompt": "A", "completion": "second", "label": False},
        {"prompt": "B", "completion": "b" * 60, "label": True},
        {"prompt": "C" * 60, "completion": "c", "label": False},
    ]
    words = settings(tmp_path, model_folder, loss__type="kto", train_dataset__max_length=100)
    config = load_offline_config("dpo", written(tmp_path, rows), words).value
    loaded = load_model(config, torch.device("cpu"))

    def crossed(given) -> list[str | None]:
        made = load_data(given, loaded).items
        return [loaded.tokenizer.decode(item.beside[0][0].ids) if item.beside else None for item in made]

    long = f"<|user|>A<eos><|assistant|>{'b' * 60}<eos>"
    # the answer to the next other question; the last one takes an answer that leaves it within the limit
    assert crossed(config) == [
        long,
        long,
        "<|user|>B<eos><|assistant|>c<eos>",
        f"<|user|>{'C' * 60}<eos><|assistant|>first<eos>",
    ]
    assert [item.good for item in load_data(config, loaded).items] == [True, False, True, False]
    one = written(tmp_path, rows[:2], "one")
    refused = call("dpo", one, *words)
    assert refused.code == 2
    assert "loss.type: kto needs answers to at least two questions, these rows ask one" in refused.err


def test_the_last_step_of_whole_epochs_has_what_is_left(run) -> None:
    folder, _ = run("sft", total_train_epochs=1, train_dataset__batch_size=5)
    lines = lines_of(folder)
    assert [line["items"] for line in lines] == [5, 5, 2]
    assert [line["epoch"] for line in lines] == pytest.approx([5 / 12, 10 / 12, 1.0])
    more = call("sft", "--resume", folder, "total_train_epochs=2")
    assert more.code == 0, more.err
    lines = lines_of(folder)
    assert [line["items"] for line in lines] == [5, 5, 2, 5, 5, 2]  # every row twice
    assert lines[-1]["epoch"] == 2


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo"])
def test_a_finished_run_goes_on_as_if_it_had_been_asked_for_more(tmp_path, model_folder, kind) -> None:
    file = written(tmp_path, ROWS[kind])
    short, _ = finished(kind, file, settings(tmp_path, model_folder, trial_name="short", total_train_steps=2))
    long, _ = finished(kind, file, settings(tmp_path, model_folder, trial_name="long", total_train_steps=4))
    ended = call(kind, "--resume", short, "total_train_steps=4")
    assert ended.code == 0, ended.err
    assert "step 3/4" in ended.out and "step 2/4" not in ended.out
    assert outcome(short) == outcome(long)


def test_a_resumed_run_is_compared_with_the_start_and_not_with_its_checkpoint(tmp_path, model_folder) -> None:
    file = written(tmp_path, PAIRS)
    short, _ = finished("dpo", file, settings(tmp_path, model_folder, trial_name="short", total_train_steps=2))
    long, _ = finished("dpo", file, settings(tmp_path, model_folder, trial_name="long", total_train_steps=4))
    (short / "reference.safetensors").unlink()  # so that it is asked for anew
    assert call("dpo", "--resume", short, "total_train_steps=4").code == 0
    assert outcome(short) == outcome(long)
    for name, log_probs in (("b", "online"), ("c", "adapter_off")):
        given = {"ref__log_probs": log_probs, "ref__dtype": "float32", **LORA}
        short, _ = finished(
            "dpo", file, settings(tmp_path, model_folder, trial_name=f"short_{name}", total_train_steps=2, **given)
        )
        long, _ = finished(
            "dpo", file, settings(tmp_path, model_folder, trial_name=f"long_{name}", total_train_steps=4, **given)
        )
        assert call("dpo", "--resume", short, "total_train_steps=4").code == 0
        assert lines_of(short) == lines_of(long)


def test_held_out_rows_that_come_later_are_compared_with_the_start_too(tmp_path, model_folder) -> None:
    file, valid = written(tmp_path, PAIRS[:8]), written(tmp_path, PAIRS[8:], "valid")
    words = {"total_train_steps": 4, "actor__optimizer__lr": 0.01}
    with_it, _ = finished(
        "dpo", file, settings(tmp_path, model_folder, trial_name="a", valid_dataset__path=valid, **words)
    )
    later, _ = finished(
        "dpo", file, settings(tmp_path, model_folder, trial_name="b", **(words | {"total_train_steps": 2}))
    )
    assert call("dpo", "--resume", later, "total_train_steps=4", f"+valid_dataset={{path: {valid}}}").code == 0
    assert lines_of(later)[-1] == pytest.approx(lines_of(with_it)[-1], rel=1e-4, abs=1e-6)
    assert abs(lines_of(later)[-1]["eval/preference/margin"]) > 1e-4


def test_a_run_may_start_again_under_its_name_where_it_never_came_to_begin(tmp_path, model_folder) -> None:
    words = settings(tmp_path, model_folder, total_train_steps=1)
    folder_of(words).mkdir(parents=True)  # killed while the reference was asked
    finished("dpo", written(tmp_path, PAIRS), words)
    again = call("dpo", written(tmp_path, PAIRS), *words)
    assert again.code == 2 and "holds a run already" in again.err


def test_other_data_cannot_be_gone_on_with(tmp_path, model_folder) -> None:
    folder, _ = finished("sft", written(tmp_path, ROWS["sft"]), settings(tmp_path, model_folder, total_train_steps=1))
    other = written(tmp_path, ROWS["sft"][:6], "other")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    refused = call("sft", "--resume", folder, f"train_dataset.path={other}", "total_train_steps=2")
    assert refused.code == 2
    assert "step_000001 cannot be continued with this config: the saved data position is for items=12" in refused.err
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("kind, other", [("sft", "dpo"), ("dpo", "rm"), ("rm", "sft")])
def test_a_run_of_another_command_is_named(run, kind, other) -> None:
    folder, _ = run(kind, total_train_steps=1)
    refused = call(other, "--resume", folder)
    assert refused.code == 2
    assert f"a config of `partita {kind}`, not of `partita {other}`: use that command" in refused.err


@pytest.mark.parametrize(
    "kind, rows, told",
    [
        ("sft", PAIRS, "the filled columns are prompt, chosen, rejected, margin; expected messages"),
        ("dpo", ROWS["sft"], "no chosen and no rejected"),
        ("rm", [], "no rows"),
    ],
)
def test_rows_of_another_kind_are_refused_with_their_numbers(tmp_path, model_folder, kind, rows, told) -> None:
    refused = call(kind, written(tmp_path, rows), *settings(tmp_path, model_folder))
    assert refused.code == 2
    assert told in refused.err and "train_dataset: " in refused.err
    assert not (tmp_path / "tiny").exists()  # no folder for a run that never was


def test_steps_that_are_not_finite_end_the_run_with_code_1(tmp_path, model_folder) -> None:
    rows = [one | {"margin": 1e300} for one in PAIRS]  # more than float32 holds
    words = settings(tmp_path, model_folder, total_train_steps=9)
    ended = call("rm", written(tmp_path, rows), *words)
    assert ended.code == 1
    assert "3 optimizer steps in a row had a non-finite loss or gradient (last: step 3, loss inf" in ended.err
    assert "Traceback" not in ended.err


def test_the_rate_falls_over_the_steps_of_all_epochs(run) -> None:
    folder, _ = run(
        "sft", total_train_epochs=1, actor__optimizer__lr_scheduler_type="cosine", actor__optimizer__lr=0.01
    )
    spec = OptimizerConfig(lr=0.01, lr_scheduler_type="cosine")
    rates = [line["lr"] for line in lines_of(folder)]
    assert rates == pytest.approx([spec.rate(step, 3) for step in range(3)])
    assert rates[0] > rates[1] > rates[2]


def test_a_model_that_adapters_were_merged_into_is_its_own_reference(run, tmp_path, model_folder) -> None:
    start, _ = run("sft", total_train_steps=3, actor__optimizer__lr=0.05, experiment_name="start", **LORA)
    file, given = written(tmp_path, PAIRS), {"ref__log_probs": "adapter_off", "total_train_steps": 2, **LORA}
    folder, _ = finished("dpo", file, settings(tmp_path, start / "export", **given))
    assert lines_of(folder)[0]["preference/margin"] == 0  # not how far the first adapters have moved it
    assert lines_of(folder)[1]["preference/margin"] != 0


@pytest.mark.parametrize("changed", [{}, LORA])
def test_recomputed_activations_change_nothing(tmp_path, model_folder, changed) -> None:
    found = []
    for name in ("false", "true"):
        given = {"trial_name": name, "actor__gradient_checkpointing": name, "total_train_steps": 2, **changed}
        folder, _ = finished("dpo", written(tmp_path, PAIRS), settings(tmp_path, model_folder, **given))
        found.append(lines_of(folder))
    for got, want in zip(*found, strict=True):
        assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
