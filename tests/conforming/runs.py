"""One case: who answers for it, and whether every expected field is met.

Left out: files and printing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from conforming import logits, policy, rules
from conforming.case import Case
from conforming.compare import REFUSED, refused_or, verdict
from conforming.counts import FAMILIES

RULES = (
    "entropy", "advantage_batches", "reward_batches", "kl", "clip_fraction", "ema_var", "steps", "cases",
)  # fmt: skip
LOGITS = ("logits", "old_logits")


def family_of(case: Case) -> Callable[[Case, str, Any], Any]:
    """Chosen by the inputs alone; neither a case's name nor its title is looked at."""
    for name, family in FAMILIES.items():
        if name in case.inputs:
            return family
    if any(name in case.inputs for name in RULES):
        return rules.answer
    if any(name in case.inputs for name in LOGITS):
        return logits.answer
    return policy.answer


def check(case: Case) -> list[str]:
    """What is wrong, one entry per expected field; empty where the product gives every number of the case."""
    family, found = family_of(case), list[str]()
    expected = dict(case.expected)
    if not expected:
        return ["nothing is expected"]
    if "shaped_rewards" in case.inputs:  # an intermediate result that stands among the inputs
        expected["shaped_rewards"] = case.inputs["shaped_rewards"]
    for name, value in expected.items():
        try:
            got = refused_or(partial(family, case, name, value)) if value == REFUSED else family(case, name, value)
            wrong = verdict(value, got, case.tolerance, name)
        except Exception as error:  # a field that cannot be computed is a failure of the case, not of the others
            wrong = f"{name}: {type(error).__name__}: {error}"
        if wrong is not None:
            found.append(wrong)
    for fields in (case.inputs, case.config):
        found += [f"{fields.where}.{name} is not understood: nothing reads it" for name in fields.unread()]
    return found
