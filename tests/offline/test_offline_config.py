"""The configs of training on data: what is refused, and in which words."""

import pytest
from offline_runs import PAIRS, written

from partita.algo.bradley import BradleyTerry
from partita.algo.pairwise import Hinge, Ipo, Kto, Orpo, Robust, Sigmoid, Simpo
from partita.config import ConfigError
from partita.offline.config import DpoConfig, PreferenceLossConfig, load_offline_config

LORA = "+actor.lora={rank: 2}"


@pytest.mark.parametrize(
    "given, want",
    [
        ({}, Sigmoid(0.1)),
        ({"label_smoothing": 0.2}, Sigmoid(0.1, 0.2)),
        ({"type": "hinge", "beta": 0.3}, Hinge(0.3)),
        ({"type": "ipo"}, Ipo(0.1)),
        ({"type": "robust", "label_smoothing": 0.2}, Robust(0.1, 0.2)),
        ({"type": "simpo", "beta": 2.0, "gamma": 0.3}, Simpo(2.0, 0.3)),
        ({"type": "orpo"}, Orpo(0.1)),
    ],
)
def test_the_keys_of_a_preference_make_its_loss(given, want) -> None:
    assert PreferenceLossConfig(**given).pair_loss() == want


def test_judged_answers_have_weights() -> None:
    made = PreferenceLossConfig("kto", 0.2, desirable=1.5, undesirable=0.5)
    assert made.kto() == Kto(0.2, 1.5, 0.5)


def test_a_reward_model_has_its_centring(tmp_path) -> None:
    loaded = load_offline_config("rm", written(tmp_path, PAIRS), ["centring=0.01"]).value
    assert loaded.loss() == BradleyTerry(0.01)


def test_rows_are_a_config_of_their_own(tmp_path) -> None:
    file = written(tmp_path, PAIRS)
    loaded = load_offline_config("dpo", file, ["loss.type=ipo"])
    assert isinstance(loaded.value, DpoConfig)
    assert loaded.value.train_dataset.path == str(file)
    assert loaded.value.total_train_epochs == 1
    again = tmp_path / "config.yaml"
    again.write_text(loaded.to_yaml())
    assert load_offline_config("dpo", again).value == loaded.value


REFUSED = [
    ("dpo", ["loss.type=ipo", "loss.label_smoothing=0.1"], "loss: label_smoothing=0.1 has no effect on type=ipo"),
    ("dpo", ["loss.label_smoothing=0.5"], "loss.label_smoothing: "),
    ("dpo", ["loss.type=exo"], "loss.type: "),
    ("dpo", ["loss.beta=0"], "loss.beta: "),
    ("dpo", ["ref.log_probs=adapter_off"], "ref.log_probs=adapter_off needs actor.lora"),
    ("dpo", [LORA, "ref.log_probs=adapter_off", "ref.path=x"], "ref: log_probs=adapter_off is the trained model's own base"),
    (
        "dpo", ["+actor.lora={rank: 2, init: pissa}", "ref.log_probs=adapter_off"],
        "with actor.lora.init=pissa the model without its adapters is not the starting policy",
    ),
    ("dpo", ["ref.offload=true"], "ref: offload has no effect with log_probs=precomputed: no reference stays in memory"),
    ("sft", ["loss_agg_mode=token_sum"], "loss_agg_mode: "),
    ("rm", ["centring=-1"], "centring: "),
    ("rm", ["total_train_epochs=null"], "total_train_steps and total_train_epochs are both null"),
    (
        "sft", ["train_dataset.held_out=0.1", "valid_dataset.path=x"],
        "valid_dataset is set and train_dataset.held_out=0.1: drop one of the two",
    ),
    ("sft", ["valid_dataset.path=x", "valid_dataset.held_out=0.1"], "valid_dataset.held_out=0.1: all of its rows are held out"),
    ("dpo", ["learning_rate=1e-5"], "learning_rate: unknown key. Near: actor.optimizer.lr"),
    ("dpo", ["max_length=100"], "max_length: unknown key. Near: train_dataset.max_length"),
    ("dpo", ["loss_type=ipo"], "loss_type: unknown key. Near: loss.type"),
    ("dpo", ["beta=0.2"], "beta: unknown key. Near: loss.beta"),
]  # fmt: skip


@pytest.mark.parametrize("kind, words, told", REFUSED, ids=[" ".join(words) for _, words, _ in REFUSED])
def test_a_wrong_key_is_refused_in_readable_words(tmp_path, kind, words, told) -> None:
    with pytest.raises(ConfigError) as refused:
        load_offline_config(kind, written(tmp_path, PAIRS), words)
    assert told in str(refused.value)
    assert "1 problem in" in str(refused.value)


def test_a_loss_is_no_hint_where_there_is_none(tmp_path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_offline_config("sft", written(tmp_path, PAIRS), ["beta=0.1"])
    assert "loss.beta" not in str(refused.value)


@pytest.mark.parametrize(
    "content, other", [("kind: sft\nloss_agg_mode: token_mean\n", "sft"), ("algorithm: grpo\n", "train")]
)
def test_the_config_of_another_command_is_one_line(tmp_path, content, other) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        load_offline_config("dpo", file)
    assert f"{file}: a config of `partita {other}`, not of `partita dpo`: use that command" in str(refused.value)


@pytest.mark.parametrize("content", ["- a\n", "kind: [\n", "kind: {a: 1}\n", "kind: other\n"])
def test_a_file_that_says_nothing_of_its_command_is_read_as_any_other(tmp_path, content) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        load_offline_config("dpo", file)
    assert "use that command" not in str(refused.value)


def test_what_is_neither_a_config_nor_rows_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; `partita dpo` takes a YAML file or rows \(\.jsonl"):
        load_offline_config("dpo", tmp_path / "gone")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_offline_config("dpo", tmp_path)
