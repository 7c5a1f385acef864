"""Padded rows, as case files have them, and packed tokens, as the product has them.

Shapes: B rows, W padded width, T packed tokens of all rows. A mask says which places hold tokens: padding may stand on the
left, on the right or in between, and what it holds never reaches the product.
Left out: maths. Values are picked, put back and given their dtype; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from conforming.case import Fields, Unknown
from torch import Tensor

from partita.records import Batch

STREAMS = {
    "behaviour_logp": "behaviour_T", "ref_logp": "ref_T", "token_rewards": "token_rewards_T", "x": "token_rewards_T",
    "advantages": "advantages_T", "returns": "returns_T", "versions": "version_T",
}  # fmt: skip
"""Padded inputs and the batch's streams; log-probs and values of several policies are chosen in `batch`."""
PER_TOKEN = ("logp", "log_ratio", "old_logp", "values", "old_values", "per_token_loss", *STREAMS)


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a case are. `mask_BW` is True on tokens."""

    inputs: Fields
    mask_BW: Tensor
    dtype: torch.dtype = torch.float64

    @classmethod
    def of(cls, inputs: Fields, dtype: torch.dtype = torch.float64) -> Layout:
        """By the mask; without one, versions of -1 are no tokens; else every place is one, and a row of nothing but row
        values has a single token.
        """
        if "mask" in inputs:
            return cls(inputs, torch.tensor(inputs["mask"]) != 0, dtype)
        if "versions" in inputs:
            return cls(inputs, torch.tensor(inputs["versions"]) >= 0, dtype)
        for name in PER_TOKEN:
            if name in inputs and isinstance(inputs[name][0], list):
                return cls(inputs, torch.ones(torch.tensor(inputs[name]).shape, dtype=torch.bool), dtype)
        for name in ("rewards", "advantages"):
            if name in inputs:
                return cls(inputs, torch.ones(len(inputs[name]), 1, dtype=torch.bool), dtype)
        raise Unknown(f"inputs {', '.join(inputs.values)} hold no rows")

    @property
    def rows(self) -> int:
        return self.mask_BW.shape[0]

    @property
    def seq_T(self) -> Tensor:
        """The row of each token."""
        return torch.arange(self.rows).repeat_interleave(self.mask_BW.sum(1))

    def with_a_token_in_every_row(self) -> Layout:
        """An empty response has no token to carry its advantage: it gets one, in a column of its own, with zeros."""
        ghost_B1 = ~self.mask_BW.any(1, keepdim=True)
        widened = {
            name: [[*row, 0.0] for row in self.inputs[name]]
            for name in PER_TOKEN
            if name in self.inputs and isinstance(self.inputs[name][0], list)
        }
        return Layout(self.inputs.over(widened), torch.cat((self.mask_BW, ghost_B1), 1), self.dtype)

    def tokens(self, name: str) -> Tensor:
        """[T]; a value per row is on each of its tokens."""
        value = torch.tensor(self.inputs[name], dtype=self.dtype)
        return value[self.mask_BW] if value.dim() == 2 else value[self.seq_T]

    def per_row(self, name: str, default: Any) -> Tensor:
        """[B]."""
        value = self.inputs.get(name)
        return torch.tensor([default] * self.rows if value is None else value)

    def padded(self, value_T: Tensor) -> Tensor:
        """[B, W], 0 where no token is."""
        out_BW = torch.zeros(self.mask_BW.shape, dtype=torch.float64)
        out_BW[self.mask_BW] = value_T.detach().to(torch.float64)
        return out_BW

    def first(self, value_T: Tensor, empty: float = 0.0) -> Tensor:
        """[B]: the value of each row's first token; `empty` for a row without tokens."""
        length_B = self.mask_BW.sum(1)
        out_B = torch.full((self.rows,), empty, dtype=torch.float64)
        start_B = torch.cumsum(length_B, 0) - length_B
        out_B[length_B > 0] = value_T.detach().to(torch.float64)[start_B[length_B > 0]]
        return out_B

    def as_expected(self, value_T: Tensor, expected: Any, empty: float = 0.0) -> Tensor:
        """[B, W] or [B], whichever the case has."""
        nested = isinstance(expected, list) and bool(expected) and isinstance(expected[0], list)
        return self.padded(value_T) if nested else self.first(value_T, empty)

    def batch(self) -> Batch:
        """Everything the case holds, packed; rewards are 0 and rows one group where it holds none."""
        rows = self.rows
        streams: dict[str, Any] = {ours: self.tokens(name) for name, ours in STREAMS.items() if name in self.inputs}
        if "versions" in self.inputs:
            streams["version_T"] = streams["version_T"].to(torch.long)
        prox = next((name for name in ("old_logp", "logp") if name in self.inputs), None)
        if prox is not None:  # without other log-probs the policy has not moved since it was scored
            streams["prox_T"] = self.tokens(prox)
        elif "log_ratio" in self.inputs:
            streams["prox_T"] = torch.zeros_like(self.tokens("log_ratio"))
        old = next((name for name in ("old_values", "values") if name in self.inputs), None)
        if old is not None:
            streams["values_T"] = self.tokens(old)
        if "bootstrap_values" in self.inputs:
            streams["bootstrap_value_S"] = self.per_row("bootstrap_values", 0.0).to(self.dtype)
        if "step_rewards" in self.inputs:
            streams["step_rewards_T"] = self._steps()
        return Batch(
            seq_T=self.seq_T,
            prompt_S=self._groups(),
            reward_S=self.per_row("rewards", 0.0).to(self.dtype),
            # a value after the last token is only there for rows that were cut
            truncated_S=self.per_row("truncated", "bootstrap_values" in self.inputs).to(torch.bool),
            valid_S=torch.ones(rows, dtype=torch.bool),
            lot_S=torch.arange(rows, dtype=torch.float64) / rows,
            **streams,
        )

    def _groups(self) -> Tensor:
        """Group ids may be of any type."""
        ids = self.inputs.get("group_ids", [0] * self.rows)
        known = {group: index for index, group in enumerate(dict.fromkeys(ids))}
        return torch.tensor([known[group] for group in ids], dtype=torch.long)

    def _steps(self) -> Tensor:
        """[T]: the reward of the step that ends on a token, NaN elsewhere."""
        out_BW = torch.full(self.mask_BW.shape, float("nan"), dtype=torch.float64)
        for row, steps in enumerate(self.inputs["step_rewards"]):
            for end, reward in steps:
                if not self.mask_BW[row, int(end)]:
                    raise Unknown(f"step_rewards of row {row} end at place {end}, which holds no token")
                out_BW[row, int(end)] = reward
        return out_BW[self.mask_BW]
