"""Small things that several model tests need: rows, a tokenizer of a few words, a folder with a tiny model."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from partita.models.families import VOCABULARY, tiny
from partita.models.quiet import quiet


@pytest.fixture
def tokenizer():
    words = {f"w{i}": i for i in range(VOCABULARY - 2)}
    inner = Tokenizer(WordLevel({**words, "<eos>": VOCABULARY - 2}, unk_token="w0"))
    inner.pre_tokenizer = Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="w0")
    made.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    return made


@pytest.fixture
def saved(tmp_path, tokenizer):
    """A folder with a tiny float32 Llama with tied embeddings."""
    folder = tmp_path / "model"
    with quiet():
        tiny("Llama, tied embeddings (SmolLM2)", torch.float32).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder
