"""The whole road of RLHF with the CLI: data, SFT, a reward model, DPO, PPO and GRPO, and what each is truly worth.

usage: python examples/rlhf/run.py [--quick]

From the repository's root; half an hour on two cores, and 13 GB of disk in runs/rlhf. A model that is there already is not
made again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

HERE = Path(__file__).parent
DATA, RUNS = Path("runs/rlhf-data"), Path("runs/rlhf")
MODELS = ("sft", "rm", "dpo", "ppo", "grpo")  # each needs the ones before it at most
COMMAND = {"sft": "sft", "rm": "rm", "dpo": "dpo", "ppo": "train", "grpo": "train"}
FEW = ("total_train_steps=2", "train_dataset.size=16", "train_dataset.batch_size=4", "evaluator.size=8")
QUICK = {
    **dict.fromkeys(("rm", "dpo"), FEW),
    "sft": (*FEW, "train_dataset.held_out=0.3"),  # of so few rows the usual share holds out none
    **dict.fromkeys(("ppo", "grpo"), ("total_train_steps=1", "train_dataset.batch_size=2", "gconfig.n_samples=2")),
}
VERDICT = re.compile(r"([\d.]+) \(95 % interval (-?[\d.]+) to ([\d.]+)\)")


@dataclass(frozen=True)
class Worth:
    """A model's mean true reward on held-out prompts and its 95 % interval."""

    mean: float
    low: float
    high: float


def partita(*words: str) -> list[str]:
    """The command line of the `partita` that belongs to this Python."""
    return [sys.executable, "-m", "partita.cli", *words]


def train(name: str, quick: bool) -> None:
    """Make one model, unless it is there. Raises CalledProcessError."""
    if (RUNS / name / "export").is_dir():
        print(f"{RUNS / name} is there already", flush=True)
        return
    words = QUICK[name] if quick else ()
    subprocess.run(partita(COMMAND[name], str(HERE / f"{name}.yaml"), *words), check=True)


def worth(model: str, prompts: int, samples: int) -> Worth:
    """What the true rule says of a model's responses to held-out prompts, at temperature 1. Raises CalledProcessError."""
    command = partita(
        "eval", model, "--task", str(DATA / "prompts_test.jsonl"), "--reward", f"{HERE / 'rule.py'}:true_reward",
        "--n", str(prompts), "--samples", str(samples), "--temperature", "1",
        "--set", "train_dataset.columns.answer=null", "--set", "gconfig.max_new_tokens=32",
    )  # fmt: skip
    return read_worth(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def read_worth(text: str) -> Worth:
    """The numbers in what `partita eval` prints. Raises ValueError where there are none."""
    found = VERDICT.search(text)
    if found is None:
        raise ValueError(f"partita eval printed no interval: {text!r}")
    return Worth(*map(float, found.groups()))


def history(name: str) -> list[dict[str, float]]:
    """What each train step of a model reported."""
    return [json.loads(line) for line in (RUNS / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def seconds(name: str) -> float:
    """How long its train steps took, evaluation included."""
    return sum(line["time/step"] for line in history(name))


def table(rows: dict[str, Worth], trained: dict[str, tuple[int, float]]) -> str:
    """Markdown. trained: train steps and their seconds, of models that were."""
    lines = ["| model | true reward | 95 % interval | train steps | time |", "|---|---|---|---|---|"]
    for name, one in rows.items():
        took = f"{trained[name][0]} | {minutes(trained[name][1])}" if name in trained else "|"
        lines.append(f"| {name} | {one.mean:.3f} | {one.low:.3f} to {one.high:.3f} | {took} |")
    return "\n".join(lines)


def minutes(time: float) -> str:
    """Of seconds."""
    return f"{int(time // 60)} min {int(time % 60):02d} s"


def main() -> None:
    """All of it, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it runs")
    quick, began = parser.parse_args().quick, monotonic()
    subprocess.run([sys.executable, str(HERE / "make_data.py"), str(DATA)], check=True)
    for name in MODELS:
        train(name, quick)
    size = (4, 2) if quick else (128, 4)
    judged = ("sft", "dpo", "ppo", "grpo")
    models = {"base": "smollm2-135m", **{name: str(RUNS / name / "export") for name in judged}}
    found = {name: worth(model, *size) for name, model in models.items()}
    trained = {name: (len(history(name)), seconds(name)) for name in MODELS}
    steps, time = trained["rm"]
    accuracy = history("rm")[-1]["eval/reward_model/accuracy"]
    print("\n" + table(found, trained))
    print(f"\nreward model: {accuracy:.3f} of held-out pairs ranked rightly, {steps} train steps, {minutes(time)}")
    print(f"all of it: {minutes(monotonic() - began)}")


if __name__ == "__main__":
    main()
