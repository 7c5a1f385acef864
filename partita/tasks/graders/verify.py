"""Symbolic comparison with math-verify. Runs in worker processes only: an expression may take for ever or all memory.

Left out: math-verify's own time limit, whose signal does not end what it interrupts.
"""

from __future__ import annotations

import logging
import signal
from typing import Any

from math_verify import parse, verify
from sympy import Basic, I

# Both complain once per process that their own timers are off; the pool's deadline replaces them.
for _name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def same_value(gold: str, given: str, processor_seconds: float) -> bool:
    """Whether two LaTeX expressions mean the same. The process is ended when it needs more than `processor_seconds`."""
    # Nobody handles its signal, so that it ends the process, also in the midst of a computation in C.
    signal.setitimer(signal.ITIMER_PROF, processor_seconds)
    try:
        return _same(gold, given)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _same(gold: str, given: str) -> bool:
    """Tried both ways round, as math-verify is not symmetric, and with i as a name and as the imaginary unit."""
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
