"""The families that are tested, each as a tiny random model of the real class: what docs/models.md lists.

Left out: weights. A tiny model says whether the layout, the cache and the head are right; it says nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MAMBA: dict[str, Any] = {
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_n_groups": 1,
}
GPT_2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": VOCABULARY}

# fmt: off
# title -> (transformers' model type, what differs from COMMON; a None removes the key)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Llama, tied embeddings (SmolLM2)": ("llama", {"tie_word_embeddings": True}),
    "Mistral, sliding window": ("mistral", {"sliding_window": 6}),
    "Mixtral, experts": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Ministral 3: queries scaled by position": (
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
                "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "Qwen2": ("qwen2", {}),
    "Qwen2, sliding window in the upper layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "Qwen3": ("qwen3", {}),
    "Qwen3-MoE": ("qwen3_moe", EXPERTS),
    "Gemma 2: soft-caps, sliding window": (
        "gemma2",
        {"sliding_window": 6, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
    ),
    "Gemma 3 (text): sliding pattern": ("gemma3_text", {"sliding_window": 6, "num_hidden_layers": 3, "sliding_window_pattern": 2}),
    "Granite: attention, residual and logit scales": (
        "granite",
        {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    ),
    "Cohere: logit scale": ("cohere", {"logit_scale": 0.25}),
    "OLMo 2": ("olmo2", {}),
    "Phi-3": ("phi3", {}),
    "SmolLM3: layers without positions": ("smollm3", {"no_rope_layers": [1, 0]}),
    "gpt-oss: sinks, experts": ("gpt_oss", {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "DeepSeek-V3: latent attention, experts": (
        "deepseek_v3",
        {
            "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "head_dim": None,
            "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "num_key_value_heads": 4, "first_k_dense_replace": 1,
        },
    ),
    "GPT-2: learned positions": ("gpt2", {**dict.fromkeys(COMMON), **GPT_2}),
    "GPT-NeoX (Pythia)": ("gpt_neox", {"head_dim": None, "num_key_value_heads": None}),
    "BLOOM: ALiBi": ("bloom", {**dict.fromkeys(COMMON), "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}),
    "Falcon-H1: Mamba-2 beside attention": ("falcon_h1", {**MAMBA, "lm_head_multiplier": 0.5}),
    "Jamba: Mamba and attention layers": (
        "jamba",
        {"use_mamba_kernels": False, "num_experts": 2, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1},
    ),
    "Qwen3-Next: gated delta rule": (
        "qwen3_next",
        {
            **EXPERTS, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8, "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}
# fmt: on


def tiny(title: str, dtype: torch.dtype = torch.float64) -> Any:
    """A fresh random model of this family, the same at every call; the global random state is left as it was."""
    kind, changes = FAMILIES[title]
    values = {name: value for name, value in {**COMMON, **changes}.items() if value is not None}
    config = AutoConfig.for_model(kind, **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lm: Any = AutoModelForCausalLM.from_config(
            config, experts_implementation="eager"
        )  # grouped kernels lack float64
        for parameter in lm.parameters():  # far from the start of training, so that no effect is too small to see
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return lm.to(dtype).eval()
