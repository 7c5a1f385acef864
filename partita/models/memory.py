"""Tokens in pieces that stay in a processor's cache from one elementwise operation to the next.

Shapes: T tokens, D numbers of each.
Left out: matrix products, which cut their operands themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# Numbers of one piece: 1 MiB in float32. Half of it costs more in calls than it saves in memory traffic.
PIECE = 1 << 18


def pieces(x_TD: Tensor) -> Iterator[slice]:
    """Where each piece lies; on a device other than the CPU all tokens are one."""
    tokens = x_TD.shape[0]
    step = max(1, PIECE // x_TD[:1].numel()) if x_TD.device.type == "cpu" and tokens else max(1, tokens)
    return (slice(start, start + step) for start in range(0, tokens, step))
