"""Training from Python, and what a run leaves behind: files from which it can be read, played and computed again."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from running import lines_of, settings
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import partita
from partita.config import ConfigError
from partita.records import Sample
from partita.report.sinks import read_samples
from partita.rollout.workflow import Episode, SingleTurn
from partita.run import RunConfig, load_run_config
from partita.runfolder import RunFolderError, run_config_of
from partita.tasks.dataset import DataError
from partita.trainer import QUICKSTART, run_async

pytestmark = pytest.mark.slow  # whole runs, one after another

INSTRUCTION = 'Put it within \\boxed{}: it\'s "fine", # not a comment'


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side, and threads that wait for a core spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def config(tmp_path: Path, model_folder: Path, vowels: str):
    """A validated config of a small run."""

    def make(**changed: object) -> RunConfig:
        given = {"algorithm": "grpo", "actor__path": model_folder, "reward__functions": f"[{vowels}]"} | changed
        return load_run_config([QUICKSTART], settings(tmp_path / "runs", **given)).value

    return make


def test_a_run_folder_has_all_that_was_configured_measured_and_sampled(trained: Path, trained_words: list[str]) -> None:
    given = load_run_config([QUICKSTART], ["algorithm=grpo", *trained_words]).value
    assert run_config_of(trained, []).value == given
    lines = lines_of(trained)
    assert [line["step"] for line in lines] == [1, 2, 3]
    named = {
        "reward/mean", "reward/vowels", "reward/error_share", "response_length/mean", "truncated", "zero_variance_groups",
        "loss", "grad_norm", "lr", "entropy", "kl_ref/k3", "kl_step/k3", "mismatch/k3", "clip_fraction", "effective_tokens",
        "optimizer_steps", "tokens_per_second", "time/step", "time/sample", "time/score", "time/credit", "time/learn",
        "time/publish",
    }  # fmt: skip
    assert all(named <= line.keys() for line in lines)
    assert all(line["mismatch/k3"] < 1e-8 for line in lines)  # sampled and trained in float32
    assert [path.name for path in sorted((trained / "samples").iterdir())] == [
        f"step_00000{k}.jsonl" for k in (1, 2, 3)
    ]
    assert [path.name for path in sorted((trained / "checkpoints").iterdir())] == ["step_000002", "step_000003"]
    assert "<svg" in (trained / "reward.svg").read_text()
    saved = load_file(trained / "checkpoints" / "step_000003" / "model.safetensors")
    for name, tensor in load_file(trained / "export" / "model.safetensors").items():
        assert torch.equal(tensor, saved[f"lm.{name}"])


def test_the_loss_of_a_step_can_be_computed_from_its_samples(trained: Path, model_folder: Path) -> None:
    """GRPO by hand on transformers' own forward: group z-scores, every response the same weight, an entropy bonus.

    On policy every ratio is 1, and the reference is the policy itself, so that the KL is 0.
    """
    rows = read_samples(trained / "samples" / "step_000001.jsonl")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    rewards: dict[int, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["group"], []).append(row["reward"])
    assert {len(group) for group in rewards.values()} == {4}
    assert len(rewards) == 3
    loss, entropies = 0.0, []
    for row in rows:
        [sequence] = row["rows"]
        group = torch.tensor(rewards[row["group"]], dtype=torch.float64)
        advantage = (row["reward"] - group.mean()) / (group.std() + 1e-6)
        assert row["advantages"] == pytest.approx([float(advantage)] * row["length"], abs=1e-5)
        with torch.no_grad():
            log_NV = model(torch.tensor([sequence["ids"]])).logits[0].log_softmax(-1)
        entropy_N = -(log_NV.exp() * log_NV).sum(-1)
        trained_at = [i for i, yes in enumerate(sequence["trained"]) if yes]
        assert len(trained_at) == row["length"]
        for i in trained_at:
            token = sequence["ids"][i]
            assert sequence["behaviour_logprobs"][i] == pytest.approx(float(log_NV[i - 1, token]), abs=1e-4)
            assert sequence["versions"][i] == 0
            entropy = float(entropy_N[i - 1])
            loss -= (float(advantage) + 0.05 * entropy) / row["length"] / len(rows)
            entropies.append(entropy)
    [first, *_] = lines_of(trained)
    assert first["loss"] == pytest.approx(loss, abs=1e-5)
    assert abs(loss) > 0.1  # the entropy term alone is: the comparison means something
    assert first["entropy"] == pytest.approx(sum(entropies) / len(entropies), abs=1e-5)
    assert first["reward/mean"] == pytest.approx(sum(map(sum, rewards.values())) / len(rows))


def test_train_in_one_call_with_a_function_of_the_caller(tmp_path: Path, model_folder: Path) -> None:
    wanted = "aeiou"  # a closure: it cannot be imported by a worker

    def own(response: str, answer: str) -> dict[str, float]:
        found = sum(c in wanted for c in response.lower())
        return {"score": found / (1 + len(response)), "digits": float(len(answer))}

    result = partita.train(
        model=str(model_folder), task="addition", reward=own, algorithm="drgrpo",
        output_dir=str(tmp_path), experiment_name="call", total_train_steps=2, train_dataset__batch_size=2,
        gconfig__n_samples=4, gconfig__max_new_tokens=8, report__console="quiet", actor__optimizer__lr=1e-3,
        train_dataset__size=40,
    )  # fmt: skip
    assert result.folder == tmp_path / "call" / "001"
    assert [record.step for record in result.history] == [1, 2]
    assert {"reward/own", "reward/own/digits"} <= result.history[0].metrics.keys()
    assert "2 steps, reward" in repr(result)
    assert run_config_of(result.folder, []).value.actor.loss_agg_mode == "seq_mean_token_sum_norm"
    assert AutoModelForCausalLM.from_pretrained(result.model).config.hidden_size == 32


def test_train_inside_a_running_event_loop(tmp_path: Path, model_folder: Path) -> None:
    async def cell() -> RunConfig:
        result = partita.train(
            model=str(model_folder), task="addition", reward="last_number_correct", output_dir=str(tmp_path),
            total_train_steps=1, train_dataset__batch_size=2, train_dataset__size=40, gconfig__max_new_tokens=4,
            report__console="quiet", train_dataset__instruction=INSTRUCTION, actor__eps_clip_higher=None,
            evaluator__temperature=1e-5, experiment_name="007",
        )  # fmt: skip
        assert [record.step for record in result.history] == [1]
        return run_config_of(result.folder, []).value

    kept = asyncio.run(cell())
    assert kept.train_dataset.instruction == INSTRUCTION
    assert kept.actor.eps_clip_higher is None  # 0.28 in the quickstart: None is a value
    assert (kept.evaluator.temperature, kept.experiment_name) == (1e-5, "007")

    async def mistaken() -> None:
        partita.train(model=str(model_folder), task="additon", output_dir=str(tmp_path), report__console="quiet")

    with pytest.raises(DataError, match="near: addition"):
        asyncio.run(mistaken())


def test_wrong_keywords_are_named() -> None:
    with pytest.raises(ConfigError, match=r"actor\.optimizer\.lrr: unknown key\. Near: lr"):
        partita.train(actor__optimizer__lrr=1.0)
    with pytest.raises(ConfigError, match="'grop'"):
        partita.train(algorithm="grop")


class Twice:
    """A workflow of the caller's: asks twice and trains on the second answer only."""

    def __init__(self) -> None:
        self.first: list[str] = []

    async def run(self, episode: Episode) -> Sample:
        completion = await episode.generate(episode.prompt.ids)
        self.first.append(completion.text)
        return await SingleTurn().run(episode)


