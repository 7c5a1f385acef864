"""What a family does to its logits, read from its configuration."""

import pytest
import torch
from transformers import AutoConfig

from partita.models.heads import HeadRule, head_rule


@pytest.mark.parametrize(
    ("kind", "values", "rule"),
    [
        ("llama", {}, HeadRule()),
        ("gemma2", {"final_logit_softcapping": 30.0}, HeadRule(1.0, 30.0)),
        ("gemma2", {"final_logit_softcapping": None}, HeadRule()),
        ("granite", {"logits_scaling": 8.0}, HeadRule(0.125)),
        ("cohere", {"logit_scale": 0.0625}, HeadRule(0.0625)),
        ("falcon_h1", {"lm_head_multiplier": 0.04}, HeadRule(0.04)),
    ],
)
def test_rule_of_a_family(kind, values, rule):
    assert head_rule(AutoConfig.for_model(kind, **values)) == rule


def test_scale_comes_before_the_cap_and_both_are_wide():
    logits = HeadRule(0.5, 2.0)(torch.tensor([[0.0, 4.0, -400.0]], dtype=torch.bfloat16))
    assert logits.dtype == torch.float32
    assert logits[0].tolist() == pytest.approx([0.0, 2 * 0.7615942, -2.0], abs=1e-6)


def test_no_rule_leaves_the_logits_as_they_are():
    logits = torch.zeros(1, 3, dtype=torch.bfloat16)
    assert HeadRule()(logits) is logits
