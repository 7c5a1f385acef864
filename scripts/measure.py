"""The trainings behind the numbers in the docs: train with several seeds, evaluate on held-out prompts before and after.

usage: python scripts/measure.py quickstart|addition|ppo [--seeds 1 2 3] [--prompts 200] [--out docs/results] [--report]

Each seed is a real `partita train` process; the evaluation is greedy, on held-out prompts, in the training's precision. Writes
<out>/<name>.jsonl (one line per seed) and <out>/<name>_seed<n>.svg (the learning curve), and prints a table; --report only prints
what is there.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from partita.evals.estimators import avg_at_k, paired_difference
from partita.player import evaluate
from partita.report.sinks import read_metrics
from partita.run import load_run_config
from partita.runfolder import EXPORT
from partita.trainer import QUICKSTART, PPOTrainer

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CONFIGS = {"quickstart": QUICKSTART, "addition": EXAMPLES / "addition.yaml", "ppo": EXAMPLES / "ppo.yaml"}


def measure(name: str, seed: int, prompts: int, out: Path) -> dict[str, object]:
    """Train one seed and compare the start with the end on the same held-out prompts."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"seed={seed}", f"output_dir={folder}", f"evaluator.n_prompts={prompts}", "report.console=plain"]
        config = load_run_config([CONFIGS[name]], words).value
        began = time.perf_counter()
        run = PPOTrainer(config).train()
        seconds = time.perf_counter() - began
        history = read_metrics(run / "metrics.jsonl")
        explained = [record.metrics.get("critic/explained_variance") for record in history]
        rewards = [record.metrics["reward/mean"] for record in history]
        trained = replace(config, actor=replace(config.actor, path=str(run / EXPORT)))
        before, after = (evaluate(one)[0].evaluation for one in (config, trained))
        shutil.copy(run / "reward.svg", out / f"{name}_seed{seed}.svg")
    gain = paired_difference(before.rewards, after.rewards)
    first, last = avg_at_k(list(before.rewards.values())), avg_at_k(list(after.rewards.values()))
    return {
        "name": name, "seed": seed, "steps": len(history), "prompts": len(before.groups),
        "reward_first3": statistics.mean(rewards[:3]), "reward_last3": statistics.mean(rewards[-3:]),
        "train_seconds": sum(record.metrics["time/step"] for record in history), "process_seconds": seconds,
        "before": first.mean, "before_interval": [first.low, first.high],
        "after": last.mean, "after_interval": [last.low, last.high],
        "gain": gain.mean, "gain_interval": [gain.low, gain.high], "curve": rewards,
        **({"explained_variance": explained} if any(value is not None for value in explained) else {}),
    }  # fmt: skip


def reached(curve: list[float], level: float = 0.8) -> int | None:
    """Train steps until the mean reward of the last three is at least `level`; None where it never is."""
    means = (statistics.mean(curve[at : at + 3]) for at in range(len(curve) - 2))
    return next((at + 3 for at, mean in enumerate(means) if mean >= level), None)


def main() -> None:
    """Measure every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONFIGS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "docs" / "results")
    parser.add_argument("--report", action="store_true", help="print what was measured before")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{args.name}.jsonl"
    if not args.report:
        measured = [measure(args.name, seed, args.prompts, args.out) for seed in args.seeds]
        file.write_text("".join(json.dumps(line) + "\n" for line in measured))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    print(
        "| seed | reward, first 3 steps | last 3 | steps to 0.8 | a step | training | held-out before | after | gain |"
    )
    for x in lines:
        low, high = x["gain_interval"]
        print(
            f"| {x['seed']} | {x['reward_first3']:.3f} | {x['reward_last3']:.3f} | {reached(x['curve']) or 'never'} | "
            f"{x['train_seconds'] / x['steps']:.1f} s | {x['train_seconds']:.0f} s | "
            f"{x['before']:.3f} | {x['after']:.3f} | {x['gain']:+.3f} ({low:+.3f} to {high:+.3f}) |"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
