"""Symbolic comparison with math-verify. Runs in worker processes only: an expression may take for ever or all memory.

Left out: a time limit. math-verify's own uses signals, which a thread never gets; the process is killed instead.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify
from sympy import Basic, I

# Both complain once per process that their own timers are off; the pool's deadline replaces them.
for _name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def same_value(gold: str, given: str) -> bool:
    """Whether two LaTeX expressions mean the same. Tried both ways round, as math-verify is not symmetric, and with i as a
    name and as the imaginary unit.
    """
    golds, givens = (parse(f"\\boxed{{{text}}}", parsing_timeout=0) for text in (gold, given))
    if not golds or not givens:
        return False
    if _either_way(golds, givens):
        return True
    complex_golds, complex_givens = _with_unit(golds), _with_unit(givens)
    return (complex_golds, complex_givens) != (golds, givens) and _either_way(complex_golds, complex_givens)


def _either_way(golds: list[Any], givens: list[Any]) -> bool:
    return verify(golds, givens, timeout_seconds=0) or verify(givens, golds, timeout_seconds=0)


def _with_unit(values: list[Any]) -> list[Any]:
    """The expressions with the imaginary unit for the name i; texts as they are."""
    return [
        value.subs({name: I for name in value.free_symbols if str(name) == "i"}) if isinstance(value, Basic) else value
        for value in values
    ]
