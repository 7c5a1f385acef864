"""What was trained on is what was sampled, and what tools say has no part in learning: real runs of a random model with a tool."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from running import settings

from partita.build import build
from partita.extras import Extras
from partita.run import RunConfig, load_run_config

sys.path.append(str(Path(__file__).parent.parent / "examples" / "workflows"))  # scripts that are run, not a package
import check_ids

TOOL = '''
def twice(text: str) -> str:
    """Say it twice.

    Args:
        text: What.
    """
    if text == "q":
        raise ValueError("no q")
    return text + text
'''


@pytest.fixture
def config(tmp_path: Path, model_folder: Path, vowels: str):
    """A run whose random policy calls the tool wherever it writes a letter, and ends its turns after some five tokens."""
    (tmp_path / "mine.py").write_text(TOOL)

    def config(**changed: Any) -> RunConfig:
        words = settings(
            tmp_path / "runs", actor__path=model_folder, reward__functions=f"[{vowels}]", trial_name="tools",
            rollout__workflow="tools", gconfig__max_new_tokens=16,
            gconfig__stop_token_ids=f"[{', '.join(map(str, range(60)))}]", evaluator__freq_steps="null", **changed,
        )  # fmt: skip
        tool = f"tools: ['{tmp_path}/mine.py:twice'], calls: '(?P<argument>[a-zA-Z])', instruction: '', max_turns: 4, processes: 2"
        return load_run_config([], ["algorithm=grpo", *words, f"rollout.workflow_kwargs={{{tool}}}"]).value

    return config


@pytest.mark.slow
def test_a_thousand_trajectories_are_trained_on_as_they_were_sampled(config) -> None:
    run = check_ids.recorded(config(total_train_steps=8, train_dataset__batch_size=16, gconfig__n_samples=8))
    found = check_ids.check(*run)
    assert (found.trajectories, found.differences) == (1024, [])
    assert found.calls > 1.3 * found.trajectories  # many go on over turns
    assert found.told > found.trajectories


def test_a_difference_is_found(config) -> None:
    folder, recorder = check_ids.recorded(config(total_train_steps=1))
    assert str(check_ids.check(folder, recorder)).startswith("0 differences in 8 trajectories")
    [path] = (folder / "samples").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first, last = rows[0]["rows"][0], rows[-1]["rows"][0]
    first["ids"][first["trained"].index(True)] += 1
    last["trained"][last["trained"].index(True)] = False
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [one.partition(": ")[2] for one in check_ids.check(folder, recorder).differences] == [
        "ids differ",
        "trained differ",
    ]
    calls = recorder.calls[rows[1]["group"], rows[1]["sample"]]
    calls[0][1]._result = replace(calls[0][1].result(), versions=(9,) * len(calls[0][1].result().ids))
    differences = check_ids.check(folder, recorder).differences
    assert any("versions differ" in one for one in differences) and any(
        "versions of the batch" in one for one in differences
    )


def test_only_states_before_sampled_tokens_get_a_gradient(config) -> None:
    packs, states = list[Any](), list[torch.Tensor]()

    def keep(module: Any, given: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.retain_grad()
            states.append(out)

    async def step() -> list[Any]:
        with build(config(actor__entropy_coef=0.05, train_dataset__batch_size=4), Extras()) as run:
            taken = await run.rollouts.take(run.groups_per_step)
            algorithm, rollout = run.credit(run.score(taken.groups, version=0))
            run.learner.model.register_forward_pre_hook(lambda module, given: packs.append(given[0]))
            run.learner.model.backbone.norm.register_forward_hook(keep)
            run.learn(rollout, algorithm, 0)
            return [row for group in taken.groups for sample in group.samples for row in sample.rows]

    rows = asyncio.run(step())
    told = sum(not own for row in rows for own in row.trained[row.trained.index(True) :])
    sampled = [one for row in rows for one, own in zip(row.ids, row.trained, strict=True) if own]
    assert told > len(rows)
    assert sorted(torch.cat([packed.target_T for packed in packs]).tolist()) == sorted(sampled)
    for packed, state in zip(packs, states, strict=True):
        assert state.grad is not None
        moved = state.grad.reshape(-1, state.shape[-1]).abs().sum(-1).nonzero().flatten().tolist()
        assert set(moved) == set(packed.source_T.tolist())
