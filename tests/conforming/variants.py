"""Variants of a case: what an expected field's name says about the configuration that it belongs to.

Left out: computing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from conforming.case import Unknown
from conforming.keys import AGGREGATIONS, GATES, NUMBER, TRUNCATION, WHITEN

Variant = tuple[dict[str, Any], str | None]
"""Configuration values in the words of case files, and the field that is meant; None for the case's usual one."""

ADVANTAGES: dict[str, dict[str, Any]] = {
    "grpo": {"baseline": "group_mean", "scale": "group_std"},
    "drgrpo": {"baseline": "group_mean", "scale": "none"},
    "rloo": {"baseline": "loo", "scale": "none"},
    "reinforce": {"baseline": "none", "scale": "none"},
    "batch_norm": {"baseline": "batch_mean", "scale": "batch_std"},
    "batch_mean": {"baseline": "batch_mean", "scale": "none"},
    "group_norm": {"baseline": "group_mean", "scale": "group_std"},
    "group_mean": {"baseline": "group_mean", "scale": "none"},
    "loo": {"baseline": "loo", "scale": "none"},
    "liteppo": {"baseline": "group_mean", "scale": "batch_std"},
}
ORDERS, STARTS = ("update_then_use", "use_then_update"), ("first_batch", "bias_corrected")
BOOLEANS = {"True": True, "False": False, "true": True, "false": False}


def variant_of(name: str) -> Variant:
    """Raises Unknown for a name that says nothing."""
    for pattern, read in _PATTERNS:
        found = re.fullmatch(pattern, name)
        if found is not None:
            return read(found)
    if "|" in name:
        return _joined(name)
    if name in AGGREGATIONS:
        return {"aggregation": name}, None
    if name in TRUNCATION:
        return {"truncation": name}, None
    if name in GATES:
        return {"loss": name}, None
    if name in ORDERS:
        return {"order": name}, None
    if name in STARTS:
        return {"init": name}, None
    raise Unknown(f"expected.{name}: neither a field nor a variant that is known")


def _joined(name: str) -> Variant:
    """`mode|count_empty=True`: names and settings side by side."""
    config: dict[str, Any] = {}
    for part in name.split("|"):
        key, _, value = part.partition("=")
        found = {key: _value(value)} if value else variant_of(part)[0]
        config |= found
    return config, None


def _value(text: str) -> Any:
    if text in BOOLEANS:
        return BOOLEANS[text]
    return float(text) if re.fullmatch(NUMBER, text) else text


def _discount(digits: str) -> float:
    """1, 09, 099, 095: the digits of a number between 0 and 1 without its point."""
    return float(f"{digits[0]}.{digits[1:]}") if len(digits) > 1 else float(digits)


def _advantage(found: re.Match[str]) -> Variant:
    config = dict(ADVANTAGES[found["name"]])
    if found["unit"]:
        config["unit"] = {"token": "token", "sequence": "row", "row": "row"}[found["unit"]]
    if found["single"]:
        config["singleton"] = found["single"]
    return config, "advantages"


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], Variant]], ...] = (
    (rf"(?:(?P<unit>token|sequence|row)_)?(?P<name>{'|'.join(ADVANTAGES)})(?:_(?P<single>zero|raw))?", _advantage),
    # leave-one-out is the group mean's advantage times G/(G-1): the field holds the same numbers by another way
    (r"drgrpo_times_G_over_Gm1", lambda found: (ADVANTAGES["rloo"], "advantages")),
    (r"ddof([01])", lambda found: ({"ddof": int(found[1])}, "advantages")),
    (WHITEN.pattern, lambda found: ({"whiten": found[0]}, "advantages")),
    (r"plain", lambda found: ({"dual_clip_c": None}, None)),
    (rf"dual_clip_{NUMBER}", lambda found: ({"dual_clip_c": float(found[1])}, None)),
    (rf"C={NUMBER}", lambda found: ({"C": float(found[1])}, None)),
    (r"gspo_seq_mean_adv", lambda found: ({"loss": "gspo", "ratio_level": "sequence"}, None)),
    (r"gspo_token", lambda found: ({"loss": "gspo", "ratio_level": "sequence_token"}, None)),
    (r"correct", lambda found: ({}, None)),
    # the classic fault, made on purpose: every micro-batch has denominators of its own
    (r"wrong_mean_of_means", lambda found: ({"denominators": "of each micro-batch"}, None)),
    (r"ppo_(loss|grad)_for_comparison", lambda found: ({"loss": "ppo_clip"}, {"loss": "loss", "grad": "grad_logp"}[found[1]])),
    (r"returns_gamma(\d+)", lambda found: ({"gamma": _discount(found[1])}, "returns")),
)  # fmt: skip
