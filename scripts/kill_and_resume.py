"""Kill a training run with SIGKILL at random moments, resume it, and compare with a run that was never interrupted.

usage: python scripts/kill_and_resume.py [--run grpo] [--kills 20] [--seed 0] [--steps 8] [--adaptive]

Every trial starts a real `partita` process on a tiny random model (float32, a checkpoint after every step), kills it at a random
moment of its life, and resumes it. Equal means: the same metrics line for line (wall-clock values left out), the same exported
weights and the same last checkpoint, moments and critic included, byte for byte. Exit code 1 if any trial differs. --run is a
preset that samples (grpo, ppo), or what is learned from data (sft, rm, dpo). With --adaptive a sampling run also has running
statistics, rules that move the clip range, the KL and the entropy coefficient, group sizes that follow the prompts, groups that
wait for the next step, and stages.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tiny_model

# Something a random model can earn, with variance inside every group.
REWARD = """
def vowels(response):
    letters = [c for c in response.lower() if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / (1 + len(letters))
"""
COMMON = """
experiment_name: kills
output_dir: {root}
seed: 3
total_train_steps: {steps}
checkpoint: {{freq_steps: 1}}
report: {{console: quiet}}
"""
SAMPLED = """
algorithm: {run}
gconfig: {{n_samples: 4, max_new_tokens: 12}}
rollout: {{dtype: float32}}
actor:
  path: {root}/model
  dtype: float32
  kl_loss_coef: 0.0
  ppo_n_minibatches: 2
  ppo_epochs: 2
  optimizer: {{lr: 0.01, lr_scheduler_type: cosine, warmup_steps: 2}}
train_dataset: {{path: addition, size: 40, batch_size: 4}}
reward: {{functions: ["{root}/vowels.py:vowels"]}}
"""
OF_DATA = """
actor:
  path: {root}/model
  dtype: float32
  optimizer: {{lr: 0.01, lr_scheduler_type: cosine, warmup_steps: 2}}
train_dataset: {{path: "{root}/rows.jsonl", batch_size: 3, held_out: 0.2}}
evaluator: {{freq_steps: 2}}
"""
COMMANDS = {"grpo": "train", "ppo": "train", "sft": "sft", "rm": "rm", "dpo": "dpo"}
ADAPTIVE = """
stages:
  - {until: {step: 3}, set: {gconfig.max_new_tokens: 8}}
  - until: {plateau: reward/mean, window: 1, delta: 1.0}
  - set: {actor.eps_clip_rule: {type: iqr}, train_dataset.batch_size: 3}
"""
RULES = (
    "actor.adv_norm={mean_level: ema, std_level: ema}",
    "actor.adaptive_entropy={target: 6.0, delta: 0.01}",
    "actor.kl_loss_coef=0.04",
    "actor.kl_controller={type: ziegler, target: 0.1, horizon: 50}",
    "gconfig.adaptive_n={score: variance, max: 8}",
    "actor.dynamic_sampling={filter: mixed_rewards, oversample: 1.5}",
)


def command(*arguments: str) -> subprocess.Popen:
    """Start `partita` in a process of its own, one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "partita.cli", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> None:
    """Wait for success."""
    output, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        sys.exit(f"a run failed with exit code {process.returncode}:\n{output}")


def rows(command: str) -> str:
    """Data that a random model can be moved by, as lines of JSON."""
    asked = [
        {"prompt": f"What is {n} and {n * 7}?", "chosen": f"It is {n * 8}.", "rejected": "!" * (1 + n % 5)}
        for n in range(12)
    ]
    if command == "sft":
        asked = [{"prompt": one["prompt"], "completion": one["chosen"]} for one in asked]
    return "".join(json.dumps(one) + "\n" for one in asked)


def outcome(folder: Path) -> tuple[list[dict], str]:
    """Metrics without wall-clock values, and a hash of the exported weights and of the last checkpoint."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if not k.startswith(("time/", "tokens_per_second"))} for line in lines]
    last = max((folder / "checkpoints").glob("step_*"))
    files = [folder / "export" / "model.safetensors", *sorted(last.iterdir())]
    return timeless, hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def difference(got: tuple[list[dict], str], want: tuple[list[dict], str]) -> str:
    """What differs, in words; empty when nothing does."""
    if got[1] != want[1]:
        return "weights differ"
    for mine, theirs in zip(got[0], want[0], strict=True):
        if mine != theirs:
            return f"step {theirs['step']}: " + ", ".join(k for k in theirs if mine.get(k) != theirs[k])
    return ""


def trial(name: str, words: tuple[str, ...], folder: Path, delay: float) -> str:
    """Kill one run of the command `name` after `delay` seconds and bring it to its end; says where it stood."""
    process = command(name, *words)
    try:
        process.wait(delay)
        return "ended before the kill"
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    saved = sorted(p.name for p in (folder / "checkpoints").glob("*")) if folder.exists() else []
    if (folder / "config.yaml").exists():
        finish(command(name, "--resume", str(folder)))
    else:  # killed before there was a run to resume
        finish(command(name, *words))
    return f"killed at {delay:.2f} s, on disk: {', '.join(saved) or 'nothing'}"


def main() -> None:
    """Run the reference, then the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=COMMANDS, default="grpo")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--adaptive", action="store_true")
    args = parser.parse_args()
    name = COMMANDS[args.run]
    if args.adaptive and name != "train":
        parser.error("--adaptive is for runs that sample")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        tiny_model.make(root / "model")
        (root / "vowels.py").write_text(REWARD)
        config = root / "config.yaml"
        (root / "rows.jsonl").write_text(rows(name))
        text = COMMON + (SAMPLED if name == "train" else OF_DATA)
        config.write_text(text.format(root=root, steps=args.steps, run=args.run) + (ADAPTIVE if args.adaptive else ""))
        words = RULES if args.adaptive else ()
        began = time.perf_counter()
        finish(command(name, str(config), "trial_name=reference", *words))
        life = time.perf_counter() - began
        want = outcome(root / "kills" / "reference")
        told = "reward/mean" if name == "train" else "loss"
        first, last = want[0][0][told], want[0][-1][told]
        print(f"reference: {len(want[0])} steps, {life:.1f} s, {told} {first:.3f} -> {last:.3f}")
        moments = random.Random(args.seed)
        failures = 0
        for i in range(args.kills):
            folder = root / "kills" / f"trial{i}"
            # most of a short run is start-up: three kills in four fall into the part that trains
            delay = moments.uniform(0.0, life) if i % 4 == 0 else moments.uniform(0.45 * life, 0.98 * life)
            said = trial(name, (str(config), f"trial_name={folder.name}", *words), folder, delay)
            problem = difference(outcome(folder), want)
            failures += bool(problem)
            print(f"{i + 1:3d}/{args.kills} {said}: {problem or 'equal'}", flush=True)
    print(f"{args.kills - failures} of {args.kills} equal to the uninterrupted run")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
