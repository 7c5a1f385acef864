"""What the loop hands to the report: one record per step, one row per sample, one view of a group for the screen.

Shapes: T trained tokens of the samples in order, S samples.
Left out: how values are gathered (`report.metrics`) and where they go (`report.sinks`, `report.console`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from partita.records import Group, Sample


@dataclass(frozen=True)
class StepRecord:
    """The metrics of one finished step; `step` counts from 1. A value may be NaN; the sinks write it as null."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class SampleView:
    """One sample and its group, for the screen. `rewards` are the group's in order, None where the reward failed."""

    prompt: str
    response: str
    rewards: tuple[float | None, ...]
    shown: int
    answer: str | None = None


@dataclass(frozen=True)
class RunSummary:
    """The end of a run. `commands` maps what to do next to the command that does it; `results` are lines to show."""

    folder: str
    commands: Mapping[str, str] = field(default_factory=dict[str, str])
    results: Sequence[str] = ()


def view_group(group: Group, shown: int = 0) -> SampleView:
    """The screen's view of a group, with sample number `shown` in full."""
    rewards = tuple(sample.reward for sample in group.samples)
    return SampleView(group.prompt.text, group.samples[shown].text, rewards, shown, group.prompt.answer)


def sample_rows(groups: Sequence[Group], advantages_T: Tensor | None = None) -> list[dict[str, Any]]:
    """One plain row per sample, in the order of the groups, with everything that was sampled and how it was judged.

    advantages_T: per trained token, samples in the same order. Raises ValueError when its length differs from theirs.
    """
    samples = [(group, index, sample) for group in groups for index, sample in enumerate(group.samples)]
    lengths = [sample.length for _, _, sample in samples]
    if advantages_T is None:
        return [_row(group, index, sample, None) for group, index, sample in samples]
    if advantages_T.shape != (sum(lengths),):
        raise ValueError(f"advantages_T has shape {tuple(advantages_T.shape)}; the samples have {sum(lengths)} tokens")
    split = [part.tolist() for part in advantages_T.detach().cpu().split(lengths)]
    return [_row(group, index, sample, part) for (group, index, sample), part in zip(samples, split, strict=True)]


def _row(group: Group, index: int, sample: Sample, advantages: list[float] | None) -> dict[str, Any]:
    return {
        "group": group.serial,
        "sample": index,
        "prompt_uid": group.prompt.uid,
        "prompt": group.prompt.text,
        "response": sample.text,
        "reward": sample.reward,
        "parts": sample.parts,
        "step_rewards": sample.step_rewards,
        "length": sample.length,
        "stop_reason": sample.stop_reason,
        "status": sample.status,
        "error": sample.error,
        "notes": sample.notes,
        "advantages": advantages,
        "rows": [
            {
                "ids": row.ids,
                "trained": row.trained,
                "behaviour_logprobs": row.behaviour_logprobs,
                "versions": row.versions,
            }
            for row in sample.rows
        ],
    }
