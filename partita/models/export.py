"""A trained model as a folder that every tool of the field loads: Hugging Face's format, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from partita.models.packed import PackedModel
from partita.models.quiet import quiet


def export_hf(model: PackedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights (safetensors, in the model's dtype), configuration and tokenizer; replaces an older export.

    The files are written beside the target and renamed when complete, so a killed run leaves the older export or the
    new.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with quiet():
            model.lm.save_pretrained(part)
            tokenizer.save_pretrained(part)
        for file in part.iterdir():
            _sync(file)
        part.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            folder.rename(old / folder.name)
            part.rename(folder)
            shutil.rmtree(old)
        else:
            part.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
