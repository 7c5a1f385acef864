"""What a model is made of, read from its configuration alone: no weight is loaded.

Shapes: D hidden width, V vocabulary, M inner width of an MLP, H query heads, K key/value heads, W head width.
Left out: what these numbers cost. `plan.memory` and `plan.times` say that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from partita.models import load
from partita.models.adapters import LoraConfig
from partita.models.lean import ATTENTION_PARTS, HEAD_NORMS, LAYER
from partita.models.parallel import reads_wide
from partita.models.quiet import quiet

GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")


@dataclass(frozen=True)
class Sizes:
    """A model in numbers. parameters: all, each once. products: of its layers' matrices; active: those of them that a token passes
    through, fewer with experts. layer: of one layer. table: V D, of the embedding; a head that is not tied has as many again.
    common: whether layers have Llama's shape, which decodes and trains the fast way; head_norms: with norms over queries and keys.
    wide: whether several ranks gather its layers in float32, whatever their products' precision (`models.parallel.reads_wide`).
    adapted: of the matrices that adapters stand beside; adapters: of the adapters.
    """

    parameters: int
    products: int
    active: int
    layer: int
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    width: int
    vocabulary: int
    table: int
    tied: bool
    common: bool
    head_norms: bool
    wide: bool = False
    adapted: int = 0
    adapters: int = 0

    @property
    def outside(self) -> int:
        """Parameters that are in no layer: embedding, head and last norm."""
        return self.parameters - self.layer * self.layers

    @property
    def trained(self) -> int:
        """Parameters that an optimizer moves."""
        return self.adapters or self.parameters


@lru_cache(maxsize=32)
def sizes_of(path: str, lora: LoraConfig | None = None, *, trust_remote_code: bool = False) -> Sizes:
    """Of the model at `path`, as `actor.path` names it, with these adapters. Raises ModelLoadError."""
    source = load._source(path)
    try:
        with quiet():
            config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
            scorer = any(name.endswith(load.SCORER) for name in config.architectures or ())
            family: Any = AutoModelForSequenceClassification if scorer else AutoModelForCausalLM
            with torch.device("meta"):
                lm = family.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise load.ModelLoadError(f"{path}: its configuration cannot be read: {error}") from error
    return sizes(lm, lora)


def sizes(lm: Any, lora: LoraConfig | None = None) -> Sizes:
    """Of a model of transformers, on whatever device; it may have weights or none."""
    config, backbone = lm.config.get_text_config(), lm.base_model
    said: dict[str, Any] = config.to_dict()
    layers = _layers(backbone, int(said.get("num_hidden_layers") or said.get("n_layer") or 1))
    matrices = [p for name, p in backbone.named_parameters() if p.ndim > 1 and not _is_table(backbone, name)]
    products = sum(p.numel() for p in matrices)
    queries = int(said.get("num_attention_heads") or said.get("n_head") or 1)
    hidden = int(said.get("hidden_size") or said.get("n_embd") or 0)
    table = lm.get_input_embeddings().weight
    head = lm.get_output_embeddings()
    return Sizes(
        parameters=sum(p.numel() for p in lm.parameters()),
        products=products, active=products - _asleep(matrices, said),
        layer=max((_count(layer) for layer in layers), default=products), layers=max(1, len(layers)),
        hidden=hidden, inner=int(said.get("intermediate_size") or said.get("n_inner") or 4 * hidden) * _chosen(said),
        queries=queries, keys=int(said.get("num_key_value_heads") or queries),
        width=int(said.get("head_dim") or hidden // queries),
        vocabulary=table.shape[0] if head is None else head.weight.shape[0], table=table.numel(),
        tied=head is not None and head.weight is table, common=bool(layers) and all(map(_is_common, layers)),
        head_norms=any(name.rpartition(".")[2] in HEAD_NORMS for name, _ in backbone.named_modules()),
        wide=not layers or any(map(reads_wide, layers)),
        **_adapters(lm, lora),
    )  # fmt: skip


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _is_table(backbone: nn.Module, name: str) -> bool:
    """Whether a parameter is looked up, not multiplied with."""
    return isinstance(backbone.get_submodule(name.rpartition(".")[0]), nn.Embedding)


def _layers(backbone: nn.Module, count: int) -> list[nn.Module]:
    """The outermost list of so many modules; where there is none, the model counts as one layer."""
    stacks = [m for m in backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return list(stacks[0]) if stacks else []


def _experts(said: dict[str, Any]) -> tuple[int, int]:
    """How many there are in a layer, and how many of them a token passes through; (1, 1) where there are none."""
    there = next((int(said[name]) for name in EXPERTS if said.get(name)), 1)
    return there, min(there, next((int(said[name]) for name in CHOSEN if said.get(name)), 1))


def _chosen(said: dict[str, Any]) -> int:
    return _experts(said)[1]


def _asleep(matrices: list[nn.Parameter], said: dict[str, Any]) -> int:
    """Parameters of the experts that a token does not meet: those of all experts of a layer are one array."""
    there, chosen = _experts(said)
    return sum(p.numel() * (there - chosen) // there for p in matrices if p.ndim == 3 and p.shape[0] == there)


def _is_common(layer: nn.Module) -> bool:
    parts = dict(layer.named_children())
    if set(parts) != LAYER:
        return False
    attention, mlp = ({name for name, _ in parts[name].named_children()} for name in ("self_attn", "mlp"))
    return attention - HEAD_NORMS == ATTENTION_PARTS and mlp == GATED


def _adapters(lm: Any, lora: LoraConfig | None) -> dict[str, int]:
    """Of W [O, I] an adapter has rank (O + I) parameters (Hu et al. 2021, arXiv:2106.09685, section 4.1)."""
    if lora is None:
        return {}
    head, wanted = lm.get_output_embeddings(), lora.target_modules
    linears = [
        module
        for name, module in lm.named_modules()
        if isinstance(module, nn.Linear)
        and (module is not head if wanted == "all-linear" else name.endswith(tuple(wanted)))
    ]
    return {
        "adapted": sum(module.weight.numel() for module in linears),
        "adapters": sum(lora.rank * sum(module.weight.shape) for module in linears),
    }
