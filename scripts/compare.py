"""Every preset, trained on the same tasks where they can differ: four optimizer steps per rollout batch.

usage: python scripts/compare.py [--parts tiny reasons lengths smollm2] [--only NAME ...] [--report]

tiny: all presets with three seeds, on a tiny model and a task that `tiny_task.py` teaches it first. reasons: presets that
learn little there, with one key changed. lengths: GRPO and Dr.GRPO for longer, for the lengths of their wrong answers.
smollm2: six presets on SmolLM2-135M and a built-in task.
Meant to stay under 90 minutes on two cores that do nothing else: a tiny run took about 40 s (two at a time), one on SmolLM2
seven to ten minutes. Each finished run is a line of <out>/comparison.jsonl and is not trained
again, so a stopped command goes on where it was; a run whose settings have changed is. Writes pictures and the tables of
docs/comparison.md beside it; --report does only that.

Left out: what the tables and pictures show (see `compare_report.py`).
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compare_report
import tiny_task
import torch
from compare_report import PARTS
from pages import ROOT

from partita.algo.presets import PRESETS
from partita.report.records import StepRecord
from partita.report.sinks import read_metrics
from partita.run import load_run_config
from partita.trainer import QUICKSTART, PPOTrainer

SEEDS = (1, 2, 3)
TINY_STEPS, LONG_STEPS, SMOLLM2_STEPS = 60, 150, 25
LARGE = ("grpo", "drgrpo", "rloo", "dapo", "gspo", "sapo")
# the KL term of the GRPO preset also holds lengths, so that GRPO without it is the fairer half of the comparison
LENGTHS = {"grpo": ("grpo", ()), "grpo_without_kl": ("grpo", ("actor.kl_loss_coef=0",)), "drgrpo": ("drgrpo", ())}
# presets of which a seed learns little, each with the one thing changed that may hold it back
REASONS = {
    "reinforce_on_policy": ("reinforce", ("actor.ppo_n_minibatches=1",)),
    "decoupled_clip_with_min": ("decoupled_clip", ("actor.gate=min_clip",)),
    "areal_gspo_narrow": ("areal_gspo", ("actor.eps_clip=3e-4", "actor.eps_clip_higher=4e-4")),
}
ALL = ("actor.ppo_n_minibatches=4", "report.console=quiet", "report.save_samples_every=0", "report.keep_batches=0")
TINY = (
    "train_dataset.batch_size=32", "gconfig.n_samples=8", "gconfig.max_new_tokens=32", "rollout.max_concurrent_rollouts=256",
    "rollout.dtype=float32", "actor.dtype=float32", "actor.optimizer.lr=3e-4", "reward.processes=1",
    "evaluator.n_prompts=400", "evaluator.temperature=1",
)  # fmt: skip
CRITIC = ("critic.dtype=float32", "critic.optimizer.lr=1e-3")  # a value head learns from zero
# beside every run's own: metrics of the loss are over all samples, as when the first results were made
WHOLE = "actor.skip_dead_samples=false"
LARGER = ("actor.optimizer.lr=1e-5", "evaluator.n_prompts=100")
# near the end few groups are mixed, and each of the last missing ones is a round of its own
PATIENCE = "actor.dynamic_sampling.max_batches=200"
CURVES = {
    "reward": "reward/mean", "length_correct": "response_length/correct", "length_incorrect": "response_length/incorrect",
    "entropy": "entropy", "kl_step": "kl_step/k3", "clip_fraction": "clip_fraction", "truncated": "truncated",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One training run. `words` are all of its settings but for the folders and WHOLE."""

    part: str
    arm: str
    seed: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """part/arm/seed."""
        return f"{self.part}/{self.arm}/{self.seed}"


def jobs_of(parts: Sequence[str], seeds: Sequence[int] = SEEDS) -> list[Job]:
    """All runs of these parts, in the order of the tables."""
    found: list[Job] = []
    if "tiny" in parts:
        found += [Job("tiny", name, seed, _words(name, seed, TINY_STEPS, TINY)) for name in PRESETS for seed in seeds]
    for part, variants, steps in (("reasons", REASONS, TINY_STEPS), ("lengths", LENGTHS, LONG_STEPS)):
        for arm, (preset, own) in variants.items() if part in parts else ():
            found += [Job(part, arm, seed, _words(preset, seed, steps, (*TINY, *own))) for seed in seeds]
    if "smollm2" in parts:
        found += [Job("smollm2", name, 1, _words(name, 1, SMOLLM2_STEPS, LARGER)) for name in LARGE]
    return found


