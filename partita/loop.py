"""The train loop: one screen, whatever the algorithm."""

from __future__ import annotations

from partita.runner import Run
from partita.train.batch import collate


async def train(run: Run) -> None:
    """Sample groups, give credit, learn, publish; until the last step."""
    for step in range(run.first_step, run.steps):
        with run.timed("sample"):  # scored and filtered, all from the weights published last
            taken = await run.rollouts.take(run.groups_per_step)
        algorithm = run.controls.apply(run.algorithm)  # adaptive values become plain numbers here
        with run.timed("score"):  # only the streams this algorithm needs
            rollout = run.learner.score(collate(taken.groups), algorithm)
        with run.timed("credit"):  # once per rollout batch
            rollout = rollout.with_batch(algorithm.credit(rollout.batch))
        with run.timed("learn"):  # epochs x minibatches; each: weights once, then micro-batch sums
            metrics = run.learner.learn(rollout, algorithm, step)
        with run.timed("publish"):
            run.publish(version=step + 1)
        # controllers, evaluation, report, checkpoint: each when due
        await run.finish(step + 1, taken, rollout, metrics)
    run.end()
