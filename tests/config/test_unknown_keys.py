"""Keys that do not exist: each is named with its path and what was probably meant, wherever it was given."""

from pathlib import Path

import pytest

from partita.config import ConfigError
from partita.run import load_run_config

TEXT = """\
actor: {path: somewhere}
train: {learning-rate: 1.0e-6, leraning_rate: 1.0e-6}
lora_r: 8
gconfig: {n_smaples: 4}
"""


def test_each_is_named_with_its_path_whether_in_a_file_or_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT)
    with pytest.raises(ConfigError) as caught:
        load_run_config(files=[file], overrides=["trainer.lr2=1"])
    found = {problem.path: problem.message for problem in caught.value.problems}
    for path in ("train.learning-rate", "train.leraning_rate", "trainer.lr2"):
        assert found[path].startswith("unknown key. Near: actor.optimizer.lr"), path
    assert found["gconfig.n_smaples"].startswith("unknown key. Near: n_samples")
    assert {"train", "lora_r", "trainer"} <= set(found)
