"""What a step's groups say about the policy, as tallies that can be merged over ranks.

`reward/mean` is the task reward before shaping. Lengths count trained tokens, EOS included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from partita.records import Group, Row, Sample
from partita.report.metrics import Metrics
from partita.rollout.rollouts import Taken
from partita.tasks.dataset import MIX


def summarise(groups: Sequence[Group]) -> Metrics:
    """Metrics of the rollouts. Parts that only some samples report are averaged over those."""
    samples = [sample for group in groups for sample in group.samples]
    metrics = Metrics()
    metrics.observe("reward/mean", (sample.reward for sample in samples))
    metrics.observe_rows("reward", (sample.parts for sample in samples))
    judged = [sample for sample in samples if sample.status != "not_applicable"]
    _mean(metrics, "reward/error_share", (sample.status == "reward_error" for sample in judged))
    _mean(metrics, "reward/not_applicable", (sample.status == "not_applicable" for sample in samples))
    _mean(metrics, "truncated", (sample.stop_reason == "length" for sample in samples))
    _mean(metrics, "zero_variance_groups", (is_zero_variance(group) for group in groups))
    metrics.observe("samples_per_group/mean", (len(group.samples) for group in groups))
    metrics.observe("response_length/mean", (sample.length for sample in samples))
    for kind, members in _kinds(samples).items():
        _mean(metrics, f"response_length/{kind}", (sample.length for sample in members))
    metrics.count("response_tokens", sum(sample.length for sample in samples))
    _of_workflows(metrics, samples)
    _by_source(metrics, groups)
    return metrics


def _of_workflows(metrics: Metrics, samples: Sequence[Sample]) -> None:
    """Turns and rows, where some sample has several, and what the workflow tells of its samples."""
    counted = {
        "turns/mean": [sum(map(_turns, sample.rows)) for sample in samples],
        "rows_per_sample/mean": [len(sample.rows) for sample in samples],
    }
    for name, counts in counted.items():
        if any(count > 1 for count in counts):
            metrics.observe(name, counts)
    for name in dict.fromkeys(name for sample in samples for name in sample.metrics):
        _mean(metrics, name, (sample.metrics[name] for sample in samples if name in sample.metrics))


def _turns(row: Row) -> int:
    """How often the policy speaks in a row: a turn begins at a trained token behind one that is not."""
    trained = np.array([False, *row.trained])
    return int((trained[1:] & ~trained[:-1]).sum())


def _by_source(metrics: Metrics, groups: Sequence[Group]) -> None:
    """Of several sources, each one's share of the prompts and its mean reward."""
    names = dict.fromkeys(str(group.prompt.row[MIX]) for group in groups if MIX in group.prompt.row)
    for name in names:
        _mean(metrics, f"mix/{name}/share", (group.prompt.row.get(MIX) == name for group in groups))
        own = (sample for group in groups if group.prompt.row.get(MIX) == name for sample in group.samples)
        _mean(metrics, f"mix/{name}/reward", (sample.reward for sample in own if sample.reward is not None))


def summarise_taken(taken: Taken) -> Metrics:
    """`summarise` of all groups of a step, and what became of them: `groups/retried` counts discarded attempts.

    `groups/oversampled` is the share of the prompts that rounds started beyond what the batch lacked.
    """
    metrics, prompts = summarise(taken.started), len(taken.started) - len(taken.discarded)
    metrics.put("rollout_rounds", taken.rounds)
    metrics.count("groups/started", len(taken.started))
    metrics.count("groups/dropped", len(taken.dropped))
    metrics.count("groups/retried", len(taken.discarded))
    metrics.put("prompts_used", taken.prompts_before + prompts)
    metrics.count("groups/lacking", taken.lacking)
    counts = taken.surplus
    if taken.extra or counts.used or counts.kept or counts.dropped:
        for name, count in (("used", counts.used), ("kept", counts.kept), ("dropped", counts.dropped)):
            metrics.count(f"surplus/{name}", count)
        metrics.add({"groups/oversampled": (float(taken.extra), float(prompts))})
    return metrics


def is_zero_variance(group: Group) -> bool:
    """All scored samples got the same reward: by max and min, never by a standard deviation's residue."""
    return not group.rewards or max(group.rewards) == min(group.rewards)


def _kinds(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """A sample with a positive task reward counts as correct; one without a reward is neither."""
    scored = [(sample, sample.reward) for sample in samples if sample.reward is not None]
    return {
        "correct": [sample for sample, reward in scored if reward > 0],
        "incorrect": [sample for sample, reward in scored if reward <= 0],
        "truncated": [sample for sample in samples if sample.stop_reason == "length"],
    }


def _mean(metrics: Metrics, name: str, values: Iterable[float]) -> None:
    listed = list(values)
    metrics.add({name: (float(sum(listed)), float(len(listed)))})
