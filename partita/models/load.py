"""A path or a hub name becomes a model that can be trained and decoded, its tokenizer, its stop ids and its limits.

Left out: adapters and sharding. They wrap what is loaded here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from partita.models.embedded import NAME, embedded_folder
from partita.models.fused import fuse
from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.models.selfcheck import self_check

# Tokens that end a turn in the chat formats of the field; used where the tokenizer declares them as special.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<turn|>",
)
# Rotary embeddings that change with the longest row of the call: packed or alone, they are only equal below this
# length.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class ModelLoadError(ValueError):
    """The model could not be loaded; the message names the path and what to do."""


SCORER = "ForSequenceClassification"
"""How the class of a model with a score head in place of a language-model head is called."""


@dataclass(frozen=True)
class LoadedModel:
    """`stop_ids`: every id that ends a completion. `context`: most tokens of a row. `notes`: what to tell the user,
    by line.
    """

    model: PackedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    context: int
    notes: tuple[str, ...]

    @property
    def path_kind(self) -> Literal["packed", "plain"]:
        """Which way the self-check chose."""
        return self.model.kind


def load_causal_lm(
    path: str, *, dtype: torch.dtype, trust_remote_code: bool = False, device: str | torch.device = "cpu"
) -> LoadedModel:
    """Load, check against the family's own forward, and switch every dropout off (sampling and training must agree).

    path: a folder, a hub name, or "smollm2-135m", the model that needs no hub. Weights come from safetensors, or from
    torch files read as plain tensors. Raises ModelLoadError (missing, incomplete) or ModelRefused (no way of running
    agrees).
    """
    source, options = _source(path), {"trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(path, trust_remote_code)
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, weights_only=True, output_loading_info=True, **options
            )
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(_explain(path, error)) from error
    lm, report = loaded
    if any(name.endswith(SCORER) for name in lm.config.architectures or ()):
        raise ModelLoadError(
            f"{path} is a reward model ({', '.join(lm.config.architectures)}): it scores, and its language-model head is gone or "
            "untrained. Name it in reward.model or critic.path; to train, take the model that it was made of"
        )
    _check_complete(path, report)
    lm.to(device)
    notes = list(_no_dropout(lm))
    # rows are packed: where padding has the id of the end, the end's embedding would get no gradient
    lm.get_input_embeddings().padding_idx = None
    fuse(lm)
    with quiet():
        verdict = self_check(lm)
    model = PackedModel(lm, kind=verdict.kind, padded=verdict.padded, known_head=verdict.known_head).eval()
    context, context_notes = _context(lm, tokenizer)
    stop_ids = find_stop_ids(tokenizer, (lm.generation_config, lm.config, lm.config.get_text_config()))
    if not stop_ids:
        notes.append("no end-of-sequence id is declared anywhere: completions end by length or stop strings only")
    return LoadedModel(model, tokenizer, stop_ids, context, (*verdict.notes, *context_notes, *notes))


def load_tokenizer(path: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model as `load_causal_lm` names it, or of a folder that holds a tokenizer only.

    Raises ModelLoadError.
    """
    folder = os.path.expanduser(path)
    source = folder if os.path.isfile(f"{folder}/tokenizer_config.json") else _source(path)
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(_explain(path, error)) from error


def model_folder(path: str) -> Path:
    """The folder on this machine that holds a model as `load_causal_lm` names it. Raises ModelLoadError."""
    source = _source(path)
    if os.path.isdir(source):
        return Path(source).resolve()
    try:
        return Path(snapshot_download(source))
    except (OSError, ValueError) as error:
        raise ModelLoadError(_explain(path, error)) from error


def model_context(path: str, trust_remote_code: bool = False) -> int:
    """Most tokens of a row of a model that is not loaded. Raises ModelLoadError."""
    tokenizer = load_tokenizer(path, trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(_source(path), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(_explain(path, error)) from error
    return _context(SimpleNamespace(config=config), tokenizer)[0]


def find_stop_ids(tokenizer: PreTrainedTokenizerBase, configs: Iterable[Any]) -> tuple[int, ...]:
    """All ids that may end a completion: of the configurations and the tokenizer, and declared end-of-turn tokens."""
    found: set[int] = set()
    for owner in (*configs, tokenizer):
        ids = getattr(owner, "eos_token_id", None)  # not every configuration class has the key
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    special: Mapping[str, int] = {
        token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    found.update(special[token] for token in END_OF_TURN if token in special)
    return tuple(sorted(int(i) for i in found))


def _source(path: str) -> str:
    """The folder or hub name that transformers is given."""
    if path == NAME:
        try:
            return str(embedded_folder())
        except FileNotFoundError as error:
            raise ModelLoadError(str(error)) from error
    folder = Path(os.path.expanduser(path))  # as os.path.isdir, no error for what cannot be a path
    if os.path.isdir(folder):
        if not (folder / "config.json").is_file():
            raise ModelLoadError(f"{path}: a folder without config.json is not a model in Hugging Face's format")
        return str(folder)
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ModelLoadError(f"{path}: no such folder (from {Path.cwd()})")
    return path


def _explain(path: str, error: Exception) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "")
    if os.path.isdir(os.path.expanduser(path)) or path == NAME:
        return f"{path}: transformers could not load it: {error}"
    asked = (
        f"HF_HUB_OFFLINE={offline} forbids asking the hub: unset it, or fetch the model first"
        if offline not in ("", "0")
        else "the hub could not be reached or does not have it: check the name, HF_TOKEN and HF_ENDPOINT"
    )
    return (
        f"{path}: no folder of this name here, and not in the hub's cache; {asked} "
        f"(`hf download {path}`), or give a local folder, or {NAME!r}, which needs no hub. transformers said: "
        f"{(str(error).splitlines() or [type(error).__name__])[0]}"
    )


def _check_complete(path: str, report: Mapping[str, Any]) -> None:
    """Weights that the checkpoint lacks would start random and train in silence."""
    lacking = [*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])]
    if lacking:
        raise ModelLoadError(
            f"{path}: {len(lacking)} weights are missing or of another shape: {sorted(map(str, lacking))[:3]} ..."
        )


def _no_dropout(lm: nn.Module) -> list[str]:
    """Set every dropout probability and router jitter to zero; says so if one was not."""
    changed: set[str] = set()
    for module in lm.modules():
        names = [name for name in vars(module) if name.endswith(("dropout", "jitter_noise"))]
        names += ["p"] if isinstance(module, nn.Dropout) else []
        for name in names:
            if isinstance(getattr(module, name), float) and getattr(module, name) != 0.0:
                changed.add(f"{type(module).__name__}.{name}")
                setattr(module, name, 0.0)
    return [f"dropout is off, for scoring and training alike: {', '.join(sorted(changed))}"] if changed else []


def _context(lm: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, list[str]]:
    """Most tokens of a row, and why it is less than declared, if so."""
    config = lm.config.get_text_config().to_dict()
    declared = [config.get("max_position_embeddings"), config.get("n_positions"), tokenizer.model_max_length]
    context = min([int(n) for n in declared if n and n < 10**9], default=1 << 20)
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
        short = int(rope.get("original_max_position_embeddings") or context)
        if short < context:
            return short, [
                f"context {short}, not {context}: beyond it positions would depend on the longest row of a call"
            ]
    return context, []
