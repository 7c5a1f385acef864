"""An algorithm: a record of parts, and the three scopes in which they act.

Credit once per rollout batch, weights once per optimizer step, loss once per micro-batch; nothing is computed in a
narrower scope than it belongs to.
Shapes: T packed trained tokens, S samples, P prompts.
Left out: state and models. Controllers own the first; the loop asks `needs` which streams to score.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partita.algo.balance import Balance
from partita.algo.center import ClipCenter, Recomputed
from partita.algo.correct import Correct, Drift
from partita.algo.credit import Credit, Worth
from partita.algo.gate import Gate, Gated
from partita.algo.keep import Keep
from partita.algo.norm import Norm, Units, constant_groups
from partita.algo.penalty import Penalty
from partita.algo.ratio import Ratio
from partita.algo.reduce import Reduce
from partita.algo.rows import RowRule, Rows
from partita.algo.shape import RewardNorm, Shape
from partita.algo.stats import Stats, correction_stats, iqr, loss_stats, mean_over
from partita.algo.tokens import Current, Tokens, finite_samples, live_tokens, present
from partita.algo.value import ValueLoss, value_stats
from partita.ops.segments import dense_ids, segment_all, segment_sum
from partita.records import Batch


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the step: `value` is already weighted, so shares are added, never averaged."""

    value: Tensor
    stats: Stats


