"""Row rules: which samples enter statistics, keep their advantage, and stay in the loss.

Shapes: S samples.
Left out: samples without a usable reward or log-prob. They are never part of anything; `Batch.valid_S` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from partita.algo.tokens import present
from partita.ops.segments import segment_all
from partita.records import Batch


@dataclass(frozen=True)
class Rows:
    """Three answers per sample [S], all bool."""

    in_statistics_S: Tensor
    has_advantage_S: Tensor
    in_loss_S: Tensor

    def __and__(self, other: Rows) -> Rows:
        """A sample passes where both pass it."""
        return Rows(
            self.in_statistics_S & other.in_statistics_S,
            self.has_advantage_S & other.has_advantage_S,
            self.in_loss_S & other.in_loss_S,
        )


class RowRule(Protocol):
    """One rule over whole samples."""

    def __call__(self, batch: Batch) -> Rows:
        """What this rule lets each sample do."""
        ...

    def formula(self) -> str:
        """The rule in words."""
        ...


@dataclass(frozen=True)
class Truncated:
    """What a sample that ran into the length limit may still do.

    Out of the loss: DAPO's overlong filtering (arXiv 2503.14476, section 3.4). Without advantage, with or without a
    place in the statistics: the two masks that Skywork-OR1 compared (arXiv 2505.22312). A sample without advantage
    still counts in the loss's denominators, and penalties still act on it.
    """

    in_statistics: bool = True
    has_advantage: bool = True
    in_loss: bool = True

    def __call__(self, batch: Batch) -> Rows:
        """Truncation comes from the stop reason, never from a width."""
        finished_S = ~batch.truncated_S
        return Rows(
            finished_S | self.in_statistics,
            finished_S | self.has_advantage,
            finished_S | self.in_loss,
        )

    def formula(self) -> str:
        """What truncation costs."""
        lost = {"the statistics": self.in_statistics, "advantages": self.has_advantage, "the loss": self.in_loss}
        return f"truncated samples are left out of {', '.join(name for name, kept in lost.items() if not kept)}"


@dataclass(frozen=True)
class Stale:
    """A sample with a token sampled more than `limit` versions before the newest samples counts nowhere."""

    limit: int

    def __call__(self, batch: Batch) -> Rows:
        """The oldest token of a sample decides: a sample may span several versions."""
        if batch.train_version is None:
            raise ValueError("a staleness limit needs Batch.train_version, which is not set")
        lag_T = batch.train_version - 1 - present(batch.version_T, "version_T")
        fresh_S = segment_all(lag_T <= self.limit, batch.seq_T, batch.samples)
        return Rows(fresh_S, fresh_S, fresh_S)

    def formula(self) -> str:
        """The limit."""
        return f"samples with a token more than {self.limit} versions old are left out"
