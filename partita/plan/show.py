"""A plan for the reader: tables of batches, memory and time; or one JSON document with all numbers.

Left out: the numbers themselves (`plan.plan`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from partita.plan.batch import Batch, Passes
from partita.plan.memory import ALWAYS, Memory
from partita.plan.plan import RunPlan, StagePlan
from partita.plan.room import CLOSE, GIB
from partita.plan.speed import hours
from partita.report.table import Table

PHASES = {
    "sample": "prompts once, then decode steps until the last response ends",
    "score": "passes without gradient",
    "critic": "its epochs and optimizer steps",
    "learn": "epochs x (forward, backward), and optimizer steps",
    "publish": "new weights into the engine",
    "communicate": "weights and gradients between learners, and to servers",
    "rest": "rewards, credit, reports: 3 % of a step",
}
SAME = 0.99
"""Of two sizes that are shown as one."""


def lines_of(plan: RunPlan) -> Iterator[str]:
    """For a terminal or a pipe."""
    for table in (batches(plan), *map(memory_table, _holdings(plan)), times(plan)):
        yield from table.text()
    share = plan.need / plan.room.bytes
    where = "on a machine" if plan.room.on_cpu else "on a GPU"
    verdict = "does not fit" if not plan.fits else "fits, but for little" if share > CLOSE else "fits"
    usual = f"{_gib(plan.expected)} are expected, at most " if plan.expected < SAME * plan.need else ""
    yield f"memory: {usual}{_gib(plan.need)} {where} at the peak, of {_gib(plan.room.bytes)} ({plan.room.source}): {verdict}"
    yield f"time: {hours(plan.seconds)} for {plan.steps} train steps, without evaluations and checkpoints; {plan.speed.source}"
    for note in plan.notes:
        yield f"  - {note}"


def batches(plan: RunPlan) -> Table:
    """Batch arithmetic, a column for each stage."""
    head = (
        "batch",
        *(f"stage {index}" if len(plan.stages) > 1 else "a train step" for index in range(len(plan.stages))),
    )
    columns = [dict(_counts(one)) for one in plan.stages]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = tuple((name, *(column.get(name, "") for column in columns)) for name in names)
    return Table("batches", head, rows)


def _counts(one: StagePlan) -> Iterator[tuple[str, str]]:
    batch, widest, lengths = one.stage.batch, one.stage.widest, one.stage.lengths
    yield "prompts", f"{batch.prompts:,}"
    yield "samples", f"{batch.samples:,} ({batch.samples_per_prompt} each)"
    yield "tokens of a prompt", f"{lengths.prompt:.0f}, at most {lengths.longest_prompt}"
    yield "tokens of a response", f"{lengths.response:.0f}, at most {lengths.longest_response:,}"
    yield "generated tokens", _both(batch, widest, "generated")
    yield "model-input tokens of a pass", _both(batch, widest, "read")
    yield from _passes("policy", batch.actor, widest.actor, one.stage.config.allocation.learners)
    if batch.critic is not None and widest.critic is not None:
        yield from _passes("critic", batch.critic, widest.critic, one.stage.config.allocation.learners)


def _both(batch: Batch, widest: Batch, name: str) -> str:
    return f"{getattr(batch.expected, name):,}, at most {getattr(widest.most, name):,}"


def _passes(name: str, passes: Passes, widest: Passes, ranks: int) -> Iterator[tuple[str, str]]:
    yield (
        f"{name}: optimizer steps",
        f"{passes.optimizer_steps} ({passes.epochs} epochs x {passes.minibatches} minibatches)",
    )
    yield f"{name}: micro-batches of an epoch", f"{passes.micro_batches}, at most {widest.micro_batches}"
    yield f"{name}: tokens of the largest", f"{passes.largest:,}, at most {widest.fullest:,}"
    if ranks > 1:
        yield f"{name}: micro-batches of a rank", f"{passes.per_rank} a minibatch, on each of {ranks} ranks"


def _holdings(plan: RunPlan) -> list[tuple[str, Memory]]:
    """Those of the stage that needs most."""
    fullest = max(plan.stages, key=lambda one: one.need)
    return [(f"{one.name}{f' (x {one.count})' if one.count > 1 else ''}", one.memory) for one in fullest.holdings]


def memory_table(held: tuple[str, Memory]) -> Table:
    """Parts by size, which of them are there at the peak, and the moments."""
    name, memory = held
    rows = tuple(
        (part.name, _gib(part.bytes), "yes" if memory.peak_at in part.moments else "", _when(part.moments))
        for part in sorted(memory.parts, key=lambda part: -part.bytes)
    )
    total = (("at the peak", _gib(memory.peak), "", memory.peak_at),)
    moments = ", ".join(f"{moment} {_gib(memory.at(moment))}" for moment in ALWAYS if _happens(memory, moment))
    return Table(f"memory of {name}", ("part", "size", "at the peak", "when"), (*rows, *total), (moments,))


def _happens(memory: Memory, moment: Any) -> bool:
    """Whether anything of its own is there in a moment."""
    return any(moment in part.moments and part.moments not in (ALWAYS, ALWAYS[1:]) for part in memory.parts)


def _when(moments: tuple[str, ...]) -> str:
    if moments == ALWAYS:
        return "always"
    return "from the first step on" if moments == ALWAYS[1:] else ", ".join(moments)


def times(plan: RunPlan) -> Table:
    """Seconds of a step by phase, a column for each stage."""
    head = (
        "phase",
        *(f"stage {i}" if len(plan.stages) > 1 else "a train step" for i in range(len(plan.stages))),
        "what",
    )
    found = [one.seconds for one in plan.stages]
    rows = [
        (name, *(f"{getattr(seconds, name):.2f} s" for seconds in found), what)
        for name, what in PHASES.items()
        if any(getattr(seconds, name) > 0 for seconds in found)
    ]
    rows.append(("step", *(f"{seconds.step:.2f} s" for seconds in found), ""))
    return Table("time", head, tuple(rows))


def document(plan: RunPlan) -> dict[str, Any]:
    """All numbers, in bytes, tokens and seconds."""
    return {
        "fits": plan.fits,
        "need_bytes": plan.need,
        "expected_bytes": plan.expected,
        "room_bytes": plan.room.bytes,
        "room": plan.room.source,
        "steps": plan.steps,
        "seconds": plan.seconds,
        "stages": [_stage(one) for one in plan.stages],
        "speed": asdict(plan.speed),
        "changes": [{"set": list(one.words), "need_bytes": one.need} for one in plan.changes],
        "notes": list(plan.notes),
    }


def _stage(one: StagePlan) -> dict[str, Any]:
    return {
        "lengths": asdict(one.stage.lengths),
        "batch": asdict(one.stage.batch) | {"samples": one.stage.batch.samples},
        "most": asdict(one.stage.widest),
        "seconds": asdict(one.seconds) | {"step": one.seconds.step},
        "processes": [
            {
                "name": held.name,
                "count": held.count,
                "peak_bytes": held.memory.peak,
                "peak_at": held.memory.peak_at,
                "parts": [asdict(part) for part in held.memory.parts],
            }
            for held in one.holdings
        ],
    }


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / 2**20:.2f} MiB"
