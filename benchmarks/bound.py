"""How near decoding and training come to the machine's bound: its matrix products alone, at the very same shapes.

usage: python benchmarks/bound.py [--pairs 5] [--sizes 8 32 64 128] [--only decode training rates] [--precision bf16|fp32]
           [--quick]

bound: the products of a decode step (or of a learn phase) by the fastest way that PyTorch has, alternating with the
engine's own decode steps (the learner's learn phase) in one process. A share of 100 % would mean that nothing but those
products took any time. Training's bound is that of the useful work, 6 x parameters x tokens: a prompt once for its
group, the head at trained tokens only. Also the rates themselves, and memory's.
--quick: one pair, nothing written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from learning import Learning, Shape
from ours_rollout import generate, open_ours
from results import FOLDER, PAIRS, Line, enough, share, write
from shapes import Decoding, Training, bandwidth, products
from transformers import AutoConfig
from workers import in_turns, installed
from workload import WORKLOADS, prompt_ids

from partita.models.embedded import embedded_folder
from partita.models.load import load_causal_lm

SIZES, NEW_TOKENS = (8, 32, 64, 128), 24
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
FILE = FOLDER / "bound.jsonl"


def decode_lines(sizes: Sequence[int], precision: str, pairs: int) -> list[Line]:
    """Seconds of a decode step against its products'."""
    model = str(embedded_folder())
    dtype, engine = getattr(torch, DTYPES[precision]), open_ours(model, DTYPES[precision])
    shapes, found = products(AutoConfig.from_pretrained(model)), list[Line]()
    parameters = sum(shape.parameters for shape in shapes)

    def step(size: int) -> float:
        spent = generate(engine, prompt_ids(size, 8, 40, seed=size), NEW_TOKENS, seed=size)["engine"]
        return spent["decode_seconds"] / spent["decode_steps"]

    for size in sizes:
        bound = Decoding(shapes, size, dtype)
        runs = in_turns(pairs, {"bound": bound.once, "ours": lambda size=size: step(size)})
        name = f"decode {size}{suffix(precision)}"
        found.append(share(f"bound {name}", runs["bound"], "products alone", runs["ours"], "s/decode step"))
        found.append(rate(name, 2 * parameters * size, runs["bound"]))
    engine.close()
    return found


def training_lines(precision: str, pairs: int) -> list[Line]:
    """Seconds of a learn phase of the fixed workloads against its products'."""
    loaded = load_causal_lm("smollm2-135m", dtype=torch.float32)
    learning, found = Learning(loaded.model, DTYPES[precision]), list[Line]()
    for workload, load in WORKLOADS.items():
        shape = Shape(load.prompts, load.samples, load.prompt_tokens, load.new_tokens)
        bound = Training(
            products(loaded.model.lm.config), shape.tokens, shape.trained, getattr(torch, DTYPES[precision])
        )
        prepared = learning.prepared(shape)
        learning.seconds(prepared)  # warm-up: workspaces and moments
        runs = in_turns(pairs, {"bound": bound.once, "ours": lambda prepared=prepared: learning.seconds(prepared)})
        name = f"training fixed {workload}{suffix(precision)}"
        found.append(share(f"bound {name}", runs["bound"], "products alone", runs["ours"], "s/learn phase"))
        found.append(rate(name, bound.flop, runs["bound"]))
    return found


def rate(name: str, flop: float, seconds: Sequence[float]) -> Line:
    """GFLOP a second of the products alone, the best of the pairs."""
    return Line(f"rate {name}", flop / min(seconds) / 1e9, "GFLOP/s", pairs=len(seconds))


def suffix(precision: str) -> str:
    """bfloat16 is what rows without a precision mean."""
    return "" if precision == "bf16" else " fp32"


def main() -> None:
    """Measure and write `results/bound.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--only", nargs="*", default=("decode", "training", "rates"))
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    pairs, found = 1 if args.quick else args.pairs, list[Line]()
    if "rates" in args.only:
        found += [Line(f"memory bandwidth, {way}", value, "GB/s", pairs=5) for way, value in bandwidth().items()]
    if "decode" in args.only:
        found += decode_lines(args.sizes, args.precision, pairs)
    if "training" in args.only:
        found += training_lines(args.precision, pairs)
    write(FILE, found, installed(), keep=not args.quick)


if __name__ == "__main__":
    main()
