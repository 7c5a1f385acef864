"""Whole runs with workflows: the examples train, evaluate, generate and resume; and the ways in from Python."""

from pathlib import Path

import pytest
import torch
from running import call, lines_of, settings

import partita
from partita.config import ConfigError
from partita.report.sinks import read_samples
from partita.rollout.multi_turn import MultiTurn
from partita.run import load_run_config
from partita.runfolder import run_config_of
from partita.trainer import QUICKSTART

pytestmark = pytest.mark.slow  # whole runs, one after another
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "workflows"
ROWS = Path(__file__).parent / "tasks" / "gsm8k_rows.jsonl"

VOWELS = """
class Vowels:
    "Three turns at most; each is worth the share of vowels in what was said. Fails where it is told to."

    def __init__(self, fail=False):
        self.fail, self.turns = fail, 0

    def reset(self, row, seed):
        self.fail = self.fail and seed % 2 == 0

    def step(self, action):
        if self.fail:
            raise RuntimeError("the board fell off the table")
        self.turns += 1
        worth = sum(c in "aeiou" for c in action.lower()) / 8
        return "more", worth, self.turns == 3, False, {}
"""


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side, and threads that wait for a core spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The command line of a small run from the repository's root. Most bytes end a turn: a random model has no other way to."""
    monkeypatch.chdir(ROOT)

    def make(**changed: object) -> list[str]:
        given = {"actor__path": model_folder, "gconfig__max_new_tokens": 6, "gconfig__stop_token_ids": list(range(180))}
        return settings(tmp_path / "runs", **given | changed)

    return make


@pytest.fixture
def vowels(tmp_path: Path) -> str:
    file = tmp_path / "vowels.py"
    file.write_text(VOWELS)
    return f"{file}:Vowels"


def kwargs(**given: object) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in given.items()) + "}"


def only_run(tmp_path: Path) -> Path:
    [config] = (tmp_path / "runs").glob("*/*/config.yaml")
    return config.parent


def test_the_guessing_game_trains_evaluates_and_generates(words, tmp_path: Path) -> None:
    given = words(train_dataset__path=None, train_dataset__size=None)
    ended = call("train", EXAMPLES / "guess.yaml", *given)
    assert ended.code == 0, ended.err
    run = only_run(tmp_path)
    [line] = lines_of(run)
    assert line["environment/error_share"] == 0 and line["turns/max"] <= 4 and "reward/environment" in line
    assert line["response_length/max"] <= 24
    judged = call("eval", run, "--n", 2, "--samples", 2)
    assert judged.code == 0, judged.err
    said = call("generate", run, "--prompt", "Guess a number.")
    assert (
        said.code == 0 and "[environment: in reset: KeyError: 'answer']" in said.out
    )  # typed words have no number to guess
    plain = call(
        "generate", run, "--prompt", "Hi", "--set", "rollout.workflow=single_turn", "--set", "~rollout.workflow_kwargs"
    )
    assert plain.code == 0 and "environment" not in plain.out, plain.err


def test_rewards_of_turns_can_be_credited_and_a_killed_run_is_gone_on_with(words, vowels, tmp_path: Path) -> None:
    given = words(
        rollout__workflow="multi_turn", rollout__workflow_kwargs=kwargs(environment=vowels, rows="rerendered"),
        actor__credit="process", total_train_steps=2, checkpoint__freq_steps=1,
    )  # fmt: skip
    ended = call("train", "grpo", *given)
    assert ended.code == 0, ended.err
    run = only_run(tmp_path)
    assert run_config_of(run, []).value.rollout.workflow == "multi_turn"
    more = call("train", "--resume", run, "total_train_steps=3")
    assert more.code == 0, more.err
    assert [line["step"] for line in lines_of(run)] == [1, 2, 3]


def test_a_failing_environment_is_counted_and_too_many_end_the_run(words, vowels, tmp_path: Path) -> None:
    failing = kwargs(environment=vowels, environment_kwargs="{fail: true}")
    given = {"rollout__workflow": "multi_turn", "rollout__workflow_kwargs": failing}
    ended = call("train", "grpo", *words(**given, train_dataset__batch_size=6, reward__max_error_share=0.95))
    assert ended.code == 0, ended.err
    [line] = lines_of(only_run(tmp_path))
    assert 0 < line["environment/error_share"] == line["reward/error_share"] < 1
    assert line["reward/mean"] >= 0  # of those that could be scored
    ended = call("train", "grpo", *words(**given, train_dataset__batch_size=6, reward__max_error_share=0.05))
    assert ended.code == 1 and "the board fell off the table" in ended.err


def test_self_correction_and_debate_train_on_word_problems(words, tmp_path: Path) -> None:
    data = {
        "train_dataset__path": ROWS,
        "train_dataset__subset": "null",
        "train_dataset__size": 4,
        "gconfig__n_samples": 2,
    }
    given = words(**data, total_train_epochs="null", evaluator__freq_steps="null")
    ended = call("train", EXAMPLES / "self_correct.yaml", *given)
    assert ended.code == 0, ended.err
    debate = f"rollout.workflow={EXAMPLES / 'debate.py'}:Debate"
    ended = call(
        "train", EXAMPLES / "self_correct.yaml", *given, debate, "~rollout.workflow_kwargs", "trial_name=debate"
    )
    assert ended.code == 0, ended.err
    [line] = lines_of(tmp_path / "runs" / "tiny" / "debate")
    assert line["rows_per_sample/mean"] == 2


def test_a_retry_tells_of_first_and_last_tries(words, tmp_path: Path) -> None:
    ended = call("train", "grpo", *words(rollout__workflow="retry"))
    assert ended.code == 0, ended.err
    assert "retry/first_right" in lines_of(only_run(tmp_path))[0]


def test_from_python_a_name_is_part_of_the_config_and_an_object_is_brought(words, vowels, tmp_path: Path) -> None:
    config = load_run_config([QUICKSTART], ["algorithm=grpo", *words()]).value
    plain = {"environment": vowels, "max_turns": 2}
    run = partita.PPOTrainer(config).train(workflow="partita.rollout.multi_turn:MultiTurn", workflow_kwargs=plain)
    assert run_config_of(run, []).value.rollout.workflow_kwargs == plain and not (run / "python.json").exists()
    run = partita.PPOTrainer(config).train(workflow=MultiTurn(vowels, max_turns=2))
    assert '"MultiTurn"' in (run / "python.json").read_text()
    assert read_samples(run / "samples.jsonl") if (run / "samples.jsonl").exists() else True
    with pytest.raises(ConfigError, match=r"workflow_kwargs.max_turn: .*Near: max_turns"):
        partita.PPOTrainer(config).train(workflow="multi_turn", workflow_kwargs={"environment": vowels, "max_turn": 2})
