"""The matrix products of a model at its own shapes: how fast this machine does them, with as many weights as the model has.

One hot matrix would stay in the caches; a model's weights pass through them. Merged products (q, k, v; gate and up) count
as one, the way they run fastest.
Shapes: N rows, I inputs, O outputs of a product; L layers.
Left out: attention's own products, which grow with the context, and everything that is not a product of matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HEAD_ROWS = 256  # of one product with the head in training: its result stays below 32 MiB in bfloat16


@dataclass(frozen=True)
class Product:
    """`count` weights [outputs, inputs] of one kind."""

    name: str
    inputs: int
    outputs: int
    count: int

    @property
    def parameters(self) -> int:
        """Of all of them."""
        return self.inputs * self.outputs * self.count


def products(config) -> tuple[Product, ...]:
    """Of a Llama-like configuration."""
    width, layers = config.hidden_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    q, kv = head * config.num_attention_heads, head * config.num_key_value_heads
    return (
        Product("qkv", width, q + 2 * kv, layers),
        Product("o", q, width, layers),
        Product("gate/up", width, 2 * config.intermediate_size, layers),
        Product("down", config.intermediate_size, width, layers),
        Product("head", width, config.vocab_size, 1),
    )


def seconds(action: Callable[[], object]) -> float:
    """Of one run."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Decoding:
    """All products of one decode step for `rows` sequences, each kind by `linear` and by oneDNN's packed weights."""

    def __init__(self, shapes: tuple[Product, ...], rows: int, dtype: torch.dtype) -> None:
        self.ways: list[tuple[Callable[[], None], Callable[[], None]]] = []
        for shape in shapes:
            weights = [torch.randn(shape.outputs, shape.inputs, dtype=dtype) for _ in range(shape.count)]
            packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
            self.ways.append(_both(torch.randn(rows, shape.inputs, dtype=dtype), weights, packed))

    @torch.inference_mode()
    def once(self) -> float:
        """Seconds of a step by the faster way of each kind, each the best of three."""
        return sum(min(seconds(way) for way in ways for _ in range(3)) for ways in self.ways)


def _both(x_NI: Tensor, weights: list[Tensor], packed: list[Tensor]) -> tuple[Callable[[], None], Callable[[], None]]:
    def plain() -> None:
        for weight_OI in weights:
            torch.nn.functional.linear(x_NI, weight_OI)

    def onednn() -> None:
        for weight in packed:
            torch.ops.mkldnn._linear_pointwise(x_NI, weight, None, "none", [], "")

    return plain, onednn


class Training:
    """All products of a forward and backward pass: layers over `tokens`, the head over the `trained` ones in chunks.

    Results go into arrays that are there, so that no page is touched for the first time.
    """

    def __init__(self, shapes: tuple[Product, ...], tokens: int, trained: int, dtype: torch.dtype) -> None:
        self.shapes, self.tokens, self.trained = shapes, tokens, trained
        self.runs = [self._run(shape, dtype) for shape in shapes]

    @property
    def flop(self) -> float:
        """Two for every parameter and row, in forward, in the gradient of the inputs and in that of the weights."""
        return sum(6.0 * shape.parameters * self._rows(shape) for shape in self.shapes)

    @torch.inference_mode()
    def once(self) -> float:
        """Seconds, each kind the best of two."""
        return sum(min(seconds(run) for _ in range(2)) for run in self.runs)

    def _rows(self, shape: Product) -> int:
        return self.trained if shape.name == "head" else self.tokens

    def _run(self, shape: Product, dtype: torch.dtype) -> Callable[[], None]:
        rows = self._rows(shape)
        chunk = min(rows, HEAD_ROWS) if shape.name == "head" else rows
        x_NI = torch.randn(chunk, shape.inputs, dtype=dtype)
        weights = [torch.randn(shape.outputs, shape.inputs, dtype=dtype) for _ in range(shape.count)]
        y_NO, grad_NI, grad_OI = (
            torch.randn(chunk, shape.outputs).to(dtype),
            torch.empty_like(x_NI),
            torch.empty_like(weights[0]),
        )

        def run() -> None:
            for weight_OI in weights:
                for _ in range(rows // chunk):
                    torch.mm(x_NI, weight_OI.t(), out=y_NO)
                    torch.mm(y_NO, weight_OI, out=grad_NI)
                    torch.mm(y_NO.t(), x_NI, out=grad_OI)

        return run


def bandwidth() -> dict[str, float]:
    """GB a second of a copy and of a triad (a + s·b into c) over arrays of 256 MiB, reads and writes counted; best of five."""
    a, b, c = (torch.ones(1 << 26) for _ in range(3))
    size = a.numel() * 4
    copy = min(seconds(lambda: c.copy_(a)) for _ in range(5))
    triad = min(seconds(lambda: torch.add(a, b, alpha=2.0, out=c)) for _ in range(5))
    return {"copy": 2 * size / copy / 1e9, "triad": 3 * size / triad / 1e9}