def _words(preset: str, seed: int, steps: int, own: Sequence[str]) -> tuple[str, ...]:
    patience = (PATIENCE,) if "dynamic_sampling" in PRESETS[preset] else ()
    critic = CRITIC if PRESETS[preset].get("credit") == "gae" else ()
    given = (f"algorithm={preset}", f"seed={seed}", f"total_train_steps={steps}", f"evaluator.freq_steps={steps}")
    return (*given, *ALL, *own, *critic, *patience)


def run(job: Job, model: Path, threads: int) -> dict[str, Any]:
    """Train and measure one job; a run that cannot go on is a line that says why."""
    torch.set_num_threads(threads)
    line: dict[str, Any] = {"name": job.name, "part": job.part, "arm": job.arm, "seed": job.seed, "words": job.words}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        tiny = (f"actor.path={model}", f"train_dataset.path={tiny_task.__file__}:task")
        words = [f"output_dir={folder}", WHOLE, *job.words, *(() if job.part == "smollm2" else tiny)]
        config = load_run_config([QUICKSTART] if job.part == "smollm2" else [], words).value
        try:
            history = read_metrics(PPOTrainer(config).train() / "metrics.jsonl")
        except Exception as error:  # it is shown in the table, and the other runs are not its business
            reason = "".join(traceback.format_exception_only(error)).strip()
            return line | {"error": reason, "seconds": time.perf_counter() - began}
    return line | measured(history) | {"seconds": time.perf_counter() - began}


def measured(history: Sequence[StepRecord]) -> dict[str, Any]:
    """The numbers and curves of a finished run; None where a step, or all of them, has no such number."""
    curves = {name: [_rounded(step.metrics.get(metric)) for step in history] for name, metric in CURVES.items()}
    reward = [value for value in curves["reward"] if value is not None]
    found: dict[str, Any] = {"steps": len(history), "curves": curves}
    found |= {"reward_first3": statistics.mean(reward[:3]), "reward_last3": statistics.mean(reward[-3:])}
    for name in ("kl_step", "clip_fraction"):
        values = [value for value in curves[name] if value is not None]
        found[name] = statistics.mean(values) if values else None
    return found | {"held_out": history[-1].metrics.get("eval/reward")}


def _rounded(value: float | None) -> float | None:
    """Four significant digits: curves are for tables and pictures."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def missing(jobs: Sequence[Job], lines: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """Jobs without a line, with one of other settings, or with one that says what went wrong."""
    there = {name: line["words"] for name, line in lines.items() if "error" not in line}
    return [job for job in jobs if list(job.words) != there.get(job.name)]


def tidied(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """The lines of all planned runs in their order, as the text of a results file."""
    return "".join(json.dumps(lines[job.name]) + "\n" for job in jobs_of(PARTS) if job.name in lines)


def train_all(jobs: Sequence[Job], results: Path, workers: int, threads: int) -> None:
    """Run the jobs in `workers` processes and append each result as soon as it is there."""
    model = ROOT / "runs" / "comparison" / "model"
    if not (model / "config.json").exists():
        print(f"teaching the tiny model its format: {model}", flush=True)
        tiny_task.teach(model)
    spawn = multiprocessing.get_context("spawn")  # a fork of a process that has used torch's threads can hang
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool, results.open("a", encoding="utf-8") as file:
        waiting = [pool.submit(run, job, model, threads) for job in jobs]
        for count, future in enumerate(as_completed(waiting), 1):
            line = future.result()
            file.write(json.dumps(line) + "\n")
            file.flush()
            said = line.get("error") or f"reward {line['reward_first3']:.3f} -> {line['reward_last3']:.3f}"
            print(f"[{count}/{len(jobs)}] {line['name']}: {said}, {line['seconds']:.0f} s", flush=True)


def main() -> None:
    """Train what is missing, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="presets (or arms) to train; all if left out")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--report", action="store_true", help="train nothing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results, cores = args.out / "comparison.jsonl", os.cpu_count() or 1
    jobs = [job for job in jobs_of(args.parts) if not args.only or job.arm in args.only]
    todo = [] if args.report else missing(jobs, compare_report.read(results))
    # a tiny model gains nothing from a second thread: two runs side by side, then one large one at a time
    for small, workers, threads in ((True, cores, 1), (False, 1, cores)):
        if chosen := [job for job in todo if (job.part != "smollm2") == small]:
            train_all(chosen, results, workers, threads)
    results.write_text(tidied(compare_report.read(results)), encoding="utf-8")
    compare_report.write(compare_report.read(results), args.out)


if __name__ == "__main__":
    main()
