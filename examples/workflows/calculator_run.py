"""The calculator example from start to end: conversations, SFT, RL with the tool, and what base, SFT and RL are worth.

usage: python examples/workflows/calculator_run.py [--quick] [--check-ids] [--seed 1] [--runs runs/calculator]

From the repository's root; 37 minutes on two cores beside other programs. --check-ids: compare, for every trajectory that RL
trained on, what the engine returned with what was trained on (`check_ids.py`), and print the number of differences.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import calculator
import check_ids

from partita.cli import readable_errors
from partita.run import load_run_config

HERE = Path(__file__).parent
BASE = "smollm2-135m"
QUICK = {
    "sft": ("total_train_steps=2", "train_dataset.batch_size=4"),
    "rl": ("total_train_steps=1", "train_dataset.batch_size=2", "gconfig.n_samples=2", "evaluator.freq_steps=null"),
}
VERDICT = re.compile(r"([\d.]+) \(95 % interval (-?[\d.]+) to ([\d.]+)\)")


@dataclass(frozen=True)
class Worth:
    """The share of right final answers on held-out questions, and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} | {self.low:.3f} to {self.high:.3f}"


def worth(model: str, data: str, prompts: int) -> Worth:
    """How often a model is right with the calculator at hand, one sample of each prompt at temperature 1. Raises
    CalledProcessError.
    """
    command = [
        sys.executable, "-m", "partita.cli", "eval", model, "--task", data, "--n", str(prompts), "--samples", "1",
        "--temperature", "1", "--set", "gconfig.max_new_tokens=48", "--set", "rollout.workflow=tools",
        "--set", f"rollout.workflow_kwargs={{tools: ['{HERE / 'calculator.py'}:calculator'], max_turns: 3}}",
    ]  # fmt: skip
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return read_worth(printed)


def read_worth(text: str) -> Worth:
    """The numbers in what `partita eval` prints. Raises ValueError where there are none."""
    found = VERDICT.search(text)
    if found is None:
        raise ValueError(f"partita eval printed no interval: {text!r}")
    return Worth(*map(float, found.groups()))


def sft(runs: Path, seed: int, quick: bool) -> Path:
    """The warm start; its model folder. One that is there is not made again. Raises CalledProcessError."""
    export = runs / f"sft_{seed}" / "export"
    if export.is_dir():
        print(f"{export} is there already", flush=True)
        return export
    data = runs / "data" / f"sft_{seed}.jsonl"
    calculator.main([str(data), "--seed", str(seed)])
    words = [*where(runs, "sft", seed), f"train_dataset.path={data}", *(QUICK["sft"] if quick else ())]
    command = [sys.executable, "-m", "partita.cli", "sft", str(HERE / "calculator_sft.yaml"), *words]
    subprocess.run(command, check=True)
    return export


def rl(runs: Path, seed: int, quick: bool, start: Path) -> check_ids.Checked:
    """RL from the warm start, with every request to the engine on record."""
    words = [*where(runs, "rl", seed), f"actor.path={start}", f"train_dataset.path={HERE / 'calculator.py'}:task"]
    words += [f"rollout.workflow_kwargs.tools=[{HERE / 'calculator.py'}:calculator]", *(QUICK["rl"] if quick else ())]
    with readable_errors():
        config = load_run_config([HERE / "calculator.yaml"], words).value
        return check_ids.check(*check_ids.recorded(config))


def where(runs: Path, name: str, seed: int) -> list[str]:
    """Which run folder is written."""
    return [f"output_dir={runs.parent}", f"experiment_name={runs.name}", f"trial_name={name}_{seed}", f"seed={seed}"]


def main() -> None:
    """All of it, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it runs")
    parser.add_argument("--check-ids", action="store_true", help="compare what was sampled with what was trained on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/calculator"))
    args = parser.parse_args()
    began, data, size = monotonic(), f"{HERE / 'calculator.py'}:task", 8 if args.quick else 200
    times = {"base": 0.0}
    start = sft(args.runs, args.seed, args.quick)
    times["SFT"] = monotonic() - began
    checked = rl(args.runs, args.seed, args.quick, start)
    times["RL"] = monotonic() - began - times["SFT"]
    models = {"base": BASE, "SFT": str(start), "RL": str(checked.folder / "export")}
    print("\n| model | right | 95 % interval | training |\n|---|---|---|---|")
    for name, model in models.items():
        print(f"| {name} | {worth(model, data, size)} | {times[name]:.0f} s |", flush=True)
    if args.check_ids:
        print(f"\n{checked}")
    print(f"\nall of it: {monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
