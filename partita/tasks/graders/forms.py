"""What `graders.patterns` has done in a process that can be ended: looks for regular expressions."""

from __future__ import annotations

import re


def matches(text: str, pattern: str, whole: bool) -> float:
    """1.0 where the pattern matches. Raises re.error for a bad pattern."""
    expression = re.compile(pattern)
    return float((expression.fullmatch if whole else expression.search)(text) is not None)
