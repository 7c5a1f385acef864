"""Peak resident memory of training by what is in memory: each way of training in a process of its own.

usage: python scripts/memory.py [--only NAME ...] [--model smollm2-135m] [--steps 2] [--out docs/results]

Trains a few steps of a few short samples in bfloat16 over float32 weights, so that models weigh more than activations do.
Writes <out>/memory.jsonl, one line per way, and the tables of docs/models-in-memory.md and its Chinese twin where they are
about the same model.
Left out: what a step's tokens take; see docs/performance.md for how that grows.
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
from typing import Any

from compare_report import filled
from pages import ROOT

MODEL = "smollm2-135m"
PAGES = {"en": ROOT / "docs" / "models-in-memory.md", "zh": ROOT / "docs" / "zh" / "models-in-memory.md"}
HEADS = {
    "en": "| run | overrides | by the table above, bytes a parameter | peak, GiB | more than `grpo` |",
    "zh": "| 运行 | 覆盖项 | 按上表，每个参数的字节数 | 峰值，GiB | 比 `grpo` 多 |",
}
PRECISION = ("actor.dtype=bfloat16", "rollout.dtype=bfloat16")
SAMPLES = (
    "train_dataset.path=largest",
    "train_dataset.batch_size=2",
    "gconfig.n_samples=4",
    "gconfig.max_new_tokens=32",
)
LORA = "actor.lora.rank=16"


@dataclass(frozen=True)
class Way:
    """A run to measure. told: what the page's table of bytes a parameter adds up to; A stands for parameters of adapters."""

    name: str
    preset: str
    words: tuple[str, ...]
    told: str


WAYS = (
    Way("grpo", "grpo", ("actor.kl_loss_coef=0",), "18"),
    Way("grpo with a reference", "grpo", ("actor.kl_loss_coef=0.04", "ref.dtype=bfloat16"), "20"),
    Way("grpo with a reference, LoRA", "grpo", ("actor.kl_loss_coef=0.04", LORA), "6 + 16 A"),
    Way("ppo, critic of its own", "ppo", ("actor.kl_ctl=0", "critic.dtype=bfloat16"), "30"),
    Way("ppo, shared critic", "ppo", ("actor.kl_ctl=0", "critic.shared=true"), "18"),
    Way("ppo, LoRA on both", "ppo", ("actor.kl_ctl=0", "critic.dtype=bfloat16", LORA, "critic.lora.rank=16"), "10 + 28 A"),
)  # fmt: skip


def measure(way: Way, model: str, steps: int) -> dict[str, Any]:
    """Train in a process of its own; its highest resident memory. Raises SystemExit with its output where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*PRECISION, *SAMPLES, *way.words, f"actor.path={model}", f"total_train_steps={steps}"]
        command = ["train", way.preset, *words, f"output_dir={folder}", "report.console=plain"]
        log = Path(folder) / "log"
        with log.open("w") as out:
            process = subprocess.Popen([sys.executable, "-m", "partita.cli", *command], stdout=out, stderr=out)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"partita {' '.join(command)}\n{log.read_text()[-2000:]}")
    peak = used.ru_maxrss / 2**20  # Linux counts in KiB
    return {"name": way.name, "model": model, "steps": steps, "peak_gib": peak, "told": way.told, "words": way.words}


def table(lines: Sequence[dict[str, Any]], language: str) -> str:
    """Markdown; the last column where the first way was measured, too."""
    base = next((line["peak_gib"] for line in lines if line["name"] == WAYS[0].name), None)
    rows = [HEADS[language], "|---|---|---|---|---|"]
    for line in lines:
        more = "" if base is None or line["name"] == WAYS[0].name else f"{line['peak_gib'] - base:+.2f}"
        words = f"`{' '.join(line['words'])}`"
        rows.append(f"| {line['name']} | {words} | {line['told']} | {line['peak_gib']:.2f} | {more} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure every way; write lines and tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[way.name for way in WAYS], help="these ways; all if not given")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    lines = list[dict[str, Any]]()
    for way in WAYS:
        if args.only is None or way.name in args.only:
            lines.append(measure(way, args.model, args.steps))
            print(f"{way.name}: {lines[-1]['peak_gib']:.2f} GiB", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "memory.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    if args.model == MODEL and args.only is None:
        for language, page in PAGES.items():
            page.write_text(
                filled(page.read_text(encoding="utf-8"), {"memory": table(lines, language)}), encoding="utf-8"
            )
    print("\n" + table(lines, "en"), end="")


if __name__ == "__main__":
    main()
