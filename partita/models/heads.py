"""What each family does to the output of its head beside the matrix product.

Shapes: T tokens, V vocabulary.
Left out: families that do something not listed here. The self-check at load compares with the family's own logits, and
then `models.plain` lets the family compute them itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

# Configuration key -> whether logits are multiplied (+1) or divided (-1) by it.
SCALES = {
    "logit_scale": 1,  # Cohere
    "lm_head_multiplier": 1,  # Falcon-H1
    "logits_scaling": -1,  # Granite
}


@dataclass(frozen=True)
class HeadRule:
    """Logits times `scale`, then squeezed into (-softcap, softcap) by a tanh; None leaves them."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits_TV: Tensor) -> Tensor:
        """[T, V] -> [T, V]. A changed result is at least float32: the family's bfloat16 tanh would lose its digits."""
        if self.scale == 1.0 and self.softcap is None:
            return logits_TV
        wide_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)) * self.scale
        return wide_TV if self.softcap is None else torch.tanh(wide_TV / self.softcap) * self.softcap


def head_rule(config: PretrainedConfig) -> HeadRule:
    """Read the rule from a model's (text) configuration."""
    values = config.to_dict()
    scale = 1.0
    for key, power in SCALES.items():
        if values.get(key) is not None:
            scale *= float(values[key]) ** power
    # MiniCPM divides the hidden state by hidden_size / dim_model_base; the head is linear, so the logits may be
    # scaled.
    if values.get("dim_model_base"):
        scale *= values["dim_model_base"] / values["hidden_size"]
    return HeadRule(scale, values.get("final_logit_softcapping"))
