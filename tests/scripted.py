"""Models that say what is written: log-probs and values of each trained token, pass by pass, with a gradient for each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partita.models.packed import Against, Streams
from partita.ops.packing import Packed
from partita.records import Row

FILLER = 0
"""The id of prompts and of tokens that nobody trains; trained token t of a batch has the id t + 1."""


def scripted_rows(mask_BW: Tensor) -> list[Row]:
    """Rows of a padded mask: what lies between two trained tokens came from a tool, what lies before the first or after the
    last is padding and gone.
    """
    rows, count = list[Row](), 0
    for flags in mask_BW.tolist():
        places = [at for at, flag in enumerate(flags) if flag]
        ids, trained = [FILLER], [False]
        for flag in flags[places[0] : places[-1] + 1]:
            count += bool(flag)
            ids.append(count if flag else FILLER)
            trained.append(bool(flag))
        rows.append(Row(ids, trained, [0.0] * len(ids), [0] * len(ids)))
    return rows


class Scripted(nn.Module):
    """A policy, or a critic: pass k over all tokens says `passes[k]`, the last of them from then on, plus an offset [T] that
    is the only parameter.

    ends_T: the value of the state after each token. gradients: of each pass, by the offset.
    """

    def __init__(self, passes: Sequence[Tensor], ends_T: Tensor | None = None) -> None:
        super().__init__()
        self.passes, self.ends_T = [said.double() for said in passes], ends_T
        self.offset = nn.Parameter(torch.zeros_like(self.passes[0]))
        self.seen, self.gradients = 0, [torch.zeros_like(said) for said in self.passes]

    @property
    def device(self) -> torch.device:
        return self.offset.device

    def forward(self, packed: Packed, *, temperature: float, entropy: bool = False, **asked: Any) -> Streams:
        said_T = self._said(packed)
        assert temperature == 1.0 and asked.get("against") in (None, Against())
        return Streams(said_T, torch.zeros_like(said_T) if entropy else None)

    def values(self, packed: Packed, *, ends: bool = False) -> tuple[Tensor, Tensor | None]:
        after = None
        if ends:
            assert self.ends_T is not None
            after = self.ends_T[packed.ids_N[packed.end_S] - 1]
        return self._said(packed), after

    def _said(self, packed: Packed) -> Tensor:
        at_T, pass_ = packed.target_T - 1, min(self.seen // len(self.offset), len(self.passes) - 1)
        self.seen += len(at_T)
        offset_T = self.offset[at_T]

        def note(grad_T: Tensor) -> None:
            self.gradients[pass_].index_add_(0, at_T, grad_T)

        if offset_T.requires_grad:
            offset_T.register_hook(note)
        return self.passes[pass_][at_T] + offset_T
