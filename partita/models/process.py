"""Process reward models: a token-classification folder becomes token rows in, values at chosen tokens out.

A value is the probability that a step is right: of two labels that of the second, as TRL's PRMTrainer trains them, of one label
the logistic function of its score. Rows of several lengths run together with padding on the right and a mask.

Shapes: R rows, L their longest, C labels.
Left out: packing, and models that mark steps by words of a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerBase

from partita.models.load import ModelLoadError, _context, _no_dropout, load_tokenizer
from partita.models.scoring import MAX_TOKENS, _by_length, _config, loaded_as

LABELLER = "ForTokenClassification"


@dataclass(frozen=True)
class ProcessModel:
    """A process reward model that is ready. context: most tokens of a row. notes: what to tell the user, by line."""

    path: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    context: int
    notes: tuple[str, ...] = ()
    max_tokens: int = MAX_TOKENS

    @torch.inference_mode()
    def values(self, rows: Sequence[Sequence[int]], at: Sequence[Sequence[int]]) -> list[list[float]]:
        """From 0 to 1, for each row of token ids its values at the places in `at`. What runs together changes a value by rounding
        only.
        """
        found: list[list[float]] = [[] for _ in rows]
        for chosen in _by_length(rows, self.max_tokens) if rows else ():
            right_RL = self._right([rows[r] for r in chosen])
            for i, r in enumerate(chosen):
                found[r] = right_RL[i, list(at[r])].tolist()
        return found

    def _right(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """[R, L], float32."""
        width = max(map(len, rows))
        ids_RL = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        mask_RL = (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long()
        device = self.model.device
        logits_RLC = self.model(input_ids=ids_RL.to(device), attention_mask=mask_RL.to(device)).logits.float()
        return logits_RLC[..., 0].sigmoid() if logits_RLC.shape[-1] == 1 else logits_RLC.softmax(-1)[..., 1]


def load_process_model(
    path: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
) -> ProcessModel:
    """A folder or hub name of a token-classification model with one or two labels, frozen.

    Raises ModelLoadError for another kind of model, other labels, or a head that was never trained.
    """
    config = _config(path, trust_remote_code)
    names = config.architectures or []
    if not any(name.endswith(LABELLER) for name in names):
        raise ModelLoadError(
            f"{path}: {names[0] if names else 'a model without a name'} gives no value for each token. A process reward model is a "
            f"folder of a ...{LABELLER}, as TRL's PRMTrainer writes it"
        )
    if config.num_labels not in (1, 2):
        raise ModelLoadError(
            f"{path}: {config.num_labels} labels; a process reward model has two (wrong, right), or one score"
        )
    model, lacking = loaded_as(AutoModelForTokenClassification, path, dtype, trust_remote_code)
    if lacking:
        raise ModelLoadError(f"{path}: {len(lacking)} weights are missing or of another shape: {lacking[:3]}")
    tokenizer, notes = load_tokenizer(path, trust_remote_code), _no_dropout(model)
    model.to(device).eval().requires_grad_(False)
    context, context_notes = _context(model, tokenizer)
    return ProcessModel(path, model, tokenizer, context, (*context_notes, *notes))
