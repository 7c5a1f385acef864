"""Helpers of these tests: golden files, padded fixtures packed into batches, tokens by hand, and random batches."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from properties.batches import random_batch
from torch import Tensor

from partita.algo.tokens import Current, Tokens, live_tokens
from partita.records import Batch

GOLDEN = Path(__file__).parent.parent / "golden"


def numbers(value: Any) -> Any:
    """JSON has no NaN: the files spell it."""
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: numbers(item) for name, item in value.items()}
    return float(value) if value in ("nan", "inf", "-inf") else value


class Padded:
    """The inputs of a golden file, its rows in some order, packed into a batch; padding never reaches the batch."""

    def __init__(self, inputs: dict[str, Any], order: list[int] | None = None) -> None:
        self.inputs = inputs
        rows = len(inputs["mask"]) if "mask" in inputs else len(inputs["rewards"])
        self.order = list(range(rows)) if order is None else order
        self.mask = torch.tensor(inputs.get("mask", [[1.0]] * rows))[self.order].bool()

    def tokens(self, name: str) -> Tensor:
        """[T] float64."""
        return torch.tensor(self.inputs[name], dtype=torch.float64)[self.order][self.mask]

    def samples(self, name: str) -> Tensor:
        """[S]."""
        return torch.tensor(self.inputs[name])[self.order]

    def batch(self, **streams: Any) -> Batch:
        """A batch with whatever the file holds; `streams` adds or replaces."""
        rows = len(self.order)
        no = torch.zeros(rows, dtype=torch.bool)
        given: dict[str, Any] = {
            "seq_T": torch.repeat_interleave(torch.arange(rows), self.mask.sum(1)),
            "prompt_S": self.samples("group_ids")
            if "group_ids" in self.inputs
            else torch.zeros(rows, dtype=torch.long),
            "reward_S": self.samples("rewards") if "rewards" in self.inputs else torch.zeros(rows),
            "truncated_S": self.samples("truncated") if "truncated" in self.inputs else no,
            "valid_S": ~no,
        }
        for name, stream in (("old_logp", "prox_T"), ("ref_logp", "ref_T"), ("advantages", "advantages_T")):
            if name in self.inputs:
                given[stream] = self.tokens(name)
        return Batch(**(given | streams))

    def padded(self, value_T: Tensor) -> Tensor:
        """[B, T] in the file's own order, 0 in padding."""
        out = torch.zeros(self.mask.shape, dtype=torch.float64)
        out[self.mask] = value_T.detach().double()
        return out[torch.argsort(torch.tensor(self.order))]

    def unordered(self, value_S: Tensor) -> Tensor:
        """[B] in the file's own order."""
        return value_S.detach().double()[torch.argsort(torch.tensor(self.order))]


def read(name: str) -> dict[str, Any]:
    return numbers(json.loads((GOLDEN / f"{name}.json").read_text()))


def tokens_by_hand(
    log_ratios: list[float], *, advantages: list[float] | None = None, lengths: list[int] | None = None, **streams: Any
) -> tuple[Tokens, Tensor]:
    """Tokens [T] of weight 1 with these log-ratios over a policy of log-prob -1, and the log-probs they are made of.

    lengths: of the samples, by default one sample. `streams` adds or replaces streams of the batch.
    """
    total = len(log_ratios)
    lengths = [total] if lengths is None else lengths
    logprobs_T = (torch.tensor(log_ratios, dtype=torch.float64) - 1.0).requires_grad_()
    no_S = torch.zeros(len(lengths), dtype=torch.bool)
    given: dict[str, Any] = {
        "seq_T": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        "prompt_S": torch.zeros(len(lengths), dtype=torch.long), "reward_S": torch.zeros(len(lengths)),
        "truncated_S": no_S, "valid_S": ~no_S, "weight_T": torch.ones(total, dtype=torch.float64),
        "advantages_T": torch.tensor([1.0] * total if advantages is None else advantages, dtype=torch.float64),
    }  # fmt: skip
    prox_T = torch.full((total,), -1.0, dtype=torch.float64)
    return live_tokens(Batch(**(given | streams)), Current(logprobs_T), prox_T), logprobs_T


@pytest.fixture
def by_hand() -> Callable[..., tuple[Tokens, Tensor]]:
    """Makes tokens with given log-ratios."""
    return tokens_by_hand


@pytest.fixture
def golden() -> Callable[[str], dict[str, Any]]:
    """Reads a golden file."""
    return read


@pytest.fixture
def padded() -> type[Padded]:
    """Packs the padded inputs of a golden file."""
    return Padded


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """Makes a random batch of ragged groups with log-prob streams."""
    return random_batch


@pytest.fixture
def close() -> Callable[..., None]:
    """Asserts that two nested lists or tensors agree within the tolerance of the golden files."""

    def check(actual: Any, expected: Any, atol: float = 1e-6, rtol: float = 1e-6) -> None:
        left, right = torch.as_tensor(actual).double(), torch.as_tensor(expected).double()
        torch.testing.assert_close(left.detach(), right, atol=atol, rtol=rtol)

    return check
