"""A whole GRPO step, ours against TRL 1.16.0, in interleaved pairs on the same machine.

usage: python benchmarks/step.py [--pairs 5] [--only fixed natural short long bf16 fp32] [--trl-python PATH] [--quick]

Workloads: short (8 prompts x 8 samples, about 45 prompt tokens, 32 new) and long (4 x 8, about 300, 64). Kinds: fixed
(every response forced to the full length, rewards that make every group mixed, nothing skipped: pure speed) and natural
(responses end where the policy ends them, rewards as the task gives them; tokens stand beside the ratio). A comparison
loads TRL in one precision; after two warm-up steps it takes one step a pair. Ours starts anew for every pair, takes two warm-up
steps and then the step of TRL's prompts: on `long` TRL needs most of 24 GiB, and two processes that stay would not fit. In natural
rows the learning rate is 1e-9 on both sides, so that both sample from the policy as it was loaded.
--only keeps the comparisons whose kind, workload and precision are all named (a dimension of which none is named is whole).
--quick: one pair, nothing written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from statistics import median

from results import FOLDER, PAIRS, Line, compare, enough, share, write
from workers import Answer, Worker, Workers, in_turns, note

from partita.models.embedded import embedded_folder

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
DIMENSIONS = (("fixed", "natural"), ("short", "long"), ("bf16", "fp32"))
SKIP = "actor.skip_dead_samples"
PEER = "trl"
FILE = FOLDER / "step.jsonl"

Runs = Mapping[str, Sequence[Answer]]
"""Answers by side, one a pair."""


@dataclass(frozen=True)
class Comparison:
    """TRL in one precision against ours."""

    kind: str
    workload: str
    precision: str

    @property
    def ours(self) -> dict[str, tuple[str, ...]]:
        """Arguments of our workers by the name of the row: the peer's precision, bfloat16 beside float32, and with samples
        that teach nothing skipped, where there can be any."""
        name = f"step {self.kind} {self.workload}"
        if self.kind == "fixed":
            found = {name: ("bfloat16",)}
            return found | ({f"{name} fp32": ("float32",)} if self.precision == "fp32" else {})
        dtype, suffix = DTYPES[self.precision], " fp32" if self.precision == "fp32" else ""
        return {
            name + suffix: (dtype, f"{SKIP}=false"),
            f"{name}{suffix}, dead samples skipped": (dtype, f"{SKIP}=true"),
        }

    def run(self, pairs: int, trl_python: str) -> tuple[Runs, Mapping[str, str]]:
        """Start the workers and let them take steps in turn."""
        where = (str(embedded_folder()), self.workload, self.kind)
        with Workers() as workers:
            peer = workers.start(trl_python, "trl_step.py", *where, DTYPES[self.precision])
            sides = {PEER: partial(taken, PEER, peer)}
            for name, own in self.ours.items():
                sides[name] = partial(self._anew, name, where, own, count(), workers.versions)
            return in_turns(pairs, sides), workers.versions

    def _anew(
        self, name: str, where: Sequence[str], own: Sequence[str], steps: Iterator[int], versions: dict[str, str]
    ) -> Answer:
        """Our step of the next pair, in a process that starts for it and ends after it."""
        with Workers() as workers:
            worker = workers.start(sys.executable, "ours_step.py", *where, str(next(steps)), *own)
            note(versions, workers.versions)
            return taken(name, worker)

    def lines(self, runs: Runs) -> list[Line]:
        """Rows of the table."""
        peer, theirs = f"trl {self.precision}", runs[PEER]
        found = [
            compare(name, values(runs[name]), peer, values(theirs), "s/step", better="lower", tokens=tokens(runs[name], theirs))
            for name in self.ours
        ]  # fmt: skip
        if self.kind == "natural":
            return found
        for name, row in ((name.removeprefix("step "), runs[name]) for name in self.ours):
            memory = partial(compare, f"memory {name}", peer=peer, unit="GiB", better="lower")
            # one pair: ours starts anew in each, so only in the first have both taken a warm-up and one step
            found.append(replace(memory([row[0]["peak_gb"]], theirs=[theirs[0]["peak_gb"]]), least=1))
            if name.endswith("fp32") or self.precision == "bf16":  # not those of bfloat16 once more
                found += [overhead(name, row), *mismatch(name, row)]
        return found


def taken(name: str, worker: Worker) -> Answer:
    """One step."""
    answer = worker.ask(go=True)
    print(
        f"  {name:<40} {answer['seconds']:7.2f} s, {answer['tokens']:.0f} tokens, {answer['peak_gb']:.1f} GiB",
        flush=True,
    )
    return answer


def values(answers: Sequence[Answer]) -> list[float]:
    """Seconds."""
    return [answer["seconds"] for answer in answers]


def tokens(ours: Sequence[Answer], theirs: Sequence[Answer]) -> tuple[float, float]:
    """Sampled tokens of a step, both medians."""
    return median(answer["tokens"] for answer in ours), median(answer["tokens"] for answer in theirs)


def overhead(name: str, answers: Sequence[Answer]) -> Line:
    """What a step does outside the model's arithmetic and the optimizer: drawing tokens, packing, credit, logging."""
    whole = values(answers)
    rest = [seconds - arithmetic(answer) for seconds, answer in zip(whole, answers, strict=True)]
    return share(f"overhead {name}", rest, "outside model and optimizer", whole, "s/step")


def arithmetic(answer: Answer) -> float:
    """Seconds of a step in the model's forward and backward, of engine and learner, and in the optimizer."""
    engine, metrics = answer["engine"], answer["metrics"]
    return engine["forward_seconds"] + metrics["time/forward_backward"] + metrics["time/optimizer"]


def mismatch(name: str, answers: Sequence[Answer]) -> list[Line]:
    """How far the sampler's log-probs are from the trainer's, of the same weights."""
    precision = "" if name.endswith("fp32") else " bf16"
    units = {"ratio": "mean abs(ratio - 1)", "k3": "nats/token (k3)"}
    return [
        Line(f"mismatch {what} {name}{precision}", median(one["mismatch"][what] for one in answers), unit, pairs=len(answers))
        for what, unit in units.items()
    ]  # fmt: skip


def chosen(only: Sequence[str]) -> list[Comparison]:
    """Of every dimension the words that are named, or all where none is."""
    kept = [[word for word in words if word in only] or words for words in DIMENSIONS]
    return [Comparison(*words) for words in product(*kept)]


def main() -> None:
    """Run the comparisons one after the other; each writes its lines when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--only", nargs="*", default=(), choices=[word for words in DIMENSIONS for word in words])
    parser.add_argument("--trl-python", default=sys.executable)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    for comparison in chosen(args.only):
        runs, versions = comparison.run(1 if args.quick else args.pairs, args.trl_python)
        write(FILE, comparison.lines(runs), versions, keep=not args.quick)


if __name__ == "__main__":
    main()
