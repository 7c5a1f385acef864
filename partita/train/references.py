"""Where the reference's log-probs of whole samples come from: once for all data, or from a frozen model in every step.

Shapes: S samples of the given items, B samples beside them.
Left out: which model is the reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from partita.models.offload import resident
from partita.models.packed import PackedModel
from partita.ops.disk import sync
from partita.ops.ranks import ALONE, Ranks
from partita.train.offline import Item, Rows, sums


@dataclass(frozen=True)
class Asked:
    """A frozen model that is asked in every step. dtype: of its forward passes. budget: model-input tokens in one of them.
    device: fetched to it for each use, where it waits elsewhere; None asks it where it is. ranks: over which it is sharded.
    """

    model: PackedModel
    dtype: torch.dtype
    budget: int
    device: torch.device | None = None
    ranks: Ranks = ALONE

    def __call__(self, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Of the samples, and of what is beside them."""
        with resident(self.model, self.device or self.model.device):
            return (
                sums(self.model, self.dtype, [item.samples for item in items], self.budget, self.ranks),
                sums(
                    self.model, self.dtype, [(rows,) for item in items for rows in item.beside], self.budget, self.ranks
                ),
            )


@dataclass(frozen=True)
class Known:
    """What a model said about all items before training, by their ids."""

    of_item: dict[str, tuple[Tensor, Tensor]]

    def __call__(self, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Of the samples, and of what is beside them."""
        found = [self.of_item[item.uid] for item in items]
        none = torch.zeros(0, dtype=torch.float64)
        return torch.cat([none, *(own for own, _ in found)]), torch.cat([none, *(beside for _, beside in found)])


@dataclass(frozen=True)
class Told:
    """What rank 0 knows about items, on all ranks. known: None on the others."""

    ranks: Ranks
    known: Known | None

    def __call__(self, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Of the samples, and of what is beside them."""
        none = torch.zeros(0, dtype=torch.float64)
        return self.ranks.told((none, none) if self.known is None else self.known(items))


def known(
    items: Sequence[Item],
    ask: Callable[[Sequence[Item]], tuple[Tensor, Tensor]],
    file: Path,
    model: str,
    say: Callable[[str], None] = lambda _: None,
) -> Known:
    """What `ask` says about the items: read from the file where it was written for these tokens and this model, else asked
    for and written; `say` is told before that, as it takes about as long as half an epoch.
    """
    told = _fingerprint(items, model)
    if (found := _read(file, told)) is None:
        say(f"asking the reference about {len(items)} items, once; the answers are kept in {file}")
        found = ask(items)
        aside = file.with_suffix(".writing")
        save_file({"samples": found[0], "beside": found[1]}, aside, {"of": told})
        sync(aside)
        aside.replace(file)
    samples = found[0].split([len(item.samples) for item in items])
    beside = found[1].split([len(item.beside) for item in items])
    return Known({item.uid: pair for item, pair in zip(items, zip(samples, beside, strict=True), strict=True)})


def _read(file: Path, told: str) -> tuple[Tensor, Tensor] | None:
    if not file.exists():
        return None
    try:
        with safe_open(file, "pt") as stored:
            if (stored.metadata() or {}).get("of") != told:
                return None
            return stored.get_tensor("samples"), stored.get_tensor("beside")
    except SafetensorError:  # cut or damaged: it can be asked for again
        return None


def _fingerprint(items: Iterable[Item], model: str) -> str:
    """Of the model's name, and of all ids in their order, and which of them are learned."""
    digest = hashlib.sha256(model.encode())
    for item in items:
        digest.update(f"|{item.uid}".encode())
        for rows in (*item.samples, *item.beside):
            digest.update(_tokens(rows))
    return digest.hexdigest()


def _tokens(rows: Rows) -> bytes:
    return repr([(row.ids, row.trained) for row in rows]).encode()
