"""What items cost: conversations that are imitated, preferences that are ranked by scores or by log-probs, judged answers.

Each is a thin adapter from items to a loss of the algorithm floor, where the formulas and their papers are.

Shapes: T packed trained tokens, S samples, N items.
Left out: models and optimizer steps (`train.offline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.algo.bradley import BradleyTerry, ranking_loss
from partita.algo.pairwise import Kto, PairLoss, Pairs, judged_loss, pair_loss
from partita.algo.reduce import Reduce
from partita.algo.stats import mean_over
from partita.ops.segments import segment_sum
from partita.records import Batch
from partita.train.offline import Item, Said, Share, StepLoss


@dataclass(frozen=True)
class Imitate:
    """-Σ_t w_t log π(o_t): supervised fine-tuning, under an aggregation of the algorithm floor."""

    reduce: Reduce
    scores: bool = False
    reference: bool = False

    def of_step(self, items: Sequence[Item], ratio_B: Tensor) -> StepLoss:
        """The weights are those of the whole step."""
        weight_T, seq_T = _weights(self.reduce, items)

        def loss(places: Sequence[int], said: Said) -> Share:
            assert said.logprobs_T is not None, "an objective that reads log-probs"
            own_T = torch.cat([weight_T[seq_T == place] for place in places]).to(said.logprobs_T)
            every_T = torch.ones_like(own_T, dtype=torch.bool)
            nll_T = -said.logprobs_T
            return Share((own_T * nll_T).sum(), {"sft/nll": mean_over(nll_T, every_T)})

        return loss


def _weights(reduce: Reduce, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Weights of the trained tokens of all items of a step, and which item each belongs to."""
    counts = [sum(sum(row.trained) for rows in item.samples for row in rows) for item in items]
    number = len(items)
    seq_T, no_S = torch.repeat_interleave(torch.arange(number), torch.tensor(counts)), torch.zeros(number).bool()
    batch = Batch(
        seq_T=seq_T, prompt_S=torch.arange(number), reward_S=torch.ones(number), truncated_S=no_S, valid_S=~no_S
    )
    return reduce(batch, torch.ones(len(seq_T)).bool()), seq_T


@dataclass(frozen=True)
class Rank:
    """A reward model: the score of the chosen answer above that of the rejected one."""

    loss: BradleyTerry
    scores: bool = True
    reference: bool = False

    def of_step(self, items: Sequence[Item], ratio_B: Tensor) -> StepLoss:
        """The mean over the step's pairs; a pair without a margin of its own has 0."""

        def loss(places: Sequence[int], said: Said) -> Share:
            assert said.scores_S is not None, "an objective that reads scores"
            margin_N = torch.tensor([items[place].margin or 0.0 for place in places])
            margin_N = margin_N.to(said.scores_S.device)
            found = ranking_loss(self.loss, said.scores_S[::2], said.scores_S[1::2], len(items), margin_N)
            return Share(found.value, found.stats)

        return loss


@dataclass(frozen=True)
class Prefer:
    """A preference by log-probs: DPO and its relatives."""

    loss: PairLoss
    scores: bool = False

    @property
    def reference(self) -> bool:
        """Whether the loss compares with the reference."""
        return self.loss.reference

    def of_step(self, items: Sequence[Item], ratio_B: Tensor) -> StepLoss:
        """The mean over the step's pairs."""

        def loss(places: Sequence[int], said: Said) -> Share:
            policy_S = _sums(said)
            length_S = torch.bincount(said.seq_T, minlength=said.samples).to(policy_S.device)
            ref_S = None if said.ref_S is None else said.ref_S.to(policy_S.device)
            found = pair_loss(self.loss, Pairs.of_sums(policy_S, ref_S, length_S), len(items))
            return Share(found.value, found.stats)

        return loss


def _sums(said: Said) -> Tensor:
    """[S]: the policy's log-probs of whole samples, with gradient."""
    assert said.logprobs_T is not None, "an objective that reads log-probs"
    return segment_sum(said.logprobs_T, said.seq_T.to(said.logprobs_T.device), said.samples)


@dataclass(frozen=True)
class Judge:
    """Answers that are good or bad, one by one: KTO. Beside each item stands its question with another's answer."""

    loss: Kto
    scores: bool = False
    reference: bool = True

    def of_step(self, items: Sequence[Item], ratio_B: Tensor) -> StepLoss:
        """The mean over the step's answers; z is that of the whole step, from before it."""
        rest = self.loss.rest(ratio_B)

        def loss(places: Sequence[int], said: Said) -> Share:
            assert said.ref_S is not None, "KTO compares with a reference"
            policy_S = _sums(said)
            good_S = torch.tensor([items[place].good for place in places], device=policy_S.device)
            ratio_S = policy_S - said.ref_S.to(policy_S.device)
            found = judged_loss(self.loss, ratio_S, good_S, rest.to(policy_S.device), len(items))
            said_S = policy_S.detach()
            logprobs = {
                "preference/logprob_desirable": mean_over(said_S, good_S),
                "preference/logprob_undesirable": mean_over(said_S, ~good_S),
            }
            return Share(found.value, found.stats | logprobs)

        return loss
