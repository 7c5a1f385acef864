"""A run whose samples are agents' calls: the real program, a random model, and agents that know nothing of it."""

from pathlib import Path
from typing import Any

import pytest
from running import call, lines_of, settings

AGENT = '''
import json, os, urllib.request


def ask(base_url, messages):
    request = urllib.request.Request(
        base_url + "/chat/completions", json.dumps({"messages": messages}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def two_rows(base_url, messages):
    """A conversation of two turns, and a call of its own."""
    first = ask(base_url, messages)
    ask(base_url, [*messages, first, {"role": "user", "content": "more"}])
    last = ask(base_url, [{"role": "user", "content": "vowels"}])
    return last["content"] or "-"


def sometimes(base_url, messages):
    """By chance it asks nothing, fails, or gives a reward of its own."""
    chance = os.urandom(1)[0] % 4
    if chance == 0:
        return 1.0
    said = ask(base_url, messages)
    if chance == 1:
        raise RuntimeError("no luck")
    return {"reward": chance + len(said["content"] or "") / 100}
'''


@pytest.fixture
def words(tmp_path: Path, model_folder: Path, vowels: str) -> Any:
    (tmp_path / "agents.py").write_text(AGENT)

    def words(name: str, **changed: object) -> list[str]:
        return settings(
            tmp_path / "runs", actor__path=model_folder, trial_name="one", rollout__workflow="agent",
            rollout__workflow_kwargs=f"{{agent: '{tmp_path}/agents.py:{name}'}}", reward__functions=f"[{vowels}]", **changed,
        )  # fmt: skip

    return words


@pytest.mark.slow
def test_all_rows_of_an_agent_are_trained_and_evaluated(words: Any, tmp_path: Path) -> None:
    ended = call(
        "train", "grpo", *words("two_rows", total_train_steps=2, evaluator__freq_steps=2, evaluator__n_prompts=2)
    )
    assert ended.code == 0, ended.err
    folder = tmp_path / "runs" / "tiny" / "one"
    for metrics in (line.get("metrics", line) for line in lines_of(folder)):
        assert metrics["agent/calls"] == 3.0 and metrics["agent/rows"] == 2.0
        assert metrics["reward/error_share"] == 0.0 and metrics["grad_norm"] > 0
        assert abs(metrics["mismatch/k3"]) < 1e-6  # the trainer sees what was sampled, token by token
    said = call("generate", folder, "--prompt", "Hello")
    assert said.code == 0 and "reward_error" not in said.out, said.err


@pytest.mark.slow
def test_the_same_run_again_samples_the_same(words: Any, tmp_path: Path) -> None:
    seen = []
    for name in ("a", "b"):
        ended = call("train", "grpo", *words("two_rows", total_train_steps=2), f"experiment_name={name}")
        assert ended.code == 0, ended.err
        files = sorted((tmp_path / "runs" / name / "one" / "samples").iterdir())
        seen.append([file.read_text() for file in files])
    assert len(seen[0]) == 2 and seen[0] == seen[1]


@pytest.mark.slow
def test_agents_that_fail_or_never_ask_are_counted_and_not_trained(words: Any, tmp_path: Path) -> None:
    ended = call(
        "train", "grpo", *words("sometimes", total_train_steps=2, gconfig__n_samples=8, reward__max_error_share=1.0)
    )
    assert ended.code == 0, ended.err
    shares = [line.get("metrics", line)["reward/error_share"] for line in lines_of(tmp_path / "runs" / "tiny" / "one")]
    assert all(0 < share < 1 for share in shares)


@pytest.mark.slow
def test_an_agent_is_tried_before_it_is_trained(words: Any, tmp_path: Path, model_folder: Path) -> None:
    agent = f"+rollout.workflow_kwargs.agent={tmp_path}/agents.py:two_rows"
    said = call(
        "generate",
        model_folder,
        "--prompt",
        "Hello",
        "--max-new-tokens",
        8,
        "--set",
        "rollout.workflow=agent",
        "--set",
        agent,
    )
    assert said.code == 0 and "reward_error" not in said.out and said.out.strip(), said.err
    wrong = call("generate", model_folder, "--prompt", "Hello", "--set", "rollout.workflow=agent", "--set", agent + "s")
    assert wrong.code != 0 and "rollout.workflow_kwargs" in wrong.err and "has no 'two_rowss'" in wrong.err
