"""Counter-based uniforms: known answers of the published generator, and what the draws must not depend on."""

import numpy as np
import pytest

from partita.engine.api import Draw
from partita.engine.random import check_draw, philox4x32, uniforms


def _words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # the known-answer vectors that the authors distribute with Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    assert tuple(int(word[0]) for word in philox4x32(_words(*counter), _words(*key))) == answer


def test_a_uniform_is_a_fixed_number():
    # word0 = 0x6627E8D5, word1 = 0xE169C58D of the all-zero counter: (word0 * 2**21 ^ word1 >> 11) + 1/2, over 2**53
    expected = ((0x6627E8D5 << 21 ^ 0xE169C58D >> 11) + 0.5) / 2**53
    assert uniforms([Draw(0, 0, 0, 0)], [0])[0] == expected


def test_uniforms_do_not_depend_on_the_batch():
    draws = [Draw(7, 1, serial, sample, call) for serial in range(3) for sample in range(4) for call in range(2)]
    together = uniforms(draws, range(len(draws)))
    alone = [uniforms([draw], [token])[0] for token, draw in enumerate(draws)]
    assert together.tolist() == alone


def test_every_coordinate_changes_the_draw():
    base = [3, 1, 4, 1, 5]
    seen = {uniforms([Draw(*base)], [9])[0], uniforms([Draw(*base)], [10])[0]}
    for i in range(5):
        other = list(base)
        other[i] += 1
        seen.add(uniforms([Draw(*other)], [9])[0])
    swapped = [3, 1, 1, 4, 5]
    seen.add(uniforms([Draw(*swapped)], [9])[0])
    assert len(seen) == 8


@pytest.mark.parametrize("axis", ["serial", "sample", "call", "token"])
def test_uniforms_along_each_axis_look_independent_and_uniform(axis):
    n = 4096
    coordinates = {"serial": 0, "sample": 0, "call": 0}
    draws = [Draw(1, 0, **(coordinates | ({axis: i} if axis != "token" else {}))) for i in range(n)]
    u = uniforms(draws, range(n) if axis == "token" else [0] * n)
    assert u.min() > 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * n)  # four standard errors
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(n)
    counts = np.histogram(u, bins=16, range=(0, 1))[0]
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 44.3  # chi-square, 15 degrees, p = 1e-4


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_numbers_beyond_32_bits_are_refused(value):
    with pytest.raises(ValueError, match=rf"Draw.serial={value}"):
        check_draw(Draw(0, 0, value, 0))
