"""An algorithm: a record of parts, and the three scopes in which they act.

Credit once per rollout batch, weights once per optimizer step, loss once per micro-batch; nothing is computed in a
narrower scope than it belongs to.
Shapes: T packed trained tokens, S samples, P prompts.
Left out: state and models. Controllers own the first; the loop asks `needs` which streams to score.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.algo.credit import Credit, Worth
from partita.algo.gate import Gate
from partita.algo.keep import Keep
from partita.algo.norm import Norm, Units, constant_groups
from partita.algo.penalty import Penalty
from partita.algo.ratio import Ratio
from partita.algo.reduce import Reduce
from partita.algo.rows import RowRule, Rows
from partita.algo.shape import Shape
from partita.algo.stats import Stats, loss_stats, mean_over
from partita.algo.tokens import finite_samples, live_tokens, present
from partita.ops.segments import dense_ids
from partita.records import Batch


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the step: `value` is already weighted, so shares are added, never averaged."""

    value: Tensor
    stats: Stats


@dataclass(frozen=True)
class Algorithm:
    """A composition of parts. Change one with `dataclasses.replace`; `compose` builds it from configuration keys.

    keep: groups worth training on. shape: reward to score, in order. assign: score to worth per sample or token.
    norm: the statistics of the advantages. rows: rules for whole samples. reduce: weights per token. ratio and gate:
    the objective. penalties: further loss terms. Three slots have no part in this version and take None only: balance
    (positive against negative advantages), correct (behaviour weights and masks), value (the critic's loss).
    """

    keep: Keep
    shape: tuple[Shape, ...]
    assign: Credit
    norm: Norm | None
    rows: tuple[RowRule, ...]
    reduce: Reduce
    ratio: Ratio
    gate: Gate
    penalties: tuple[Penalty, ...] = ()
    balance: None = None
    correct: None = None
    value: None = None

    @property
    def needs(self) -> frozenset[str]:
        """Streams that must be scored, among "prox", "ref", "entropy". "prox" only if credit reads it."""
        return frozenset[str]().union(self.assign.needs, *(part.needs for part in (*self.shape, *self.penalties)))

    @torch.no_grad()
    def credit(self, batch: Batch) -> Batch:
        """Set `advantages_T`, `score_S` (shaped, before any KL) and, where credit has them, `returns_T`; float32.

        Samples with a reward or log-prob that is not finite become invalid in `valid_S`: they are in no statistic and
        get advantage 0. Statistics run in float64. Raises ValueError where a needed stream is missing.
        """
        streams = (batch.prox_T, batch.behaviour_T, batch.ref_T)
        finite_S = finite_samples(batch.seq_T, batch.samples, *streams)
        valid_S = batch.valid_S & torch.isfinite(batch.reward_S) & finite_S
        batch = batch.with_(valid_S=valid_S)
        rows = self._rows(batch)
        shaped = batch.with_(score_S=torch.where(valid_S, batch.reward_S.to(torch.float64), 0.0))
        for part in self.shape:
            shaped = part(shaped, rows.in_statistics_S)
        worth = self.assign(shaped)
        advantages_T = self._advantages(batch, worth, rows.in_statistics_S)
        kept_T = rows.has_advantage_S[batch.seq_T]
        return batch.with_(
            score_S=torch.where(valid_S, present(shaped.score_S, "score_S"), 0.0).float(),
            advantages_T=torch.where(kept_T, advantages_T, 0.0).float(),
            returns_T=None if worth.returns_T is None else torch.where(kept_T, worth.returns_T, 0.0).float(),
        )

    def _rows(self, batch: Batch) -> Rows:
        rows = Rows(batch.valid_S, batch.valid_S, batch.valid_S)
        for rule in self.rows:
            rows = rows & rule(batch)
        return rows

    def _advantages(self, batch: Batch, worth: Worth, counted_S: Tensor) -> Tensor:
        """[T]: the worth, normalised over samples where it is one number per sample, over tokens where it varies."""
        group_S, groups = dense_ids(batch.prompt_S)
        value, per_token = worth.value, worth.per_token
        if self.norm is not None:
            if self.norm.per_token and not per_token:
                value, per_token = value[batch.seq_T], True
            spread = batch.seq_T if per_token else slice(None)
            value = self.norm(value, Units(group_S[spread], groups, counted_S[spread]))
        return value if per_token else value[batch.seq_T]

    @torch.no_grad()
    def weights(self, batch: Batch) -> Batch:
        """Set `weight_T` for the samples of one optimizer step; 0 on every token outside the loss."""
        in_loss_S = self._rows(batch).in_loss_S
        weight_T = torch.where(in_loss_S[batch.seq_T], self.reduce(batch, in_loss_S), 0.0)
        return batch.with_(weight_T=weight_T.float())

    def loss(self, batch: Batch, logprobs_T: Tensor, entropy_T: Tensor | None = None) -> Loss:
        """Σ_t w_t · (penalties_t - objective_t) over one micro-batch, cut with `Batch.select` after `weights`.

        `logprobs_T` and `entropy_T` are the policy's, with gradient. Where `prox_T` is None the policy has not moved
        since it sampled, and its own log-prob is the clip centre. Tokens without weight get gradient exactly 0.
        """
        tokens = live_tokens(batch, logprobs_T, entropy_T)
        gated = self.gate(self.ratio(tokens), tokens.advantages_T)
        loss_T = -gated.objective_T
        for penalty in self.penalties:
            loss_T = loss_T + penalty(tokens)
        return Loss((tokens.weight_T * loss_T).sum(), loss_stats(tokens, gated.clipped))

    def has_signal(self, batch: Batch) -> Tensor:
        """0-d bool: whether this optimizer step can move anything: an advantage, or a penalty on a weighted token."""
        weighted_T = present(batch.weight_T, "weight_T") != 0
        if self.penalties:
            return weighted_T.any()
        return (weighted_T & (present(batch.advantages_T, "advantages_T") != 0)).any()

    @torch.no_grad()
    def credit_stats(self, batch: Batch) -> Stats:
        """What credit did, from the batch that it returned: invalid samples, groups without any spread, advantages."""
        group_S, groups = dense_ids(batch.prompt_S)
        units = Units(group_S, groups, batch.valid_S)
        constant_P, present_P = constant_groups(present(batch.score_S, "score_S"), units)
        advantages_T = present(batch.advantages_T, "advantages_T")
        valid_T = batch.valid_S[batch.seq_T]
        return {
            "samples/invalid": mean_over(~batch.valid_S, torch.ones_like(batch.valid_S)),
            "groups/zero_variance": mean_over(constant_P, present_P),
            "score/mean": mean_over(present(batch.score_S, "score_S"), batch.valid_S),
            "advantage/mean": mean_over(advantages_T, valid_T),
            "advantage/abs": mean_over(advantages_T.abs(), valid_T),
        }
