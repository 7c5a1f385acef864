"""What sharding costs and saves: memory of each rank and seconds of a learn phase, on one rank and on several, one thread each.

usage: python benchmarks/ranks.py [--sizes 1 2] [--passes 5] [--precision bf16|fp32] [--workload short|long] [--recompute]

ranks: the learn phase of the fixed workloads on SmolLM2-135M. Memory is what a rank holds between phases (its parts of weights
and moments, and all that a process of ours is made of), and its highest during them. One line per size, on the terminal only:
with fewer cores than ranks the seconds say nothing about machines that have more. Processor seconds are those of one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from learning import Learning, Shape
from workload import WORKLOADS

from partita.models.load import load_causal_lm
from partita.models.parallel import shard
from partita.ops.ranks import join_ranks, leave_ranks

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def memory() -> dict[str, float]:
    """GiB of this process now and at its highest since the last `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    told = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"now": int(told["VmRSS"]) / 2**20, "peak": int(told["VmHWM"]) / 2**20}


def forget_peak() -> None:
    """Loading holds whole weights for a moment, which is not what a step needs."""
    Path("/proc/self/clear_refs").write_text("5")


def measured(words: argparse.Namespace) -> dict[str, float]:
    """On this rank: load, spread, learn so many times after once for warming up."""
    torch.set_num_threads(1)
    ranks = join_ranks()
    empty = memory()["now"]
    loaded = load_causal_lm("smollm2-135m", dtype=torch.float32)
    if words.recompute:
        loaded.model.lm.activation_checkpointing_enable()
        loaded.model.train()
    learning = Learning(shard(loaded.model, ranks), DTYPES[words.precision])
    learning.learner.ranks = ranks
    load = WORKLOADS[words.workload]
    prepared = learning.prepared(Shape(load.prompts, load.samples, load.prompt_tokens, load.new_tokens))
    learning.seconds(prepared)
    forget_peak()
    wall, processor = list[float](), list[float]()
    for _ in range(words.passes):
        began = time.process_time()
        wall.append(learning.seconds(prepared))
        processor.append(time.process_time() - began)
    held = memory()
    leave_ranks()
    return {
        "seconds": median(wall), "processor seconds": median(processor), "empty GiB": empty, "held GiB": held["now"],
        "peak GiB": held["peak"],
    }  # fmt: skip


def on_ranks(size: int, words: list[str]) -> list[dict[str, float]]:
    """What each rank measured. Raises RuntimeError with the end of what a rank that failed said."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": f"{size}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", *words]
    running = [
        subprocess.Popen(
            command, env=os.environ | shared | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]  # fmt: skip
    said = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            raise RuntimeError(f"a rank of {size} ended with {process.returncode}:\n{errors[-3000:]}")
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--workload", choices=WORKLOADS, default="short")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.measure:
        print(json.dumps(measured(words)))
        return
    given = ["--passes", f"{words.passes}", "--precision", words.precision, "--workload", words.workload]
    for size in words.sizes:
        for rank, found in enumerate(on_ranks(size, given + ["--recompute"] * words.recompute)):
            print(f"rank {rank} of {size}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
