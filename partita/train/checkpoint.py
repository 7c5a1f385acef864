"""Checkpoints that are whole or absent: written aside, synced, renamed; the newest whole one is what a run resumes from.

A checkpoint folder holds `model.safetensors` (float32 master weights; of a model with adapters only these), `optimizer.safetensors`
(moments), the same pair `<name>.safetensors`, `<name>_optimizer.safetensors` for every other trained model, `state.json`
(counters, data position, controllers) and `manifest.json`, written last, with the size and CRC-32 of every file.
Left out: sharded checkpoints, and the Hugging Face export (`models.export.export_hf`).
"""

from __future__ import annotations

import json
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from partita.ops.disk import sync

MANIFEST = "manifest.json"
ASIDE = ".writing_"  # what is being written or removed: never read, swept away by the next save


Kept = tuple[nn.Module, torch.optim.Optimizer | None]
"""A model with its optimizer, or one that is frozen and yet changes between steps."""
NONE: Mapping[str, Kept] = {}


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says which one is still usable."""


def save_checkpoint(
    root: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], keep_last: int,
    others: Mapping[str, Kept] = NONE,
) -> Path:  # fmt: skip
    """Write `root/step_<step>` atomically, then remove all but the last `keep_last` whole checkpoints. others: further
    models that change, by name.

    Raises CheckpointError when the disk is full or not writable; what was there before stays as it was.
    """
    files = dict[str, dict[str, Tensor]]()
    kept: dict[str, Kept] = {"": (model, optimizer), **others}
    for name, (trained, its_optimizer) in kept.items():
        weights = {name: p.detach().contiguous() for name, p in _kept(trained, its_optimizer)}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            raise CheckpointError(_not_finite(root, step, name or "actor"))
        of_weights, of_moments = file_names(name)
        files[of_weights] = weights
        if its_optimizer is not None:
            files[of_moments] = _moments(trained, its_optimizer)
    aside = root / f"{ASIDE}{step:06d}"
    try:
        _make_room(root, sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values()) + 2**16)
        _write(aside, step, files, state)
        final = _put_in_place(aside, root / f"step_{step:06d}")
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(_not_saved(root, step, error)) from error
    for old in whole_checkpoints(root)[:-keep_last]:
        shutil.rmtree(old.rename(root / f"{ASIDE}{old.name}"))  # renamed first: a kill leaves no half checkpoint behind
    return final


def _make_room(root: Path, need: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{ASIDE}*"):  # of runs that were killed while saving
        shutil.rmtree(leftover)
    free = shutil.disk_usage(root).free
    if free < need:
        raise OSError(f"no space: {need / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free")


def file_names(name: str) -> tuple[str, str]:
    """The files of a trained model's weights and moments; the policy's name is empty."""
    return (
        (f"{name}.safetensors", f"{name}_optimizer.safetensors")
        if name
        else ("model.safetensors", "optimizer.safetensors")
    )


def _write(aside: Path, step: int, files: Mapping[str, dict[str, Tensor]], state: Mapping[str, Any]) -> None:
    """All files of a checkpoint, each on the disk before the manifest names it."""
    aside.mkdir()
    for name, tensors in files.items():
        save_file(tensors, aside / name)
    (aside / "state.json").write_text(json.dumps(state))
    entries = {path.name: _fingerprint(path) for path in sorted(aside.iterdir())}
    for name in entries:
        sync(aside / name)
    (aside / MANIFEST).write_text(json.dumps({"step": step, "files": entries}))
    sync(aside / MANIFEST)
    sync(aside)


def _put_in_place(aside: Path, final: Path) -> Path:
    replaced = None
    if final.exists():  # a damaged one that this run went on before, or the same step once more
        replaced = final.rename(final.parent / f"{ASIDE}{final.name}")
    aside.rename(final)
    sync(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced)
    return final


def _not_finite(root: Path, step: int, section: str) -> str:
    last = latest_checkpoint(root)
    cure = f"resume: the last whole checkpoint is {last}" if last else "start again: there is no earlier checkpoint"
    return f"step {step}: the weights of {section} are not finite and were not saved. Lower {section}.optimizer.lr and {cure}"


def _not_saved(root: Path, step: int, error: Exception) -> str:
    last = latest_checkpoint(root)
    return (
        f"step {step}: the checkpoint could not be saved to {root}: {error}. "
        f"{f'The last whole checkpoint is {last}' if last else 'There is no earlier checkpoint'}; free some space or set "
        "checkpoint.freq_steps, checkpoint.keep_last or output_dir, then resume"
    )


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, Kept] = NONE
) -> dict[str, Any]:
    """Restore weights and moments in place and return the state. Raises CheckpointError for a damaged or foreign one, and for
    one that lacks a model of `others`.
    """
    problem = _problem(folder, checksums=True)
    if problem:
        raise CheckpointError(f"{folder}: {problem}; without this folder a run resumes from the checkpoint before it")
    kept: dict[str, Kept] = {"": (model, optimizer), **others}
    for name, (trained, its_optimizer) in kept.items():
        of_weights, of_moments = (folder / file for file in file_names(name))
        if not of_weights.exists():
            raise CheckpointError(f"{folder}: no {of_weights.name}: it was saved by a run that kept no {name}")
        with safe_open(of_weights, "pt") as file:
            _copy(file, dict(_kept(trained, its_optimizer)), folder)
        if its_optimizer is not None:
            _restore(trained, its_optimizer, of_moments)
    return json.loads((folder / "state.json").read_text())


def read_state(folder: Path) -> dict[str, Any]:
    """The state alone, before anything is restored. Raises CheckpointError for one that cannot be read."""
    try:
        return json.loads((folder / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: state.json is damaged ({error}); without this folder a run resumes from the one before"
        ) from error


def _kept(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, nn.Parameter]]:
    return model.named_parameters() if optimizer is None else _learned(model)


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, of_moments: Path) -> None:
    for _, p in _learned(model):
        optimizer.state[p] = {
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
            "step": torch.zeros((), device=p.device),  # the fused step counts where the weights are
        }
    with safe_open(of_moments, "pt") as file:
        stored = set(file.keys())
        for name, p in _learned(model):
            if f"step/{name}" in stored:
                _copy(file, {f"{kind}/{name}": t for kind, t in optimizer.state[p].items()}, of_moments.parent)
            else:
                optimizer.state.pop(p, None)  # saved before the first optimizer step


def _learned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What an optimizer may move: all of a model, or the adapters on a frozen one."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def whole_checkpoints(root: Path) -> list[Path]:
    """Whole checkpoints, oldest first. Incomplete or damaged folders are named in a warning, never used."""
    found: list[Path] = []
    for folder in sorted(root.glob("step_*")) if root.exists() else []:
        problem = _problem(folder, checksums=False)
        if problem:
            warnings.warn(f"checkpoint {folder} is skipped: {problem}", stacklevel=2)
        else:
            found.append(folder)
    return found


def latest_checkpoint(root: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    whole = whole_checkpoints(root)
    return whole[-1] if whole else None


def _problem(folder: Path, checksums: bool) -> str:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"no readable {MANIFEST} ({error})"
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.exists() or path.stat().st_size != entry["bytes"]:
            return f"{name} is missing or cut"
        if checksums and _fingerprint(path) != entry:
            return f"{name} is damaged"
    return ""


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{kind}/{name}": value.detach().contiguous()
        for name, p in _learned(model)
        if p in optimizer.state
        for kind, value in optimizer.state[p].items()
    }


def _copy(file: Any, targets: Mapping[str, Tensor], folder: Path) -> None:
    stored = set(file.keys())
    if missing := sorted(set(targets) - stored):
        raise CheckpointError(
            f"{folder}: made for another model, {len(missing)} tensors are missing, first {missing[0]}"
        )
    with torch.no_grad():
        for name, target in targets.items():
            tensor = file.get_tensor(name)
            if tensor.shape != target.shape:
                raise CheckpointError(
                    f"{folder}: {name} has shape {tuple(tensor.shape)}, the model's has {tuple(target.shape)}"
                )
            target.copy_(tensor)


def _fingerprint(path: Path) -> dict[str, int]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return {"bytes": size, "crc32": crc}
