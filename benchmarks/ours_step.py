"""Our side of `step.py`: GRPO steps of the short workload. Prints one JSON line with its step times.

usage: python benchmarks/ours_step.py MODEL_FOLDER [--fp32] [--steps 3]
"""

import argparse
import json
import tempfile

from partita.report.sinks import read_metrics
from partita.run import load_run_config
from partita.trainer import QUICKSTART, PPOTrainer


def main() -> None:
    """Train a few steps in a temporary run folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    precision = "float32" if args.fp32 else "bfloat16"
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"actor.path={args.model}", f"actor.dtype={precision}", f"rollout.dtype={precision}", f"output_dir={folder}",
            f"total_train_steps={args.steps}", "actor.optimizer.lr=1e-5", "report.console=quiet",
        ]  # fmt: skip
        run = PPOTrainer(load_run_config([QUICKSTART], words).value).train()
        metrics = [record.metrics for record in read_metrics(run / "metrics.jsonl")]
    print(json.dumps({
        "seconds": [m["time/step"] for m in metrics], "mean_length": [m["response_length/mean"] for m in metrics]
    }))  # fmt: skip


if __name__ == "__main__":
    main()
