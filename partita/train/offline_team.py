"""The model that a run on data trains, on all of its ranks; verbs as in `train.team`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.models.scoring import ScoreStats
from partita.ops.ranks import ALONE, Ranks
from partita.report.metrics import Metrics
from partita.train.checkpoint import load_checkpoint, save_checkpoint
from partita.train.offline import Item, OfflineLearner, Reference
from partita.train.team import Sampled, verb


@dataclass
class OfflineTeam(Sampled[OfflineLearner]):
    """write: writes the trained model into a folder, called by all ranks. ask: makes the reference that is asked about all items
    before training, where one is.
    """

    learner: OfflineLearner
    write: Callable[[Path, ScoreStats | None], None]
    ask: Callable[[], Reference] | None = None
    ranks: Ranks = ALONE

    @verb
    def asked(self, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """What the reference says about items, before any step."""
        assert self.ask is not None, "asked of a run with answers to keep"
        return self.ask()(items)

    @verb
    def learn(self, items: Sequence[Item], step: int, total_steps: int) -> Metrics:
        """A train step."""
        return self.learner.learn(items, step, total_steps)

    @verb
    def evaluate(self, items: Sequence[Item]) -> dict[str, float]:
        """The loss and its numbers over held-out items."""
        return self.learner.evaluate(items)

    @verb
    def save(self, root: Path, step: int, state: Mapping[str, Any], keep_last: int) -> None:
        """Write a checkpoint below `root`. Raises CheckpointError."""
        learner = self.learner
        save_checkpoint(root, step, learner.model, learner.stepper.optimizer, state, keep_last, ranks=self.ranks)

    @verb
    def load(self, folder: Path) -> None:
        """Weights, moments and counters of a checkpoint. Raises CheckpointError."""
        learner = self.learner
        state = load_checkpoint(folder, learner.model, learner.stepper.optimizer, ranks=self.ranks)
        learner.load_state_dict(state["learner"])

    @verb
    def export(self, folder: Path, scored: Sequence[Item] = ()) -> None:
        """Write the model in Hugging Face's format; of a reward model also where its scores of these items lie."""
        stats = None
        if scored:
            scores_S = self.learner.scores(scored)
            mean, std = float(scores_S.mean()), float(scores_S.std(correction=0))
            stats = ScoreStats(mean, std) if std > 0 else None  # a head that has not moved gives 0 to all
        self.write(folder, stats)
