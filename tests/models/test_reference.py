"""A reference must mean the same by a token id as the policy."""

from dataclasses import replace

import pytest
import torch

from partita.models.load import ModelLoadError, load_causal_lm
from partita.models.reference import check_reference


@pytest.fixture
def loaded(saved):
    return load_causal_lm(str(saved), dtype=torch.float32)


def test_the_same_tokens_pass(loaded, saved):
    other = load_causal_lm(str(saved), dtype=torch.float32)
    check_reference(loaded, other, whole_vocabulary=True)


def test_another_tokenizer_is_refused_with_both_models_and_a_token(loaded, saved, tmp_path):
    other = load_causal_lm(str(saved), dtype=torch.float32)
    other.tokenizer.add_tokens(["extra"])
    other.model.lm.name_or_path = "there/reference"
    expected = rf"policy {saved}, reference there/reference: .*\(96 and 97 tokens; 'extra' is absent and 96\)"
    for whole in (True, False):
        with pytest.raises(ModelLoadError, match=expected):
            check_reference(loaded, other, whole_vocabulary=whole)


def test_a_wider_head_matters_only_to_the_whole_vocabulary(loaded, saved):
    other = load_causal_lm(str(saved), dtype=torch.float32)
    other.model.lm.resize_token_embeddings(128)
    other = replace(other, tokenizer=loaded.tokenizer)
    check_reference(loaded, other, whole_vocabulary=False)
    with pytest.raises(ModelLoadError, match=r"logits of 96 and of 128 tokens.*k1, k2 or k3"):
        check_reference(loaded, other, whole_vocabulary=True)