@dataclass(frozen=True)
class Algorithm:
    """A composition of parts. Change one with `dataclasses.replace`; `compose` builds it from configuration keys.

    keep: groups worth training on. shape: reward to score, in order. assign: score to worth per sample or token. norm:
    the statistics of the advantages. rows: rules for whole samples. balance: positive against negative advantages.
    correct: weights and masks against the sampler, multiplied. center: what the ratio is taken against. reduce: weights
    per token. ratio and gate: the objective. penalties: further loss terms. value: the critic's loss.
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
    balance: Balance | None = None
    correct: tuple[Correct, ...] = ()
    center: ClipCenter = field(default_factory=Recomputed)
    value: ValueLoss | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Streams that must be there, among "prox", "ref", "values", "old_entropy", "entropy", "behaviour", "parts",
        "step_rewards", "kl_full_ref", "kl_full_old", "kl_full_score", "kl_after". "prox" only if credit, a correction before
        the step or a rule after it reads it.
        """
        parts: tuple[Any, ...] = (*self.shape, *self.penalties, *self.correct, self.assign, self.center)
        early = {"prox"} if self._early and self.center.scored else set[str]()
        return frozenset[str]().union(early, *(part.needs for part in parts))

    @property
    def _early(self) -> tuple[Correct, ...]:
        """Corrections that are fixed for the whole optimizer step before any micro-batch."""
        return tuple(part for part in self.correct if self.center.scored and not part.reads_current)

    @torch.no_grad()
    def credit(self, batch: Batch) -> Batch:
        """Set `advantages_T`, `score_S` (shaped, before any KL) and, where credit has them, `returns_T`; float64.

        Samples with a reward, log-prob or value that is not finite become invalid in `valid_S`: they are in no statistic and
        get advantage 0. Raises ValueError where a needed stream is missing.
        """
        batch = self._valid(batch)
        rows = self._rows(batch)
        shaped = self._shaped(batch, rows, self.shape)
        worth = self.assign(shaped, rows.in_statistics_S)
        advantages_T = self._advantages(batch, worth, rows.in_statistics_S)
        kept_T, valid_T = rows.has_advantage_S[batch.seq_T], batch.valid_S[batch.seq_T]
        return batch.with_(
            score_S=torch.where(batch.valid_S, present(shaped.score_S, "score_S"), 0.0),
            advantages_T=torch.where(kept_T, advantages_T, 0.0),
            # a sample without advantage still tells the critic what it was worth
            returns_T=None if worth.returns_T is None else torch.where(valid_T, worth.returns_T, 0.0),
        )

    def _valid(self, batch: Batch) -> Batch:
        """Invalid samples get a zero of everything that statistics and recursions read."""
        streams = (batch.prox_T, batch.behaviour_T, batch.ref_T, batch.values_T, batch.kl_full_T)
        finite_S = finite_samples(batch.seq_T, batch.samples, *streams)
        valid_S = batch.valid_S & torch.isfinite(batch.reward_S) & finite_S
        if batch.bootstrap_value_S is not None:  # it stands for what follows, so nobody reads it where a sample ended
            valid_S = valid_S & (torch.isfinite(batch.bootstrap_value_S) | ~batch.truncated_S)
        if batch.step_rewards_T is not None:  # NaN says that no step ends here
            valid_S = valid_S & segment_all(~torch.isinf(batch.step_rewards_T), batch.seq_T, batch.samples)
        found: dict[str, Tensor] = {"valid_S": valid_S}
        valid_T = valid_S[batch.seq_T]
        read = {"prox_T": batch.prox_T, "ref_T": batch.ref_T, "values_T": batch.values_T, "kl_full_T": batch.kl_full_T}
        for name, stream_T in read.items():
            if stream_T is not None:
                found[name] = torch.where(valid_T, stream_T, 0.0)
        return batch.with_(**found)

    def _rows(self, batch: Batch) -> Rows:
        rows = Rows(batch.valid_S, batch.valid_S, batch.valid_S)
        for rule in self.rows:
            rows = rows & rule(batch)
        return rows

    def _shaped(self, batch: Batch, rows: Rows, parts: tuple[Shape, ...]) -> Batch:
        shaped = batch.with_(score_S=torch.where(batch.valid_S, batch.reward_S.to(torch.float64), 0.0))
        for part in parts:
            shaped = part(shaped, rows.in_statistics_S)
        return shaped

    def _advantages(self, batch: Batch, worth: Worth, counted_S: Tensor) -> Tensor:
        """[T]: the worth, normalised over samples where it is one number per sample, over tokens where it varies."""
        value, per_token = self._counted(batch, worth)
        if self.norm is not None:
            value = self.norm(value, _units(batch, counted_S, per_token))
        return value if per_token else value[batch.seq_T]

    def _counted(self, batch: Batch, worth: Worth) -> tuple[Tensor, bool]:
        """The values that `norm` counts, and whether they are tokens' instead of samples'."""
        if self.norm is not None and self.norm.per_token and not worth.per_token:
            return worth.value[batch.seq_T], True
        return worth.value, worth.per_token

    @torch.no_grad()
    def statistics(self, batch: Batch) -> dict[str, float]:
        """Mean, variance (over n) and count of the values that a norm with running statistics is about to see.

        Named `<place>/mean` and so on, place being "reward_norm" or "adv_norm"; empty where nothing runs.
        """
        batch = self._valid(batch)
        rows = self._rows(batch)
        for i, part in enumerate(self.shape):
            if isinstance(part, RewardNorm) and part.norm.running:
                before = self._shaped(batch, rows, self.shape[:i])
                return _moments("reward_norm", present(before.score_S, "score_S")[rows.in_statistics_S])
        if self.norm is not None and self.norm.running:
            worth = self.assign(self._shaped(batch, rows, self.shape), rows.in_statistics_S)
            value, per_token = self._counted(batch, worth)
            return _moments("adv_norm", value[_units(batch, rows.in_statistics_S, per_token).counted_N])
        return {}

    @torch.no_grad()
    def weights(self, batch: Batch) -> Batch:
        """Set `weight_T` for the samples of one optimizer step, 0 on every token outside the loss; where the algorithm
        corrects or balances, also `correction_T` and the balanced `advantages_T`.
        """
        rows, found = self._rows(batch), dict[str, Tensor]()
        in_loss_S = rows.in_loss_S if self.balance is None else self.balance.rows(batch, rows.in_loss_S)
        # left out of everything: not an empty sample of the step, but none of its samples
        gone_S = (rows.in_loss_S & ~in_loss_S) | ~(rows.in_loss_S | rows.in_statistics_S)
        step, in_loss_T = batch.with_(valid_S=batch.valid_S & ~gone_S), in_loss_S[batch.seq_T]
        weight_T = torch.where(in_loss_T, self.reduce(step, in_loss_T), 0.0)
        if self._early:
            found["correction_T"], kept_T = _corrected(self._early, self._drift(batch, in_loss_T))
            if any(part.kept_denominator for part in self._early):
                found["scale_T"] = self._kept_scale(step, weight_T, kept_T)
        if self.balance is not None:
            advantages_T = present(batch.advantages_T, "advantages_T")
            found["advantages_T"] = self.balance.scale(advantages_T, weight_T)
        return batch.with_(weight_T=weight_T, **found)

    def _kept_scale(self, step: Batch, weight_T: Tensor, kept_T: Tensor) -> Tensor:
        """[T]: what kept denominators make of the objective; penalties keep theirs, as they act on masked tokens too."""
        in_loss_T = weight_T != 0
        had_S, has_S = (segment_sum(flag_T, step.seq_T, step.samples) > 0 for flag_T in (in_loss_T, kept_T))
        kept = step.with_(valid_S=step.valid_S & (has_S | ~had_S))
        return torch.where(in_loss_T, self.reduce(kept, kept_T) / torch.where(in_loss_T, weight_T, 1.0), 0.0)

    def _drift(self, batch: Batch, in_loss_T: Tensor) -> Drift:
        prox_T, behaviour_T = present(batch.prox_T, "prox_T"), present(batch.behaviour_T, "behaviour_T")
        log_weight_T = torch.where(in_loss_T, prox_T - behaviour_T, 0.0)
        advantages_T = present(batch.advantages_T, "advantages_T")
        return Drift(batch.seq_T, batch.samples, in_loss_T, advantages_T, log_weight_T)

    def loss(self, batch: Batch, current: Current) -> Loss:
        """Σ_t w_t · (penalties_t - correction_t · objective_t) over one micro-batch, cut with `Batch.select` after
        `weights`.

        `current` is the policy's, with gradient. Where `prox_T` is None the policy has not moved since it was scored,
        and its own log-prob is the clip centre. Tokens without weight get gradient exactly 0.
        """
        tokens = live_tokens(batch, current, self.center(batch, current.logprobs_T), "entropy" in self.needs)
        gated, correction_T = self._gated(tokens)
        loss_T = -tokens.scale_T * correction_T * gated.objective_T
        for penalty in self.penalties:
            if penalty.coef != 0:
                loss_T = loss_T + penalty(tokens)
        stats = loss_stats(tokens, gated.clipped)
        if not self.center.scored:  # centred on the sampler, the difference to it is no longer to be seen
            stats.pop("mismatch/k3", None)
        if self.correct:
            stats |= correction_stats(tokens, correction_T)
        return Loss((tokens.weight_T * loss_T).sum(), stats)

    def _gated(self, tokens: Tokens) -> tuple[Gated, Tensor]:
        """What the gate lets through, and the correction of each token."""
        late = tuple(part for part in self.correct if part not in self._early)
        correction_T = tokens.correction_T
        if late:
            weight_T, _ = _corrected(late, _current_drift(tokens))
            correction_T = correction_T * weight_T
        if self.ratio.whole_sequence:
            tokens = replace(tokens, advantages_T=tokens.sequence_mean(tokens.advantages_T))
        return self.gate(self.ratio(tokens), tokens), correction_T

    def value_loss(self, batch: Batch, values_T: Tensor) -> Loss:
        """Σ_t w_t · the critic's loss over one micro-batch, against `returns_T` and the old `values_T` of the batch."""
        assert self.value is not None, "an algorithm without a critic has no value loss"
        values_T = values_T.to(torch.promote_types(values_T.dtype, torch.float32))
        returns_T, old_T = present(batch.returns_T, "returns_T"), present(batch.values_T, "values_T")
        weight_T = present(batch.weight_T, "weight_T").to(values_T)
        seq_T = batch.seq_T.to(values_T.device)
        live_T = (weight_T != 0) & finite_samples(seq_T, batch.samples, values_T, old_T)[seq_T]
        clean = [torch.where(live_T, stream_T.to(values_T), 0.0) for stream_T in (values_T, old_T, returns_T)]
        loss_T = torch.where(live_T, weight_T, 0.0) * self.value(*clean)
        off_T = torch.where(live_T, (clean[0] - clean[1]).abs().detach(), 0.0)
        return Loss(loss_T.sum(), {"value/step": mean_over(off_T, live_T)})

    def gradient_coefficients(self, batch: Batch, current: Current) -> Tensor:
        """[T] float64: the factor of ∇ log π(o_t) in the objective, -(∂ loss / ∂ log π) / w; 0 without weight.

        DeepSeekMath's unified view of policy-gradient methods (arXiv 2402.03300, section 5.2.1, equation 5).
        """
        logprobs_T = current.logprobs_T.detach().to(torch.float64).requires_grad_()
        with torch.enable_grad():
            value = self.loss(batch, replace(current, logprobs_T=logprobs_T)).value
            (grad_T,) = torch.autograd.grad(value, logprobs_T)
        weight_T = present(batch.weight_T, "weight_T").to(torch.float64)
        return torch.where(weight_T != 0, -grad_T / torch.where(weight_T != 0, weight_T, 1.0), 0.0)

    def moving_S(self, batch: Batch) -> Tensor:
        """[S] bool: the samples of an optimizer step, after `weights`, that can move the policy: by a penalty on a weighted
        token, or by an advantage that its correction lets through.

        The others add exactly nothing to the loss and to its gradient, which are sums over samples.
        """
        weighted_T = present(batch.weight_T, "weight_T") != 0
        unmoved = batch.prox_T is None and self.center.scored
        penalised = any(penalty.coef != 0 and not (unmoved and penalty.of_the_step) for penalty in self.penalties)
        if penalised:
            return self._any(weighted_T, batch)
        advantage_T = weighted_T & (present(batch.advantages_T, "advantages_T") != 0)
        if self.ratio.whole_sequence:  # its tokens share their advantages
            advantage_T = weighted_T & self._any(advantage_T, batch)[batch.seq_T]
        if batch.correction_T is not None:
            advantage_T = advantage_T & (batch.correction_T != 0)
        return self._any(advantage_T, batch)

    def valued_S(self, batch: Batch) -> Tensor:
        """[S] bool: the samples of an optimizer step, after `weights`, that the critic's loss reads."""
        return self._any(present(batch.weight_T, "weight_T") != 0, batch)

    @staticmethod
    def _any(flag_T: Tensor, batch: Batch) -> Tensor:
        return segment_sum(flag_T, batch.seq_T, batch.samples) > 0

    @torch.no_grad()
    def credit_stats(self, batch: Batch) -> Stats:
        """What credit did, from the batch that it returned: invalid samples, groups without any spread, advantages."""
        group_S, groups = dense_ids(batch.prompt_S)
        units = Units(group_S, groups, batch.valid_S)
        constant_P, present_P = constant_groups(present(batch.score_S, "score_S"), units)
        advantages_T = present(batch.advantages_T, "advantages_T")
        valid_T = batch.valid_S[batch.seq_T]
        length_S = batch.length_S.clamp(min=1)
        mean_S = segment_sum(advantages_T, batch.seq_T, batch.samples) / length_S
        spread = iqr(mean_S[batch.valid_S])
        found = {
            "samples/invalid": mean_over(~batch.valid_S, torch.ones_like(batch.valid_S)),
            "groups/zero_variance": mean_over(constant_P, present_P),
            "score/mean": mean_over(present(batch.score_S, "score_S"), batch.valid_S),
            "advantage/mean": mean_over(advantages_T, valid_T),
            "advantage/abs": mean_over(advantages_T.abs(), valid_T),
            "advantage/iqr": mean_over(spread[None], batch.valid_S.any()[None].to(spread.device)),
        }
        if batch.values_T is not None and batch.returns_T is not None:
            found |= value_stats(batch.values_T, batch.returns_T, valid_T)
        if batch.entropy_T is not None:
            found["old_entropy"] = mean_over(batch.entropy_T, valid_T & torch.isfinite(batch.entropy_T))
        return found