def test_a_workflow_and_a_filter_from_python(config) -> None:
    workflow, seen = Twice(), []

    def mixed(x: dict) -> bool:
        seen.append(x["rewards"].tolist())
        return 0 < x["rewards"].mean() < 1

    trainer = partita.PPOTrainer(config(total_train_steps=2, report__console="quiet"))
    folder = trainer.train(workflow=workflow, dynamic_filter_fn=mixed)
    kept = [row for k in (1, 2) for row in read_samples(folder / "samples" / f"step_00000{k}.jsonl")]
    assert len(kept) == 2 * 2 * 4
    assert len(workflow.first) == 4 * len(seen) >= 16
    assert all(len(rewards) == 4 for rewards in seen)
    groups = {row["group"]: [r["reward"] for r in kept if r["group"] == row["group"]] for row in kept}
    assert list(groups.values()) == [rewards for rewards in seen if 0 < sum(rewards) / 4 < 1]


def vowel_share(response: str) -> float:
    return sum(c in "aeiou" for c in response) / (1 + len(response))


def test_a_resume_brings_from_python_what_the_start_brought(config) -> None:
    first = config(total_train_steps=1, report__console="quiet")
    folder = partita.PPOTrainer(first, rewards=[vowel_share]).train(workflow=Twice(), dynamic_filter_fn=lambda _: True)
    brought = {"rewards": ["vowel_share"], "workflow": "Twice", "filter": True}
    assert json.loads((folder / "python.json").read_text()) == brought
    longer = config(total_train_steps=2, report__console="quiet")
    whole = rf"rewards=\[vowel_share\], resume='{folder}'\)\.train\(workflow=Twice\(\.\.\.\), dynamic_filter_fn"
    with pytest.raises(RunFolderError, match=whole):
        partita.PPOTrainer(longer, rewards=[vowel_share], resume=folder).train(workflow=Twice())
    with pytest.raises(RunFolderError, match="this resume brings nothing"):
        partita.PPOTrainer(longer, resume=folder).train()
    trainer = partita.PPOTrainer(longer, rewards=[vowel_share], resume=str(folder))
    assert trainer.train(workflow=Twice(), dynamic_filter_fn=lambda _: True) == folder
    assert [line["step"] for line in lines_of(folder)] == [1, 2]
    assert "reward/vowel_share" in lines_of(folder)[1]


def test_a_run_of_its_config_alone_has_no_note_and_is_not_resumed_with_another_reward(config) -> None:
    given = config(total_train_steps=1, report__console="quiet")
    folder = partita.PPOTrainer(given).train()
    assert not (folder / "python.json").exists()
    with pytest.raises(RunFolderError, match=f"Go on with: partita train --resume {folder}"):
        partita.PPOTrainer(given, rewards=[vowel_share], resume=folder).train()


def test_an_interrupt_in_a_notebook_ends_the_training_first() -> None:
    seen: list[str] = []

    async def endless() -> Path:
        try:
            while True:
                await asyncio.sleep(0.01)
        finally:
            seen.append("ended")

    async def cell() -> None:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run_async(endless())
        assert seen == ["ended"]

    # a test runner that was started in the background of a shell ignores interrupts; a notebook does not
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()  # as in a notebook: asyncio.run would catch the first interrupt itself
    try:
        loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)
    assert not [thread for thread in threading.enumerate() if thread.name == "partita-train" and thread.is_alive()]


class Crashes:
    async def run(self, episode: Episode) -> Sample:
        await episode.generate(episode.prompt.ids)
        raise LookupError("the environment is gone")


def test_a_workflow_that_raises_ends_the_run_with_its_own_error(config) -> None:
    with pytest.raises(LookupError, match="the environment is gone"):
        partita.PPOTrainer(config(report__console="quiet")).train(workflow=Crashes())
