"""How many calls of fast reward functions the runtime makes in a second, in worker processes that can be killed.

usage: python benchmarks/rewards.py [--calls 10000] [--processes 2] [--pairs 5] [--quick]

10,000 responses are scored at once: by a function that gets one response (Partita's own style), by one that gets lists
(TRL's; groups of eight, so 1,250 calls), and by both. The floor is 2,000 responses a second by a function that is called for
each. Left out: what a reward itself takes.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
from results import FOLDER, PAIRS, Line, enough, write

from partita.records import Prompt
from partita.tasks.reward import Answer, Judge, RewardConfig, RewardRuntime

FILE = FOLDER / "rewards.jsonl"
FLOOR = 2000
GROUP = 8
REWARDS = """
def right(response, answer):
    return float(response.strip().endswith(answer))


def short(completions, answer, **kwargs):
    return [float(len(text) < 20) for text in completions]
"""
MIXES = {"one response a call": ["right"], "a group a call": ["short"], "both": ["right", "short"]}


class Desk:
    """Brings the answers of all responses before the judge together, as a rollout does when every sample waits."""

    def __init__(self, judge: Judge | None, count: int) -> None:
        self._judge, self._count = judge, count
        self._asked: list[tuple[Answer, asyncio.Future]] = []

    async def ask(self, answer: Answer):
        """The outcome of one answer; the last one that comes sends all of them."""
        future = asyncio.get_running_loop().create_future()
        self._asked.append((answer, future))
        if len(self._asked) == self._count and self._judge is not None:
            outcomes = await self._judge.ask([answer for answer, _ in self._asked])
            for (_, waiter), outcome in zip(self._asked, outcomes, strict=True):
                waiter.set_result(outcome)
        return await future


async def seconds(runtime: RewardRuntime, calls: int) -> float:
    """Wall seconds of scoring so many responses at once."""
    row = {"question": "What is 6 times 7?", "answer": "42"}
    messages = ({"role": "user", "content": row["question"]},)
    prompts = [Prompt(str(i), (1, 2, 3), row["question"], row, messages, "42") for i in range(-(-calls // GROUP))]
    desk = Desk(runtime.judge, calls)
    began = time.perf_counter()
    scored = await asyncio.gather(
        *(runtime.score(prompts[i // GROUP], f"It is {i}, no, 42", (4, 5, 6), "stop", desk.ask) for i in range(calls))
    )
    took = time.perf_counter() - began
    assert all(one.reward == len(runtime.names) for one in scored), "every response is right and short"
    return took


def rate(functions: list[str], processes: int, calls: int) -> float:
    """Responses that are scored in a second, the workers started before."""
    runtime = RewardRuntime(RewardConfig(functions=functions, processes=processes))
    try:
        asyncio.run(seconds(runtime, 20 * processes))
        return calls / asyncio.run(seconds(runtime, calls))
    finally:
        runtime.close()


def main() -> None:
    """Measure and write `results/rewards.jsonl`; the exit status is 1 below the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pairs", type=enough, default=PAIRS)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    runs, found = 1 if args.quick else args.pairs, list[Line]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fast_rewards.py"
        file.write_text(REWARDS)
        for title, names in MIXES.items():
            rates = sorted(rate([f"{file}:{name}" for name in names], args.processes, args.calls) for _ in range(runs))
            note = f"{rates[0]:.0f} to {rates[-1]:.0f}; {args.calls} responses, {args.processes} processes"
            found.append(Line(f"rewards, {title}", rates[runs // 2], "responses/s", pairs=runs, note=note))
    versions = {"python": sys.version.split()[0], "numpy": numpy.__version__, "torch": torch.__version__}
    write(FILE, found, versions, keep=not args.quick)
    if found[0].ours < FLOOR:
        raise SystemExit(f"below the floor of {FLOOR} responses/s")


if __name__ == "__main__":
    main()
