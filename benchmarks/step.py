"""A whole GRPO step, ours against TRL 1.16.0, in interleaved pairs on the same machine.

usage: python benchmarks/step.py [--pairs 3] [--steps 3] [--precision bf16|fp32] [--peer-python PATH]

The first step of each process is warm-up and left out. Prints the ratio of median step times (above 1: we are faster) and
appends a line to benchmarks/results/step.jsonl. Needs an environment with TRL: `make bench-step` makes .venv-bench.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from partita.models.load import embedded_folder

HERE = Path(__file__).resolve().parent


def steps_of(python: str, script: str, *arguments: str) -> tuple[list[float], float]:
    """Step seconds without the warm-up step, and the mean response length."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [python, str(HERE / script), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if run.returncode != 0:
        sys.exit(f"{script} failed:\n{run.stderr[-3000:]}")
    report = json.loads(run.stdout.strip().splitlines()[-1])
    return report["seconds"][1:], statistics.mean(report["mean_length"])


def main() -> None:
    """Run the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()
    model, steps = str(embedded_folder()), str(args.steps)
    ratios, ours_all, peer_all = [], [], []
    for pair in range(args.pairs):
        ours, our_length = steps_of(
            sys.executable, "ours_step.py", model, "--steps", steps, *(["--fp32"] if args.precision == "fp32" else [])
        )
        peer, peer_length = steps_of(
            args.peer_python, "peer_trl.py", model, "--steps", steps, *(["--bf16"] if args.precision == "bf16" else [])
        )
        ratios.append(statistics.median(peer) / statistics.median(ours))
        ours_all += ours
        peer_all += peer
        print(
            f"pair {pair + 1}: ours {statistics.median(ours):.1f} s ({our_length:.1f} tokens a response), "
            f"TRL {statistics.median(peer):.1f} s ({peer_length:.1f}), ratio {ratios[-1]:.2f}", flush=True,
        )  # fmt: skip
    line = {
        "name": "step natural short", "ours": statistics.median(ours_all), "peer": f"trl {args.precision}",
        "peer_value": statistics.median(peer_all), "unit": "s/step", "ratio": statistics.median(ratios),
        "ratio_min": min(ratios), "ratio_max": max(ratios), "pairs": args.pairs,
    }  # fmt: skip
    print(f"median ratio {line['ratio']:.2f} (min {line['ratio_min']:.2f}, max {line['ratio_max']:.2f})")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    with (results / "step.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
