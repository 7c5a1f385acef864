"""Loading as a user does it: files, bases, presets, overrides and interpolation together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from partita.config import ConfigError, key, key_factory, load_config, required


@dataclass(frozen=True)
class Norm:
    """Centre and scale."""

    mean_level: Literal["batch", "group"] | None = key("batch", "Level of the mean.")
    std_level: Literal["batch", "group"] | None = key("batch", "Level of the deviation.")
    group_size: int | None = key(None, "Samples of a prompt.", ge=1)


@dataclass(frozen=True)
class Optimizer:
    lr: float = key(1e-5, "Step size.", gt=0)
    betas: tuple[float, float] = key((0.9, 0.95), "Decay rates.")


@dataclass(frozen=True)
class Actor:
    path: str = required("Model folder or name.")
    eps_clip: float = key(0.2, "Lower clip bound.", ge=0)
    eps_clip_higher: float | None = key(None, "Upper clip bound.")
    loss_agg_mode: Literal["token_mean", "seq_mean_token_mean"] = key("token_mean", "Aggregation.")
    overlong_reward_penalty: bool = key(False, "Punish long answers.")
    reward_norm: Norm | None = key(None, "Reward normalisation.")
    adv_norm: Norm | None = key(Norm(), "Advantage normalisation.")
    optimizer: Optimizer = key_factory(Optimizer, "Optimizer.")


@dataclass(frozen=True)
class Sampling:
    n_samples: int = key(4, "Samples of a prompt.", ge=1)
    max_new_tokens: int = key(64, "Longest answer in tokens.", ge=1)


@dataclass(frozen=True)
class Data:
    path: str = key("", "File.")
    batch_size: int = key(8, "Prompts of a step.", ge=1)


@dataclass(frozen=True)
class Config:
    actor: Actor = required("The policy.")
    experiment_name: str = key("run", "Name.")
    algorithm: str | None = key(None, "Preset.")
    tokenizer_path: str = key("${actor.path}", "Tokenizer.")
    gconfig: Sampling = key_factory(Sampling, "Sampling.")
    train_dataset: Data = key_factory(Data, "Training rows.")
    valid_dataset: Data | None = key(None, "Validation rows.")
    tracker: dict[str, Any] = key_factory(lambda: {"mode": "offline"}, "Passed to the tracker.")


class Presets:
    reset_keys = frozenset({"actor.eps_clip", "actor.eps_clip_higher", "actor.loss_agg_mode", "actor.adv_norm"})
    table: ClassVar[dict[str, dict[str, Any]]] = {
        "dapo": {"actor.eps_clip": 0.2, "actor.eps_clip_higher": 0.28, "actor.adv_norm": {"mean_level": "group"}},
        "grpo": {"actor": {"loss_agg_mode": "seq_mean_token_mean"}},
    }

    def __call__(self, name: str) -> dict[str, Any]:
        if name not in self.table:
            raise ValueError(f"unknown preset {name}. One of: {', '.join(self.table)}")
        return self.table[name]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


BAKERY = """\
experiment_name: bakery
gconfig: {n_samples: 4, max_new_tokens: 64}
actor:
  path: my/tiny-model
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: null
train_dataset: {path: bakery.jsonl, batch_size: 8}
"""


def test_overrides_win_and_interpolation_resolves_after_them(tmp_path: Path) -> None:
    loaded = load_config(
        Config,
        files=[write(tmp_path, "bakery.yaml", BAKERY)],
        overrides=[
            "gconfig.n_samples=8",
            "+actor.eps_clip_higher=0.28",
            "+actor.overlong_reward_penalty=true",
            "+actor.optimizer.lr=1e-6",
        ],
    )
    config = loaded.value
    assert config.gconfig.n_samples == 8
    assert config.actor.reward_norm == Norm("group", "group", 8)
    assert config.tokenizer_path == "my/tiny-model"
    assert config.actor.optimizer == Optimizer(lr=1e-6)
    assert (config.actor.eps_clip, config.actor.eps_clip_higher) == (0.2, 0.28)
    assert config.actor.adv_norm is None and config.actor.overlong_reward_penalty is True


def test_every_value_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "bakery.yaml", BAKERY + "algorithm: dapo\n")
    loaded = load_config(
        Config,
        files=[Path("bakery.yaml")],
        overrides=["actor.eps_clip=0.1"],
        expand=Presets(),
        base_tree={"tracker": {}},
    )
    sources = loaded.sources
    assert sources["actor.path"] == "bakery.yaml:4"
    assert sources["actor.reward_norm.group_size"] == "bakery.yaml:5"
    assert sources["actor.eps_clip"] == "command line"
    assert sources["actor.eps_clip_higher"] == "preset dapo (bakery.yaml:8)"
    assert sources["actor.optimizer.lr"] == "default"
    assert sources["tracker"] == "given in code"
    assert sources["actor.adv_norm"] == "bakery.yaml:6"  # the file's own key comes after its own preset
    lines = loaded.to_yaml(with_sources=True).splitlines()
    assert any(line.split() == ["eps_clip:", "0.1", "#", "command", "line"] for line in lines)


def test_each_layer_expands_its_own_algorithm_first(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "algorithm: dapo\nactor: {path: m, eps_clip: 0.3}\n")
    run = write(tmp_path, "run.yaml", "base: base.yaml\nactor: {loss_agg_mode: seq_mean_token_mean}\n")
    kept = load_config(Config, files=[run], expand=Presets()).value.actor
    assert (kept.eps_clip, kept.eps_clip_higher, kept.loss_agg_mode) == (0.3, 0.28, "seq_mean_token_mean")
    assert kept.adv_norm == Norm("group", "batch")
    # grpo resets what dapo and both files said about algorithms, wherever it stands among the overrides.
    other = load_config(
        Config, files=[run], overrides=["actor.eps_clip_higher=0.5", "algorithm=grpo"], expand=Presets()
    )
    actor = other.value.actor
    assert (actor.eps_clip, actor.eps_clip_higher, actor.loss_agg_mode) == (0.2, 0.5, "seq_mean_token_mean")
    assert actor.adv_norm == Norm() and actor.path == "m" and other.value.algorithm == "grpo"
    assert other.sources["actor.loss_agg_mode"] == "preset grpo (command line)"


def test_unknown_preset_is_a_problem_of_the_layer_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"algorithm: unknown preset dapoo. One of: dapo, grpo \[command line\]"):
        load_config(Config, overrides=["algorithm=dapoo", "actor.path=m"], expand=Presets())


def test_bases_chain_and_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "a.yaml", "actor: {path: a, eps_clip: 0.1}\ngconfig: {n_samples: 2}\n")
    write(tmp_path / "sub", "b.yaml", "base: ../a.yaml\nactor: {eps_clip: 0.3}\n")
    loaded = load_config(Config, files=[write(tmp_path, "c.yaml", "base: sub/b.yaml\ngconfig: {max_new_tokens: 9}\n")])
    assert (loaded.value.actor.path, loaded.value.actor.eps_clip) == ("a", 0.3)
    assert loaded.value.gconfig == Sampling(2, 9)
    assert loaded.sources["actor.path"] == f"{tmp_path}/a.yaml:1"


def test_base_circle_and_missing_base_are_errors(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "base: b.yaml\n")
    write(tmp_path, "b.yaml", "base: a.yaml\n")
    with pytest.raises(ConfigError, match=r"base files form a circle: .*a.yaml -> .*b.yaml -> .*a.yaml"):
        load_config(Config, files=[tmp_path / "a.yaml"])
    with pytest.raises(ConfigError, match=r"c.yaml:2: cannot read .*gone.yaml: No such file"):
        load_config(Config, files=[write(tmp_path, "c.yaml", "actor: {path: m}\nbase: gone.yaml\n")])


def test_a_base_that_no_file_can_be_called_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c.yaml:2: cannot read .*: embedded null byte"):
        load_config(Config, files=[write(tmp_path, "c.yaml", 'actor: {path: m}\nbase: "a\\0b"\n')])
    with pytest.raises(ConfigError, match=r"c.yaml:1: cannot read .*: File name too long"):
        load_config(Config, files=[write(tmp_path, "c.yaml", f"base: {'a' * 5000}\n")])


def test_unusable_files_are_all_reported(tmp_path: Path) -> None:
    files = [
        write(tmp_path, "list.yaml", "- 1\n"),
        write(tmp_path, "broken.yaml", "a: 1\nb: [1\n"),
        tmp_path / "gone.yaml",
    ]
    with pytest.raises(ConfigError) as caught:
        load_config(Config, files=files, overrides=["nonsense"])
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "list.yaml: expected a mapping of keys, got [1]" in text
    assert "broken.yaml:3: not valid YAML" in text
    assert "cannot read" in text and "nonsense: not an override" in text


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    files = [write(tmp_path, "empty.yaml", "# nothing yet\n"), write(tmp_path, "run.yaml", "actor: {path: m}\n")]
    assert load_config(Config, files=files).value == load_config(Config, overrides=["actor.path=m"]).value


def test_all_kinds_of_problems_come_in_one_error(tmp_path: Path) -> None:
    text = """\
