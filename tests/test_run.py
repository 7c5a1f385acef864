"""The config of a run: what its sections say to each other."""

import pytest

from partita.config import ConfigError
from partita.run import RunConfig, load_run_config, without_effect


def config(*words: str) -> RunConfig:
    return load_run_config([], ["total_train_steps=3", *words]).value


def idle(*words: str, needs_reference: bool = False, filtered: bool = False, held_out: bool = True) -> list[str]:
    found = without_effect(config(*words), needs_reference=needs_reference, filtered=filtered, held_out=held_out)
    return [line.split(":")[0] for line in found]


@pytest.mark.parametrize(
    ("words", "asleep", "awake"),
    [
        (["dynamic_bs=true"], "dynamic_bs True", {"filtered": True}),
        (["ref.dtype=float32"], "ref.dtype float32", {"needs_reference": True}),
        (["actor.optimizer.min_lr_ratio=0.1"], "actor.optimizer.min_lr_ratio 0.1", ["actor.optimizer.lr_scheduler_type=cosine"]),
        (["actor.minibatch_split=spread"], "actor.minibatch_split spread", ["actor.ppo_n_minibatches=2"]),
        (["train_dataset.path=largest", "train_dataset.subset=main"], "train_dataset.subset main", ["train_dataset.path=a/b"]),
        (["valid_dataset.path=rows.jsonl", "valid_dataset.subset=main"], "valid_dataset.subset main", ["valid_dataset.path=a/b"]),
        (["evaluator.n_samples=4"], "evaluator.n_samples 4", ["evaluator.freq_steps=2"]),
        (["total_train_epochs=2"], "total_train_epochs 2", ["total_train_steps=null"]),
    ],
)  # fmt: skip
def test_a_key_that_does_nothing_is_listed_until_what_it_needs_is_there(words, asleep, awake) -> None:
    assert idle(*words) == [asleep]
    assert (idle(*words, **awake) if isinstance(awake, dict) else idle(*words, *awake)) == []


def test_defaults_are_never_listed_and_an_evaluation_needs_rows() -> None:
    assert idle() == []
    assert idle("evaluator.freq_steps=2") == []
    assert idle("evaluator.freq_steps=2", held_out=False) == ["evaluator.freq_steps 2"]


def test_a_seed_that_the_random_numbers_cannot_take_is_refused() -> None:
    assert config("seed=4294967295").seed == 2**32 - 1
    with pytest.raises(ConfigError, match=r"seed: .*4294967296"):
        config("seed=4294967296")


def test_a_config_that_only_plays_may_be_greedy() -> None:
    assert config("gconfig.temperature=0").gconfig.temperature == 0
