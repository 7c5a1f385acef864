"""Tiny real models and a real tokenizer whose pieces are easy to read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

VOCABULARY = 48
SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZE, sliding_window=5)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZE, sliding_window=5, query_pre_attn_scalar=8)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZE, sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        )
    ),
}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., PreTrainedModel]:
    """Make a random model of a family; equal seeds give equal weights."""

    def make(family: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        return FAMILIES[family]().to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Ids are pieces that decode by concatenation: 0-2 special, then some named ones, then one letter or mark each."""
    pieces = ["<pad>", "<s>", "<eot>", "a", "END.", "EN", "D", " ", "\n"]
    pieces += [chr(code) for code in range(ord("b"), ord("z") + 1)]
    pieces += [f"[{n}]" for n in range(VOCABULARY - len(pieces))]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<pad>"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="<eot>")
