"""A trained model as a folder that every tool of the field loads: Hugging Face's format, whole or not there."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.ops.disk import sync

ASIDE = ".partita-export-"


def export_hf(model: PackedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights (safetensors, in the model's dtype), configuration and tokenizer; replaces an older export.

    The files are written beside the target and renamed when complete: the target is never a part of an export. A kill
    between the two renames that replace an older export leaves neither in its place; exporting again does.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = _aside(folder)
    try:
        with quiet():
            model.lm.save_pretrained(part)
            tokenizer.save_pretrained(part)
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
