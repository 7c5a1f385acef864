"""How the parts of a run are opened and closed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import byte_tokenizer

from partita.build import ended_by, load_policy
from partita.models.load import ModelLoadError, load_tokenizer
from partita.run import load_run_config


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
