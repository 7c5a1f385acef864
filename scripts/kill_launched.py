"""Kill one process of a run of several with SIGKILL, or its whole Slurm job with scancel, at random moments, resume the run, and
compare with one that nobody disturbed.

usage: python scripts/kill_launched.py [--launcher local|ray|slurm] [--victim rank|server|launcher|job|any] [--kills 10]
           [--seed 0] [--steps 4] [--learners 2] [--servers 1]

Every trial starts examples/math/gsm8k_rl.py on a tiny random model (float32, the built-in engine in a server of its own, a
checkpoint after every step). A rank's or a server's death is the run's own business: it must end by itself, or go on by itself.
A launcher's is the process that was started here, or, in a Slurm job, the one that watches the roles. Then the run is gone on
with as its user would, to its end. Checked: no process is left; every sample is there once, and is the undisturbed run's; the
metrics are equal (wall-clock values and those of the servers' doings left out), the exported weights and the last checkpoint too.
Exit code 1 if any trial differs. slurm needs a Slurm to talk to: scripts/slurm_node.sh.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tiny_model
import torch
from kill_and_resume import REWARD
from safetensors.torch import load_file

from partita.launch.processes import PROC
from partita.ops.ranks import ALONE
from partita.train.shards import stored

ROOT = Path(__file__).parent.parent
TRAIN = [str(ROOT / "examples/math/gsm8k_rl.py"), "--config", str(ROOT / "examples/math/gsm8k_grpo.yaml")]
CLEARED = 30.0  # seconds for what a killed launcher has started to be gone
KINDS = ("rank", "server", "launcher")
TIMELESS = ("time/", "tokens_per_second", "engine/")


@dataclass(frozen=True)
class Trial:
    """A run: its command's words, its folder, and the process that the user sees."""

    words: tuple[str, ...]
    folder: Path

    def begin(self) -> subprocess.Popen[str]:
        """Start it."""
        return _python(*TRAIN, *self.words, f"trial_name={self.folder.name}")

    def finish(self) -> str:
        """Go on with it to its end; from the start where nothing has begun. Its output."""
        begun = (self.folder / "config.yaml").exists()
        process = _python("-m", "partita.cli", "launch", "--resume", str(self.folder)) if begun else self.begin()
        output, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            sys.exit(f"{self.folder} cannot be gone on with, exit code {process.returncode}:\n{output}")
        return output

    def steps(self) -> int:
        """Train steps that are in its metrics."""
        with suppress(OSError):
            return len((self.folder / "metrics.jsonl").read_text().splitlines())
        return 0

    def processes(self) -> dict[int, str]:
        """Everything on this machine that belongs to it, and its command line; the process that was started here too."""
        found = dict[int, str]()
        for pid, command, environment in _everything():
            if f"PARTITA_RUN_FOLDER={self.folder}" in environment or str(self.folder / "launch") in command:
                found[pid] = command
        return found


