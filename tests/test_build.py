"""How the parts of a run are opened and closed."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import settings
from tiny_model import byte_tokenizer, make

from partita.build import build, ended_by, longest
from partita.config import ConfigError
from partita.extras import Extras
from partita.loop import train
from partita.models.load import ModelLoadError, load_tokenizer
from partita.rollout.workflow import SingleTurn
from partita.run import load_run_config
from partita.run_models import load_policy
from partita.runner import Run


def test_an_error_while_closing_hides_nothing_and_skips_nothing() -> None:
    closed = []

    def engine() -> None:
        raise RuntimeError("the engine did not end")

    with (
        pytest.warns(UserWarning, match="while ending: the engine did not end"),
        pytest.raises(LookupError, match="mine"),
        ended_by(lambda: closed.append("scorer")),
        ended_by(engine),
    ):
        raise LookupError("mine")
    with pytest.raises(RuntimeError, match="did not end"), ended_by(lambda: closed.append("scorer")), ended_by(engine):
        pass
    assert closed == ["scorer", "scorer"]


def test_another_tokenizer_brings_its_stop_ids(tmp_path: Path, model_folder: Path) -> None:
    other = byte_tokenizer()
    other.eos_token = "!"
    other.save_pretrained(tmp_path / "words")
    config = load_run_config([], ["total_train_steps=1", f"actor.path={model_folder}"]).value
    own = load_policy(config, torch.device("cpu"))
    both = load_policy(replace(config, tokenizer_path=str(tmp_path / "words")), torch.device("cpu"))
    assert (own.tokenizer.eos_token, both.tokenizer.eos_token) == ("<eos>", "!")
    assert set(both.stop_ids) == {*own.stop_ids, other.convert_tokens_to_ids("!")} != set(own.stop_ids)
    same = load_policy(replace(config, tokenizer_path=config.actor.path), torch.device("cpu"))
    assert same.stop_ids == own.stop_ids


def test_a_tokenizer_that_is_not_there_is_named_before_the_model_loads(tmp_path: Path) -> None:
    words = ["total_train_steps=1", "actor.path=./no/model", "tokenizer_path=./no/words"]
    with pytest.raises(ModelLoadError, match=r"\./no/words: no such folder"):
        load_policy(load_run_config([], words).value, torch.device("cpu"))


@pytest.mark.slow
def test_the_embedded_model_names_its_tokenizer_too() -> None:
    assert load_tokenizer("smollm2-135m").eos_token == "<|im_end|>"


@pytest.fixture
def built(tmp_path: Path, model_folder: Path, vowels: str):
    """A run that is ready to train, with some words of config and what Python brings."""

    @contextmanager
    def made(preset: str, *words: str, extras: Extras | None = None, functions: str | None = None) -> Iterator[Run]:
        given = settings(
            tmp_path, actor__path=model_folder, reward__functions=functions or f"[{vowels}]", trial_name="t"
        )
        config = load_run_config([], [f"algorithm={preset}", *given, "report.console=quiet", *words]).value
        with build(config, extras or Extras()) as run:
            yield run

    return made


def alphabet(response: str) -> float:
    return float(len(response))


def zeal(response: str) -> float:
    return float("a" in response)


@pytest.mark.slow
def test_weights_belong_to_reward_functions_whatever_their_order(built, vowels: str) -> None:
    words = ["actor.adv_norm=null", "actor.reward_norm={mean_level: group}", "actor.reward_norm_per_part=true"]
    named = f"[{vowels},last_number_correct]"
    with built("drgrpo", *words, "reward.weights=[2, 3]", functions=named) as run:
        assert run.part_names == ("last_number_correct", "vowels")
        assert run.algorithm.shape[0].weights == (3.0, 2.0)
        asyncio.run(train(run))
    own, both = Extras([zeal, alphabet]), [*words, "reward.weights=[2, 3]", "trial_name=u"]
    with built("drgrpo", *both, functions="[]", extras=own) as run:
        assert run.part_names == ("alphabet", "zeal")
        assert run.algorithm.shape[0].weights == (3.0, 2.0)
        asyncio.run(train(run))
    with built("drgrpo", *words, "trial_name=v") as run:
        assert run.algorithm.shape[0].weights == (1.0,)


def test_groups_are_sampled_again_as_configured(built) -> None:
    with built("dapo", "actor.mixed_group_retry=3", "actor.dynamic_sampling.correct_threshold=0.5") as run:
        assert run.rollouts.retry is not None
        assert (run.rollouts.retry.times, run.rollouts.retry.correct_threshold) == (3, 0.5)
        assert run.rollouts.refill is not None
    with built("grpo", "trial_name=u", "actor.kl_loss_coef=0", "actor.mixed_group_retry=1") as run:
        assert run.rollouts.retry is not None
        assert run.rollouts.retry.correct_threshold == 1.0
        assert run.rollouts.refill is None


@pytest.mark.slow
def test_epochs_count_prompts_and_not_steps(built) -> None:
    words = ["total_train_steps=null", "total_train_epochs=2", "train_dataset.size=5"]
    with built("drgrpo", *words) as run:
        assert (run.steps, run.rollouts.prompt_limit) == (5, 10)
        asyncio.run(train(run))
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["prompts_used"] for line in lines] == [2, 4, 6, 8, 10]
    with built("drgrpo", *words, "train_dataset.batch_size=4", "trial_name=u") as run:
        assert run.steps == 3
    staged = "stages=[{until: {step: 1}, set: {train_dataset.batch_size: 5}}, {}]"
    with built("drgrpo", *words, staged, "trial_name=v") as run:
        asyncio.run(train(run))
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["prompts_used"] for line in lines] == [5, 7, 9, 10]


@pytest.mark.slow
def test_prompts_leave_room_for_the_longest_response_of_any_stage(built) -> None:
    stages = "stages=[{until: {step: 1}, set: {gconfig.max_new_tokens: 4}}, {set: {gconfig.max_new_tokens: 300}}]"
    words = [stages, "evaluator.freq_steps=1", "evaluator.n_prompts=2"]
    with built("drgrpo", *words) as run:
        assert longest(run.config) == 300
        assert run.rollouts.sampling.max_new_tokens == 4
        assert run.eval_plan is not None
        assert run.eval_plan.sampling.max_new_tokens == 300  # so that evaluations can be compared over the run


@pytest.mark.slow
def test_one_reference_serves_all_stages(built) -> None:
    full = "stages=[{until: {step: 1}}, {set: {actor.kl_loss_coef: 0.1, actor.kl_loss_estimator: full}}]"
    with built("drgrpo", full) as run:
        assert "kl_full_ref" not in run.algorithm.needs
        assert run.learner.reference is not None
    with built("drgrpo", "trial_name=u") as run:
        assert run.learner.reference is None


def test_a_reference_of_another_tokenizer_is_refused(built, tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(other)
    words = ["actor.kl_loss_coef=0.1", f"ref.path={other}"]
    with pytest.raises(ModelLoadError, match="their tokenizers differ"), built("drgrpo", *words):
        pass


def test_what_cannot_be_trained_is_refused_before_a_model_loads(built) -> None:
    words = ["actor.credit=process", "actor.path=./no/model"]
    with pytest.raises(ConfigError, match="process needs rewards of single steps"), built("drgrpo", *words):
        pass
    with pytest.raises(ModelLoadError), built("drgrpo", *words, extras=Extras(workflow=SingleTurn())):
        pass
