"""A trained model as a folder that every tool of the field loads: Hugging Face's format, whole or not there."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from partita.models.adapters import family_parameters
from partita.models.load import ModelLoadError
from partita.models.packed import PackedModel, weights
from partita.models.parallel import full
from partita.models.quiet import quiet
from partita.models.scoring import ScoreStats
from partita.ops.disk import sync
from partita.ops.ranks import ALONE, Ranks

ASIDE = ".partita-export-"
PAD = "<|pad|>"
# around a chat template: no white space after the last turn, so that a conversation ends where the rows of training end
ENDED = "{% set scored %}", "{% endset %}{{ scored if add_generation_prompt else scored.rstrip() }}"


def export_hf(model: PackedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, ranks: Ranks = ALONE) -> None:
    """Write weights (safetensors, in the model's dtype), configuration and tokenizer; replaces an older export. Of several
    ranks, all of which call this, rank 0 writes, and holds the whole model in main memory only.

    The files are written beside the target and renamed when complete: the target is never a part of an export. A kill
    between the two renames that replace an older export leaves neither in its place; exporting again does. Adapters are
    merged in, so that the folder holds a plain model.
    """
    held = _held(model, ranks)
    if not ranks.leads:
        return
    with whole(folder) as part, quiet():
        model.lm.save_pretrained(part, state_dict=held)
        tokenizer.save_pretrained(part)


def export_scorer(
    model: PackedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, stats: ScoreStats | None = None,
    ranks: Ranks = ALONE,
) -> None:  # fmt: skip
    """Write the backbone with its value head as a sequence-classification model with one label, as `export_hf` writes.

    transformers reads a row's score before its padding, which it knows by the id: where the tokenizer pads with the end of a
    text, or not at all, the folder gets a padding token of its own. A score is that of the token that ends the last answer:
    the folder's chat template shows no white space after it. stats: where the scores lie, for whoever normalises them.
    Raises ModelLoadError for a family without such a class, ValueError for a model without a value head.
    """
    scorer = _scorer_class(model)
    if model.value_head is None:
        raise ValueError("only a model with a value head can be exported as a scorer; add_value_head comes first")
    held = _held(model, ranks)
    head_1D = full(model.value_head.weight.detach()).to("cpu", model.lm.dtype)
    if not ranks.leads:
        return
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = _ended(tokenizer.chat_template)
    weights = _scorer_weights(held, head_1D, scorer)
    with quiet():
        _set_padding(scorer, tokenizer, weights)
        with whole(folder) as part:
            scorer.save_pretrained(part, state_dict=weights)
            tokenizer.save_pretrained(part)
            if stats is not None:
                stats.write(part)


def _held(model: PackedModel, ranks: Ranks) -> dict[str, Tensor]:
    """The family's tensors under its own names, adapters merged in, in main memory; nothing on ranks that do not write."""
    own, found = family_parameters(model.lm), dict[str, Tensor]()
    for name, weight in weights(model):
        if ranks.leads:
            found[name] = weight.to("cpu", own[name].dtype)
    once, stored = dict(model.lm.named_parameters()), model.lm.state_dict()
    first = {id(p): name for name, p in own.items()}
    for name, p in model.lm.named_parameters(remove_duplicate=False) if found else ():
        if name not in once:  # tied
            found[name] = found[first[id(p)]]
    return found | {name: b.cpu() for name, b in model.lm.named_buffers() if found and name in stored}


def _ended(template: Any) -> Any:
    """A template, or several by name; None for none."""
    if isinstance(template, dict):
        return {name: _ended(one) for name, one in template.items()}
    return template if template is None or template.startswith(ENDED[0]) else template.join(ENDED)


def _scorer_class(model: PackedModel) -> Any:
    """An instance without memory, of the model's configuration and dtype."""
    config = copy.deepcopy(model.lm.config)
    config.num_labels, config.problem_type = 1, None
    try:
        with torch.device("meta"), quiet():
            return AutoModelForSequenceClassification.from_config(config, dtype=model.lm.dtype)
    except ValueError as error:
        raise ModelLoadError(
            f"{type(model.lm).__name__}: transformers has no sequence-classification class for the family "
            f"{config.model_type!r}, so no folder of it would be loaded as a reward model; take another family"
        ) from error


def _scorer_weights(held: dict[str, Tensor], head_1D: Tensor, scorer: Any) -> dict[str, Tensor]:
    """The backbone's tensors and the value head under the class's own names."""
    expected = scorer.state_dict()
    found = {name: tensor for name, tensor in held.items() if name in expected}
    lacking = [(name, t.shape) for name, t in expected.items() if name not in found]
    if [shape for _, shape in lacking] != [head_1D.shape]:
        raise ModelLoadError(
            f"{type(scorer).__name__}: beside the backbone it has {[name for name, _ in lacking]}, not just one linear map to "
            "a score; take another family"
        )
    return found | {lacking[0][0]: head_1D}


def _set_padding(scorer: Any, tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor]) -> None:
    """A padding id that ends no text, in tokenizer and configuration; its embedding, if there is none yet, is zero."""
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.add_special_tokens({"pad_token": PAD})
    pad, text = int(tokenizer.pad_token_id), scorer.config.get_text_config()  # pyright: ignore[reportArgumentType]
    scorer.config.pad_token_id = text.pad_token_id = pad
    embedding = scorer.get_input_embeddings()
    name = next(name for name, module in scorer.named_modules() if module is embedding) + ".weight"
    more = pad + 1 - weights[name].shape[0]
    if more > 0:
        weights[name] = torch.cat([weights[name], weights[name].new_zeros(more, weights[name].shape[1])])
        text.vocab_size = pad + 1


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when all is written, and is gone after an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = _aside(folder)
    try:
        yield part
        for file in part.iterdir():
            sync(file)
        part.chmod(0o755)
        if folder.exists():
            old = _aside(folder)
            folder.rename(old / folder.name)
            part.rename(folder)
            shutil.rmtree(old)
        else:
            part.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what exports to `folder` that were killed have left beside it.

    Only for a folder that nobody else exports to at this moment, such as the one of a run by this run.
    """
    ours = re.compile(re.escape(f"{ASIDE}{folder.name}-") + r"[a-z0-9_]{8}")  # as `tempfile` names them
    for path in folder.parent.iterdir():
        if ours.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)


def _aside(folder: Path) -> Path:
    """A new folder on the same disk, to be filled before it is renamed."""
    return Path(tempfile.mkdtemp(prefix=f"{ASIDE}{folder.name}-", dir=folder.parent))
