"""The train loop: one screen, whatever the algorithm."""

from __future__ import annotations

from partita.runner import Run


async def train(run: Run) -> None:
    """Sample groups, give credit, learn, publish; until the last step."""
    for step in run.remaining():
        with run.timed("sample"):  # scored and filtered, all from the weights published last
            taken = await run.take(step)
        with run.timed("score"):  # only the streams this algorithm needs
            rollout = run.score(taken.groups, version=step)
        with run.timed("credit"):  # once per rollout batch; adaptive values become plain numbers here
            algorithm, rollout = run.credit(rollout)
        with run.timed("learn"):  # epochs x minibatches; each: weights once, then micro-batch sums
            metrics = run.learn(rollout, algorithm, step)
        with run.timed("publish"):
            run.publish(version=step + 1)
        # controllers, evaluation, report, next stage, checkpoint: each when due
        await run.finish(step + 1, taken, rollout, metrics)
    run.end()
