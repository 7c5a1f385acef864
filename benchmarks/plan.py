"""`partita plan` against reality: what it says of six runs, and what these then take, each in a process of its own.

usage: python benchmarks/plan.py [--steps 5] [--only NAME ...] [--quick] [--no-time]

A run's memory is the highest that it held, compared with what the plan expects; its time is the median of its steps without the
first. Its learning rate is next to nothing, so that it goes on to write responses as long as those that the plan saw; and all
samples pass through the model, as the plan assumes.
Ends with 1 where memory is off by more than 15 % (or above the plan's most by as much), or a step's time by more than 25 %.
--quick: two steps, nothing written. --no-time: memory alone, which does not depend on what else the machine does.
Left out: runs on several processes, whose times are formulas.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from results import FOLDER, Line, write
from workers import installed

FILE = FOLDER / "plan.jsonl"
MEMORY, TIME = 0.15, 0.25
GIB = 2**30
STILL = ("actor.optimizer.lr=1e-9", "actor.skip_dead_samples=false", "report.console=plain")
PHASES = ("sample", "score", "learn", "publish")


@dataclass(frozen=True)
class Case:
    """A run to plan and to take. preset: of the built-in task."""

    name: str
    preset: str
    words: tuple[str, ...]


CASES = (
    Case("demo", "grpo", ("actor.kl_loss_coef=0",)),
    Case("larger token budget", "grpo", (
        "actor.kl_loss_coef=0", "train_dataset.batch_size=16", "actor.mb_spec.max_tokens_per_mb=8192")),
    Case("long responses", "grpo", (
        "actor.kl_loss_coef=0", "train_dataset.batch_size=4", "gconfig.max_new_tokens=256")),
    Case("LoRA", "grpo", ("actor.kl_loss_coef=0.04", "actor.lora.rank=16")),
    Case("PPO with a critic", "ppo", ("actor.kl_ctl=0", "critic.optimizer.lr=1e-9")),
    Case("gradient checkpointing", "grpo", (
        "actor.kl_loss_coef=0", "train_dataset.batch_size=16", "actor.gradient_checkpointing=true")),
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """What was planned and what came of it. memory: bytes, most: the highest planned; step: seconds; phases: seconds by name."""

    case: Case
    memory: tuple[float, float]
    most: float
    step: tuple[float, float]
    phases: dict[str, tuple[float, float]]

    @property
    def ratios(self) -> tuple[float, float]:
        """Planned over measured: memory, time."""
        return self.memory[0] / self.memory[1], self.step[0] / self.step[1]


def compared(case: Case, steps: int, *, calibrate: bool) -> Compared:
    """Plan, then run. Raises SystemExit with the output of a command that fails."""
    words = [case.preset, *case.words, *STILL, f"total_train_steps={steps}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        said, _ = command(out, ["plan", *words, "--json", *([] if calibrate else ["--no-calibrate"])])
        plan = json.loads(said)
        _, peak = command(out, ["train", *words, f"output_dir={folder}", "trial_name=run"])
        [run] = out.glob("*/run/metrics.jsonl")
        records = [json.loads(line) for line in run.read_text().splitlines()][1:]
    seconds = {name: median(record.get(f"time/{name}", 0.0) for record in records) for name in ("step", *PHASES)}
    told = plan["stages"][0]["seconds"]
    planned = told | {"learn": told["learn"] + told["critic"]}
    phases = {name: (planned[name], seconds[name]) for name in PHASES}
    memory = (plan["expected_bytes"], peak)
    return Compared(case, memory, plan["need_bytes"], (told["step"], seconds["step"]), phases)


def command(folder: Path, words: Sequence[str]) -> tuple[str, float]:
    """What a command of partita prints, and its highest resident memory in bytes."""
    out, log = folder / "out", folder / "log"
    with out.open("w") as printed, log.open("w") as errors:
        process = subprocess.Popen([sys.executable, "-m", "partita.cli", *words], stdout=printed, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"partita {' '.join(words)}\n{out.read_text()[-1000:]}\n{log.read_text()[-2000:]}")
    return out.read_text(), used.ru_maxrss * 1024.0  # Linux counts in KiB


def lines(one: Compared) -> list[Line]:
    """For the file of results."""
    return [
        Line(
            f"plan {what} {one.case.name}",
            planned,
            unit,
            "measured",
            measured,
            ratio,
            ratio,
            ratio,
            {},
            1,
            note,
            least=1,
        )
        for what, unit, (planned, measured), ratio, note in (
            (
                "memory",
                "GiB",
                (one.memory[0] / GIB, one.memory[1] / GIB),
                one.ratios[0],
                f"at most {one.most / GIB:.2f}",
            ),
            ("step", "s/step", one.step, one.ratios[1], ""),
        )
    ]


def table(found: Sequence[Compared]) -> str:
    """Markdown: planned, measured and their ratio."""
    rows = [
        "| run | GiB planned (at most) | measured | ratio | s/step planned | measured | ratio | phases, planned / measured |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    for one in found:
        memory, step = one.ratios
        phases = ", ".join(f"{name} {a:.1f} / {b:.1f}" for name, (a, b) in one.phases.items() if max(a, b) >= 0.05)
        planned, held, most = (size / GIB for size in (*one.memory, one.most))
        numbers = f"{planned:.2f} ({most:.2f}) | {held:.2f} | {memory:.2f} | {one.step[0]:.1f} | {one.step[1]:.1f}"
        rows.append(f"| {one.case.name} | {numbers} | {step:.2f} | {phases} |")
    return "\n".join(rows)


def off(found: Sequence[Compared], *, timed: bool) -> list[str]:
    """What is further off than it may be."""
    wrong = list[str]()
    for one in found:
        memory, step = one.ratios
        wrong += [f"{one.case.name}: memory {memory:.2f}"] if abs(memory - 1) > MEMORY else []
        wrong += [f"{one.case.name}: memory above the most"] if one.memory[1] > (1 + MEMORY) * one.most else []
        wrong += [f"{one.case.name}: step {step:.2f}"] if timed and abs(step - 1) > TIME else []
    return wrong


def main() -> None:
    """Compare every case, and write `results/plan.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    args = parser.parse_args()
    timed, found = not args.no_time, list[Compared]()
    for case in CASES:
        if args.only is None or case.name in args.only:
            found.append(compared(case, 2 if args.quick else args.steps, calibrate=timed))
            print(table(found).splitlines()[-1], flush=True)
    print("\n" + table(found))
    kept = [line for one in found for line in lines(one) if timed or " memory " in line.name]
    write(FILE, kept, installed(), keep=not args.quick)
    if wrong := off(found, timed=timed):
        sys.exit(f"off by more than memory {MEMORY:.0%}, time {TIME:.0%}: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
