"""Counter-based uniforms: the number that draws a token depends only on which token of which completion it is.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a keyed
bijection of a 128-bit counter. Here the key is (seed, stream) and the counter (token, call, sample, serial), so
batching, slots, order and restarts cannot change a draw, and no two tokens of a stream share a counter.

Shapes: B rows.
Left out: a state. There is none to seed, to save or to restore.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partita.engine.api import Draw

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

Words = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def philox4x32(counter: Words, key: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> Words:
    """Ten rounds over 32-bit words that are held in 64-bit integers; any common shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> HALF) ^ c1 ^ k0, product1 & LOW, (product0 >> HALF) ^ c3 ^ k1, product0 & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def check_draw(draw: Draw) -> None:
    """Raise ValueError unless every number of `draw` fits into 32 bits."""
    for name, value in vars(draw).items():
        if not 0 <= value < 1 << 32:
            raise ValueError(f"Draw.{name}={value} must be in 0 .. 2**32 - 1")


def uniforms(draws: Sequence[Draw], tokens: Sequence[int]) -> NDArray[np.float64]:
    """One uniform [B] in the open interval (0, 1) per row, 53 random bits, for token `tokens[b]` of `draws[b]`.

    Both ends are excluded: the smallest value is 2**-54 and the largest 1 - 2**-53.
    """
    fields_5B = (
        np.array([(d.seed, d.stream, d.serial, d.sample, d.call) for d in draws], dtype=np.uint64).reshape(-1, 5).T
    )
    seed, stream, serial, sample, call = fields_5B
    word0, word1, _, _ = philox4x32((np.array(tokens, dtype=np.uint64), call, sample, serial), (seed, stream))
    bits = (word0 << np.uint64(21)) ^ (word1 >> np.uint64(11))
    return np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, 1 - 2.0**-53)
