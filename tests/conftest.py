"""What the end-to-end tests share: a tiny model, a reward file, and one finished run."""

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from running import VOWELS, call, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may ask a hub: where there is none, every try would be waited for

# A change is judged by the same examples every time; new ones are looked for where there is somebody to read what they find.
hypothesis_settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    hypothesis_settings.load_profile("ci")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama of 512 tokens of context, with a byte tokenizer and a chat template."""
    tiny_model = importlib.import_module("tiny_model")  # here, not above: most tests need no transformers
    return tiny_model.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def vowels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The config's name of a reward function in a file."""
    file = tmp_path_factory.mktemp("rewards") / "vowels.py"
    file.write_text(VOWELS)
    return f"{file}:vowels"


@pytest.fixture(scope="session")
def trained_words(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, vowels: str) -> list[str]:
    """The command line of the finished run, with a loss that depends on the model: the entropy bonus is on."""
    return settings(
        tmp_path_factory.mktemp("runs"), actor__path=model_folder, reward__functions=f"[{vowels}]", trial_name="one",
        total_train_steps=3, checkpoint__freq_steps=1, actor__entropy_coef=0.05, train_dataset__batch_size=3,
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained(trained_words: list[str]) -> Path:
    """The folder of a finished run of three steps; copy it before changing anything in it."""
    ended = call("train", "grpo", *trained_words)
    assert ended.code == 0, ended.err
    return Path(next(word for word in trained_words if word.startswith("output_dir=")).split("=")[1]) / "tiny" / "one"