def _python(*words: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _everything() -> Iterator[tuple[int, str, str]]:
    for entry in PROC.iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                if command:  # a zombie has none
                    yield int(entry.name), command.replace(b"\0", b" ").decode(), environment.decode()


def victims(trial: Trial, kind: str, started: int) -> list[int]:
    """The processes that may be killed as a rank, a server or a launcher: for a role its command, and the process around it. Of a
    job its number.
    """
    if kind == "job":
        with suppress(OSError):
            return [int(json.loads((trial.folder / "launch" / "job.json").read_text())["job"])]
        return []
    if kind == "launcher":
        inside = [pid for pid, command in trial.processes().items() if "partita.launch.slurm --files" in command]
        return [started, *inside]
    name = "learner-" if kind == "rank" else "server-"
    roles = trial.processes()
    around = {
        pid for pid, command in roles.items() if f"launch.role --files {trial.folder}/launch --name {name}" in command
    }
    around -= {pid for pid in around if "launch.keeper" in roles[pid]}
    return sorted(around | {pid for pid in roles if parent(pid) in around})


def parent(pid: int) -> int:
    """Whose child a process is; 0 where it has ended."""
    with suppress(OSError):
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def wait_for(what: Callable[[], object], seconds: float) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def disturbed(trial: Trial, kind: str, moment: tuple[int, float], chance: random.Random) -> str:
    """Start the run, kill a victim `moment[1]` seconds after train step `moment[0]`, and bring the run to its end."""
    process = trial.begin()
    wait_for(lambda: trial.steps() >= moment[0] or process.poll() is not None, 600)
    time.sleep(moment[1])
    found = victims(trial, kind, process.pid)
    if process.poll() is not None or not found:
        wait_for(lambda: process.poll() is not None or victims(trial, kind, process.pid), 60)
        found = victims(trial, kind, process.pid) if process.poll() is None else []
    if not found:
        process.communicate()
        return "was not killed: it ended before"
    victim = chance.choice(found)
    if kind == "job":
        subprocess.run(["scancel", str(victim)], check=False)  # it may just have ended
    else:
        os.kill(victim, signal.SIGKILL)
    stood = trial.steps()
    output, _ = process.communicate(timeout=600)
    said = f"killed {kind} {found.index(victim) + 1} of {len(found)} after step {stood}, exit code {process.returncode}"
    if kind == "server" and process.returncode != 0:
        return f"{said}: FAILED {output}"
    a_batch_job_is_left = kind == "launcher" and victim == process.pid and len(found) > 1
    if a_batch_job_is_left or wait_for(lambda: not trial.processes(), CLEARED):
        trial.finish()
    left = "" if wait_for(lambda: not trial.processes(), CLEARED) else f": LEFT {trial.processes()}"
    return said + left


def outcome(trial: Trial) -> dict[str, object]:
    """What must not depend on a disturbance, by name."""
    lines = [json.loads(line) for line in (trial.folder / "metrics.jsonl").read_text().splitlines()]
    samples = [
        json.loads(line)
        for file in sorted((trial.folder / "samples").iterdir())
        for line in file.read_text().splitlines()
    ]
    last = max((trial.folder / "checkpoints").glob("step_*"))
    whole = load_file(trial.folder / "export" / "model.safetensors")
    return {
        "metrics": [{k: v for k, v in line.items() if not k.startswith(TIMELESS)} for line in lines],
        "places": [(one["step"], one["group"], one["sample"]) for one in samples],
        "samples": [(one["prompt_uid"], one["response"], one["reward"]) for one in samples],
        "state": (last / "state.json").read_text(),
        **{f"{last.name}/{name}": saved(last, name) for name in ("model", "optimizer")},
        "export": {name: content(tensor) for name, tensor in whole.items()},
    }


def saved(checkpoint: Path, name: str) -> dict[str, bytes]:
    """The tensors of a checkpoint, whole: which rank's file a part of one lies in does not matter."""
    found = stored(checkpoint, name)
    assert found is not None, f"{checkpoint} holds no {name}"
    tensors = {one: torch.empty(shape) for one, shape in found.shapes.items()}
    found.read_into(tensors, ALONE)
    return {one: content(tensor) for one, tensor in tensors.items()}


def content(tensor: torch.Tensor) -> bytes:
    """Bit for bit."""
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


def difference(got: dict[str, object], want: dict[str, object]) -> str:
    """What differs, in words; empty when nothing does."""
    if len(set(got["places"])) != len(got["places"]):  # type: ignore[arg-type]
        return "samples are there twice"
    return ", ".join(sorted(name for name in got.keys() | want.keys() if got.get(name) != want.get(name)))


def words_of(args: argparse.Namespace, root: Path) -> tuple[str, ...]:
    """The command's words beside the trial's name."""
    return (
        f"scheduler.type={args.launcher}", f"allocation.learners={args.learners}", f"allocation.servers={args.servers}",
        f"output_dir={root}/runs", "experiment_name=kills", f"actor.path={root}/model", f"train_dataset.path={root}/rows.jsonl",
        "train_dataset.batch_size=4", f"reward.functions=[{root}/vowels.py:vowels]", "gconfig.n_samples=4",
        "gconfig.max_new_tokens=12", "actor.dtype=float32", "rollout.dtype=float32", "actor.optimizer.lr=0.01",
        f"total_train_steps={args.steps}", "checkpoint.freq_steps=1", "report.console=quiet",
    )  # fmt: skip


def main() -> None:
    """Run the reference, then the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", choices=("local", "ray", "slurm"), default="local")
    parser.add_argument("--victim", choices=(*KINDS, "job", "any"), default="any")
    for name, default in (("kills", 10), ("seed", 0), ("steps", 4), ("learners", 2), ("servers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.victim == "job" and args.launcher != "slurm":
        parser.error("--victim job: only slurm has jobs")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        tiny_model.make(root / "model")
        (root / "vowels.py").write_text(REWARD)
        rows = [{"question": f"What is {n} and {n * 7}?", "answer": f"#### {n * 8}"} for n in range(40)]
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words, began = words_of(args, root), time.perf_counter()
        reference = Trial(words, root / "runs" / "kills" / "reference")
        reference.finish()
        life, want = time.perf_counter() - began, outcome(reference)
        print(f"reference: {reference.steps()} steps, {len(want['places'])} samples, {life:.1f} s", flush=True)  # type: ignore[arg-type]
        chance, failures = random.Random(args.seed), 0
        for i in range(args.kills):
            # a start, in which most of a short run's life is spent, then steps in which most of what can go wrong goes wrong
            early = i % 4 == 0
            moment = (
                (0, chance.uniform(0, 0.6 * life)) if early else (chance.randrange(args.steps), chance.uniform(0, 1.0))
            )
            trial = Trial(words, root / "runs" / "kills" / f"trial{i}")
            kind = KINDS[i % len(KINDS)] if args.victim == "any" else args.victim
            said = disturbed(trial, kind, moment, chance)
            problem = said if ": " in said else difference(outcome(trial), want)
            failures += bool(problem)
            print(f"{i + 1:3d}/{args.kills} {said}: {problem or 'equal'}", flush=True)
    print(f"{args.launcher}, {args.victim}: {args.kills - failures} of {args.kills} equal to the undisturbed run")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
