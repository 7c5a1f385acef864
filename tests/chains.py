"""A real model that recites: a Llama whose weights are set so that it all but surely writes one given token after each."""

from collections.abc import Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from partita.models.attention import ATTENTION, register
from partita.models.packed import PackedModel


def reciter(vocabulary: int, next_of: Mapping[int, int]) -> PackedModel:
    """Layers add nothing, embeddings are one-hot, and the head gives the wanted token about 60 logits."""
    register()
    width = -(-vocabulary // 8) * 8
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    lm = LlamaForCausalLM(config).eval()
    lm.set_attn_implementation(ATTENTION)
    with torch.no_grad():
        for parameter in lm.model.layers.parameters():
            parameter.zero_()
        lm.model.embed_tokens.weight.copy_(torch.eye(vocabulary, width))
        lm.lm_head.weight.zero_()
        for before, after in next_of.items():
            lm.lm_head.weight[after, before] = 60.0 / width**0.5
    return PackedModel(lm)
