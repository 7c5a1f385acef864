"""How our learn phase grows: with sequences, response length, prompt length, group size, and with very long responses.

usage: python benchmarks/growth.py [--pairs 5] [--only sequences response prompt group long] [--quick]

Random tokens go straight into the learner. `group`: the same 32 responses after prompts of 512 tokens, as four groups of
eight or as one of 32, in interleaved pairs; there a step is sampling 32 tokens a response and the learn phase. `long`: responses
of 512 to 4,096 tokens on a model of two layers and hidden width 64, each length in a process of its own, time and peak
memory beside the product of tokens and context.
--quick: one pair, nothing written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from learning import Learning, Shape
from ours_rollout import generate, open_ours
from results import FOLDER, PAIRS, Line, compare, enough, write
from workers import Desk, Workers, in_turns, installed, memory_gib
from workload import prompt_ids

from partita.models.load import load_causal_lm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from tiny_model import make  # a model folder of two layers

SERIES = {
    "sequences": [Shape(groups, 8, 128, 32) for groups in (1, 2, 4, 8)],
    "response": [Shape(4, 8, 128, length) for length in (16, 32, 64, 128)],
    "prompt": [Shape(4, 8, length, 32) for length in (64, 128, 256, 512)],
}
GROUPS = {8: Shape(4, 8, 512, 32), 16: Shape(2, 16, 512, 32), 32: Shape(1, 32, 512, 32)}
LONG = (512, 1024, 2048, 4096)
FILE = FOLDER / "growth.jsonl"


def varied(series: str, shape: Shape) -> int:
    """The number that a series changes."""
    return {"sequences": shape.groups * shape.samples, "response": shape.response, "prompt": shape.prompt}[series]


def timed(learning: Learning, shapes: Sequence[Shape], pairs: int) -> list[list[float]]:
    """Seconds of each shape, in turns, after a run that is not counted."""
    prepared = [learning.prepared(shape) for shape in shapes]
    for one in prepared:
        learning.seconds(one)
    sides = {str(index): partial(learning.seconds, one) for index, one in enumerate(prepared)}
    return list(in_turns(pairs, sides).values())


def series_lines(learning: Learning, series: str, pairs: int) -> list[Line]:
    """Each member against the smallest one; the ratio is how many times as long it takes."""
    shapes = SERIES[series]
    seconds, first = timed(learning, shapes, pairs), shapes[0]
    return [
        compare(
            f"growth {series} {varied(series, shape)}", taken, f"{series} {varied(series, first)}", seconds[0],
            "s/learn phase", better="higher", tokens=(shape.tokens, first.tokens),
        )
        for shape, taken in zip(shapes[1:], seconds[1:], strict=True)
    ]  # fmt: skip


def group_lines(learning: Learning, pairs: int) -> list[Line]:
    """Larger groups at the same number of responses: fewer prompts, so a step must not take longer."""
    smallest, *larger = GROUPS
    engine = open_ours("smollm2-135m", "auto")
    prepared = {size: learning.prepared(shape) for size, shape in GROUPS.items()}

    def step(size: int) -> float:
        shape = GROUPS[size]
        prompts = prompt_ids(shape.groups * shape.samples, shape.samples, shape.prompt, seed=size)
        return generate(engine, prompts, shape.response, seed=size)["seconds"] + learning.seconds(prepared[size])

    for size in GROUPS:
        step(size)  # not counted
    seconds = in_turns(pairs, {size: partial(step, size) for size in GROUPS})
    engine.close()
    return [
        compare(
            f"growth group {size}", seconds[size], f"group {smallest}", seconds[smallest], "s/step", better="higher",
            tokens=(GROUPS[size].tokens, GROUPS[smallest].tokens),
        )
        for size in larger
    ]  # fmt: skip


def long_lines(pairs: int) -> list[Line]:
    """Time and memory of each length, over those of the shortest, beside how tokens x context grow."""
    found, answers = list[Line](), {}
    with tempfile.TemporaryDirectory() as folder:
        for length in LONG:
            with Workers() as workers:
                worker = workers.start(sys.executable, "growth.py", "--worker", long_model(Path(folder)), str(length))
                answers[length] = [worker.ask() for _ in range(pairs)]
    first, *longer = LONG
    for length in longer:
        grown = work(length) / work(first)
        for what, unit, key in (("time", "s/learn phase", "seconds"), ("memory", "GiB", "held_gb")):
            ours, theirs = ([answer[key] for answer in answers[n]] for n in (length, first))
            note = f"tokens x context: {grown:.1f} times"
            row = compare(f"growth {what} {length}", ours, f"response {first}", theirs, unit, better="higher")
            found.append(replace(row, note=note))
    return found


def long_shape(length: int) -> Shape:
    """Four responses after a short prompt."""
    return Shape(1, 4, 64, length)


def work(length: int) -> float:
    """Tokens x context."""
    shape = long_shape(length)
    return float(shape.tokens * (shape.prompt + shape.response))


def long_model(folder: Path) -> str:
    """The tiny model with room for the longest response."""
    make(folder, hidden=64)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return str(folder)


def serve(model: str, length: int) -> None:
    """The worker of one length. held_gb: what learning adds to the memory of the loaded model."""
    desk = Desk()
    learning = Learning(
        load_causal_lm(model, dtype=torch.float32).model, "float32", "actor.mb_spec.max_tokens_per_mb=32768"
    )
    before, prepared = memory_gib("VmRSS"), learning.prepared(long_shape(length))
    learning.seconds(prepared)
    desk.ready()
    for _ in desk.questions():
        seconds = learning.seconds(prepared)
        desk.answer({"seconds": seconds, "held_gb": memory_gib("VmHWM") - before})


def main() -> None:
    """Measure and write `results/growth.jsonl`."""
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--only", nargs="*", default=(*SERIES, "group", "long"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    pairs, found = 1 if args.quick else args.pairs, list[Line]()
    if "long" in args.only:
        found += long_lines(pairs)
    if set(args.only) - {"long"}:
        learning = Learning(load_causal_lm("smollm2-135m", dtype=torch.float32).model, "auto")
        for series in SERIES:
            found += series_lines(learning, series, pairs) if series in args.only else []
        found += group_lines(learning, pairs) if "group" in args.only else []
    write(FILE, found, installed(), keep=not args.quick)


if __name__ == "__main__":
    main()
