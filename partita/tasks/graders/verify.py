"""Symbolic comparison with math-verify. Runs in worker processes only: an expression may take for ever or all memory.

Left out: a time limit. math-verify's own uses signals, which a thread never gets; the process is killed instead.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

# Both complain once per process that their own timers are off; the pool's deadline replaces them.
for _name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def same_value(gold: str, given: str) -> bool:
    """Whether two LaTeX expressions mean the same. Tried both ways round, as math-verify is not symmetric."""
    golds, givens = (parse(f"\\boxed{{{text}}}", parsing_timeout=0) for text in (gold, given))
    if not golds or not givens:
        return False
    return verify(golds, givens, timeout_seconds=0) or verify(givens, golds, timeout_seconds=0)