actor:
  path: ${actor.pth}
  eps_clip_highr: 0.3
  eps_clip: abc
  loss_agg_mode: token_men
  adv_norm: {group_size: 0}
  adv_norm: null
train: {batch_sise: 1}
lr: 3
max_prompt_length: 4
"""
    with pytest.raises(ConfigError) as caught:
        load_config(
            Config,
            files=[write(tmp_path, "run.yaml", text)],
            overrides=["gconfig.n_samples=1.5"],
            hints={"max_prompt_length": "gconfig.max_new_tokens"},
        )
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert found[f"{tmp_path}/run.yaml:7"] == "duplicate key actor.adv_norm, first given in line 6; keep one of them"
    assert found["actor.path"] == (
        "${actor.pth} cannot be resolved: there is no actor.pth. Near: actor.path (str, required)."
    )
    assert found["actor.eps_clip_highr"] == "unknown key. Near: eps_clip_higher (float or null, default null)."
    assert found["actor.eps_clip"] == 'expected float, got "abc"'
    assert found["actor.loss_agg_mode"].endswith('got "token_men". Near: token_mean.')
    assert found["lr"] == "unknown key. Near: actor.optimizer.lr (float, default 1e-05)."
    assert "Near: train_dataset.batch_size" in found["train.batch_sise"] and "train" in found
    assert found["max_prompt_length"] == "unknown key. Near: gconfig.max_new_tokens (int, default 64)."
    assert found["gconfig.n_samples"] == "expected int, got 1.5"
    assert "actor.eps_clip_highr: unknown key. Near: eps_clip_higher (float or null, default null)." in str(
        caught.value
    )


def test_the_printed_yaml_loads_to_the_same_value(tmp_path: Path) -> None:
    overrides = [
        "actor.path=010",
        "experiment_name=1e-6",
        "valid_dataset={}",
        r"""+tracker.note='\${not.one} # "x": \\\${nor}'""",
        "+tracker.deep={on: [1e-6, {yes: null}], '1': '1e5'}",
        "~tracker.mode",
        "algorithm=dapo",
        "actor.optimizer.betas=[0, .9]",
    ]
    first = load_config(Config, overrides=overrides, expand=Presets())
    assert first.value.tracker == {
        "note": r'${not.one} # "x": \${nor}',
        "deep": {"on": [1e-6, {"yes": None}], "1": "1e5"},
    }
    assert (first.value.actor.path, first.value.experiment_name) == ("010", "1e-6")
    for with_sources in (False, True):
        again = load_config(
            Config, files=[write(tmp_path, "saved.yaml", first.to_yaml(with_sources))], expand=Presets()
        )
        assert again.value == first.value and again.tree == first.tree
    assert first.tree["actor"]["optimizer"] == {"lr": 1e-5, "betas": [0.0, 0.9]}


def test_an_absent_section_costs_nothing_and_null_equals_absent() -> None:
    absent = load_config(Config, overrides=["actor.path=m"])
    null = load_config(Config, overrides=["actor.path=m", "valid_dataset=null"])
    assert absent.value == null.value and absent.value.valid_dataset is None
    assert absent.sources["valid_dataset"] == "default"


def test_a_required_key_or_section_must_be_set() -> None:
    with pytest.raises(ConfigError, match=r"actor: must be set \(section\). The policy."):
        load_config(Config, overrides=["~tokenizer_path", "tokenizer_path=t"])
    with pytest.raises(ConfigError, match=r"actor.path: must be set \(str\). Model folder or name."):
        load_config(Config, overrides=["actor.eps_clip=0.1", "tokenizer_path=t"])
    with pytest.raises(ConfigError, match=r"actor.path: must be set .* \[command line\]"):
        load_config(Config, overrides=["actor.path=???", "tokenizer_path=t"])
