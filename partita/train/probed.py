"""What training computes for a few given tokens, outside of any batch: what an engine's log-probs are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from partita.models.packed import PackedModel
from partita.models.parallel import settle
from partita.ops.packing import pack
from partita.records import Row


@torch.no_grad()
def logprobs_after(
    model: PackedModel, precision: AbstractContextManager[Any], prompt_ids: Sequence[int], ids: Sequence[int],
    temperature: float,
) -> list[float]:  # fmt: skip
    """The model's log-prob of each of `ids` after a prompt; of a sharded model all ranks ask. precision: as in training."""
    prompt, tokens = len(prompt_ids), len(ids)
    trained = [False] * prompt + [True] * tokens
    row = Row([*prompt_ids, *ids], trained, [0.0] * (prompt + tokens), [-1] * (prompt + tokens))
    with precision:
        streams = model(pack([(row,)], [0]), temperature=temperature)
    settle(model)
    return streams.logprobs_T.tolist()