def _units(batch: Batch, counted_S: Tensor, per_token: bool) -> Units:
    group_S, groups = dense_ids(batch.prompt_S)
    spread = batch.seq_T if per_token else slice(None)
    return Units(group_S[spread], groups, counted_S[spread])


def _moments(place: str, value_N: Tensor) -> dict[str, float]:
    finite_N = value_N[torch.isfinite(value_N)].to(torch.float64)
    if finite_N.shape[0] == 0:
        return {f"{place}/count": 0.0}
    mean, variance = finite_N.mean(), finite_N.var(correction=0)
    return {f"{place}/mean": float(mean), f"{place}/variance": float(variance), f"{place}/count": float(len(finite_N))}


def _current_drift(tokens: Tokens) -> Drift:
    """Differences to the current policy, for corrections that act in the loss."""
    behaviour_T = tokens.prox_T if tokens.behaviour_T is None else tokens.behaviour_T
    log_step_T = behaviour_T - tokens.logprobs_T.detach()
    return Drift(
        tokens.seq_T, tokens.samples, tokens.live_T, tokens.advantages_T, tokens.prox_T - behaviour_T, log_step_T
    )


def _corrected(parts: tuple[Correct, ...], drift: Drift) -> tuple[Tensor, Tensor]:
    """The product of the parts' weights [T], and the tokens [T] that count in the denominators."""
    weight_T, counted_T = torch.ones_like(drift.log_weight_T), drift.counted_T
    for part in parts:
        corrected = part(drift)
        weight_T = weight_T * corrected.weight_T
        if part.kept_denominator:
            counted_T = counted_T & corrected.kept_T
    return torch.where(drift.counted_T, weight_T, 0.0), counted_T
