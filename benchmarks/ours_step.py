"""Our side of `step.py`: whole GRPO steps of a real run, one for each question. What is timed is `partita.loop` itself.

usage (by the driver): ours_step.py MODEL short|long fixed|natural SKIPPED float32|bfloat16 [KEY=VALUE ...]

SKIPPED: steps whose prompts are left out at the beginning; a process that starts late works on its peer's prompts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from workers import Desk
from workload import LEARNING_RATES, WARM_UP, WORKLOADS, alternating, rows

from partita.build import build
from partita.engine.local import LocalEngine
from partita.extras import Extras
from partita.loop import train
from partita.ops.divergence import k3
from partita.records import Sample
from partita.replay.saved import read_step
from partita.report.sinks import read_metrics
from partita.rollout.workflow import Episode, SingleTurn
from partita.run import RunConfig, load_run_config
from partita.runner import Run
from partita.trainer import QUICKSTART

REWARD = Path(__file__).with_name("workload.py")


@dataclass
class Alternating:
    """A workflow whose rewards alternate by sample in start order, after the task's own reward has been asked."""

    inner: SingleTurn = field(default_factory=SingleTurn)
    started: Iterator[int] = field(default_factory=count)

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`."""
        index = next(self.started)
        return replace(await self.inner.run(episode), reward=alternating(index))


class Over(Exception):
    """The driver has no more questions: the run ends here, without its export."""


def config_of(folder: Path, model: str, workload: str, kind: str, skipped: int, dtype: str, *keys: str) -> RunConfig:
    """A run of the quickstart's kind on the workload's rows, in their order, with TRL's defaults where they matter."""
    load, data = WORKLOADS[workload], folder / "rows.jsonl"
    left = rows(load)[skipped * load.prompts :]
    data.write_text("".join(json.dumps(row) + "\n" for row in left), encoding="utf-8")
    words = [
        f"actor.path={model}", f"actor.dtype={dtype}", f"rollout.dtype={dtype}", f"output_dir={folder}",
        f"seed={skipped + 1}",  # a pair's own: with the same random numbers, long responses would come in all of them
        f"train_dataset.path={data}", f"train_dataset.batch_size={load.prompts}", "train_dataset.shuffle=false",
        f"gconfig.n_samples={load.samples}", f"gconfig.max_new_tokens={load.new_tokens}", "gconfig.temperature=1.0",
        f"reward.functions=[{REWARD}:contains_answer]", f"actor.optimizer.lr={LEARNING_RATES[kind]}", "actor.entropy_coef=0.0",
        "actor.kl_loss_coef=0.0", "total_train_steps=100000", "report.console=quiet", *keys,
    ]  # fmt: skip
    if kind == "fixed":
        words += [f"gconfig.min_new_tokens={load.new_tokens}", "gconfig.allow_truncated_sampling=true"]
        words += ["actor.skip_dead_samples=false"]
    return load_run_config([QUICKSTART], words).value


def gate(run: Run, desk: Desk) -> None:
    """Let the loop wait for a question before each step but those of the warm-up, and answer it when the step is finished."""
    steps, questions, engine = run.remaining, desk.questions(), run.engine
    assert isinstance(engine, LocalEngine), "no other engine tells where its seconds went"

    def remaining() -> Iterator[int]:
        for step in steps():
            if step == WARM_UP:
                desk.ready()
            if step >= WARM_UP and next(questions, None) is None:
                raise Over
            before = asdict(engine.stats())
            began = run.step_began = time.perf_counter()
            yield step
            seconds = time.perf_counter() - began
            if step >= WARM_UP:
                run.reporter.wait()  # what is told is read from its files
                spent = {name: value - before[name] for name, value in asdict(engine.stats()).items()}
                desk.answer({"seconds": seconds, "engine": spent, **told(run, step + 1)})

    run.remaining = remaining


def told(run: Run, step: int) -> dict:
    """The metrics of a step, and how far apart sampler and trainer were: mean |ratio - 1| and k3 per token."""
    metrics = dict(read_metrics(run.folder / "metrics.jsonl")[-1].metrics)
    saved = read_step(run.folder, step)
    apart, tokens = {"ratio": 0.0, "k3": 0.0}, 0
    for taken in saved.record.steps:
        if taken.current is not None:
            behaviour_T = saved.batch.select(taken.computed).behaviour_T
            assert behaviour_T is not None, "every sampled token has the log-prob that it was drawn with"
            log_ratio_T = (taken.current.logprobs_T - behaviour_T).double()
            apart["ratio"] += float((log_ratio_T.exp() - 1).abs().sum())
            apart["k3"] += float(k3(-log_ratio_T).sum())
            tokens += len(log_ratio_T)
    return {
        "tokens": metrics["response_tokens"], "metrics": metrics,
        "mismatch": {name: total / max(tokens, 1) for name, total in apart.items()},
    }  # fmt: skip


async def serve(config: RunConfig, kind: str, desk: Desk) -> None:
    """Train until the driver has no more questions."""
    workflow = Alternating() if kind == "fixed" else None
    with suppress(Over), build(config, Extras(workflow=workflow)) as run:
        gate(run, desk)
        await train(run)


def main() -> None:
    """Warm-up, then a step for each question."""
    desk = Desk()
    with tempfile.TemporaryDirectory() as folder:
        model, workload, kind, skipped, dtype, *keys = sys.argv[1:]
        config = config_of(Path(folder), model, workload, kind, int(skipped), dtype, *keys)
        asyncio.run(serve(config, kind, desk))


if __name__ == "__main__":
    main()
