"""Our side of `rollout.py`: the engine of a run, by its public `submit`.

usage (by the driver): ours_rollout.py MODEL float32|bfloat16 [KEY=VALUE ...]     further config keys, such as rollout.compile
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

from workers import Desk

from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine
from partita.run import load_run_config
from partita.run_models import open_engine
from partita.trainer import QUICKSTART

SLOTS = 128


def generate(engine: LocalEngine, prompts: list[list[int]], new_tokens: int, seed: int) -> dict:
    """Seconds, tokens, and where the engine spent its time."""
    sampling = Sampling(max_new_tokens=new_tokens)  # no stop ids: every response has the full length
    requests = [Request(tuple(ids), sampling, Draw(seed, 0, k, 0)) for k, ids in enumerate(prompts)]
    before, began = asdict(engine.stats()), time.perf_counter()
    done = [future.result() for future in engine.submit(requests)]
    seconds = time.perf_counter() - began
    spent = {name: value - before[name] for name, value in asdict(engine.stats()).items()}
    return {"seconds": seconds, "tokens": sum(len(one.ids) for one in done), "engine": spent}


def open_ours(model: str, dtype: str, *keys: str) -> LocalEngine:
    """The engine as a run opens it."""
    words = [f"actor.path={model}", f"rollout.dtype={dtype}", f"rollout.max_concurrent_rollouts={SLOTS}", *keys]
    return open_engine(load_run_config([QUICKSTART], words).value)[1]


def main() -> None:
    """Load, warm up, answer."""
    desk = Desk()
    engine = open_ours(*sys.argv[1:])
    generate(engine, [[1, 2, 3]] * 8, 4, seed=0)
    desk.ready()
    for question in desk.questions():
        desk.answer(generate(engine, **question))
    engine.close()


if __name__ == "__main__":
    main()
