"""Checkpoints that are whole or absent: written aside, synced, renamed; the newest whole one is what a run resumes from.

A checkpoint folder holds `model.safetensors` (float32 master weights; of a model with adapters only these), `optimizer.safetensors`
(moments), the same pair `<name>.safetensors`, `<name>_optimizer.safetensors` for every other trained model, `state.json`
(counters, data position, controllers) and `manifest.json`, written last, with the size and CRC-32 of every file. Where several
ranks wrote it, `model/`, `optimizer/` and so on are folders with a file of each rank; any number of ranks goes on from either.
Left out: how tensors are written (`train.shards`), and the Hugging Face export (`models.export.export_hf`).
"""

from __future__ import annotations

import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from partita.models.parallel import local, settle
from partita.ops.disk import sync
from partita.ops.ranks import ALONE, Ranks
from partita.train.shards import Stored, on_all, stored, write_tensors

MANIFEST = "manifest.json"
ASIDE = ".writing_"  # what is being written or removed: never read, swept away by the next save


Kept = tuple[nn.Module, torch.optim.Optimizer | None]
"""A model with its optimizer, or one that is frozen and yet changes between steps."""
NONE: Mapping[str, Kept] = {}


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says which one is still usable."""


def save_checkpoint(
    root: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], keep_last: int,
    others: Mapping[str, Kept] = NONE, ranks: Ranks = ALONE,
) -> Path:  # fmt: skip
    """Write `root/step_<step>` atomically, then remove all but the last `keep_last` whole checkpoints; all ranks together.
    others: further models that change, by name.

    Raises CheckpointError when the disk is full or not writable; what was there before stays as it was.
    """
    kept: dict[str, Kept] = {"": (model, optimizer), **others}
    for trained, _ in kept.values():
        settle(trained)
    broken = next((name or "actor" for name, pair in kept.items() if not _finite(*pair)), None)
    if (section := next(filter(None, ranks.gathered(broken)), None)) is not None:
        raise CheckpointError(_not_finite(root, step, section))
    files = _files(kept)
    aside, final = root / f"{ASIDE}{step:06d}", root / f"step_{step:06d}"
    need = sum(ranks.gathered(sum(local(tensor).nbytes for tensors in files.values() for tensor in tensors.values())))
    try:
        _led(ranks, lambda: _begin(root, aside, need + 2**16))
        for name, tensors in files.items():
            write_tensors(tensors, aside, name, ranks)
        _led(ranks, lambda: _write_state(aside, state))
        _end(aside, step, ranks)
        _led(ranks, lambda: _put_in_place(aside, final))
    except (OSError, SafetensorError) as error:
        if ranks.leads:
            shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(_not_saved(root, step, error)) from error
    for old in whole_checkpoints(root)[:-keep_last] if ranks.leads else ():
        shutil.rmtree(old.rename(root / f"{ASIDE}{old.name}"))  # renamed first: a kill leaves no half checkpoint behind
    return final


def _files(kept: Mapping[str, Kept]) -> dict[str, dict[str, Tensor]]:
    """What goes into each file, by its name without an ending."""
    files = dict[str, dict[str, Tensor]]()
    for name, (trained, its_optimizer) in kept.items():
        of_weights, of_moments = file_names(name)
        files[of_weights] = {name: p.detach() for name, p in _kept(trained, its_optimizer)}
        if its_optimizer is not None:
            files[of_moments] = _moments(trained, its_optimizer)
    return files


def _finite(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether this rank's parts of the weights are."""
    return all(bool(torch.isfinite(local(p.detach())).all()) for _, p in _kept(model, optimizer))


def _led(ranks: Ranks, act: Callable[[], object]) -> None:
    """Rank 0 acts, and the others fail where it does."""
    on_all(ranks, act if ranks.leads else lambda: None)


def _begin(root: Path, aside: Path, need: int) -> None:
    _make_room(root, need)
    aside.mkdir()


def _make_room(root: Path, need: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{ASIDE}*"):  # of runs that were killed while saving
        shutil.rmtree(leftover)
    free = shutil.disk_usage(root).free
    if free < need:
        raise OSError(f"no space: {need / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free")


def file_names(name: str) -> tuple[str, str]:
    """What a trained model's weights and moments are called; the policy's name is empty."""
    return (name, f"{name}_optimizer") if name else ("model", "optimizer")


def _write_state(aside: Path, state: Mapping[str, Any]) -> None:
    (aside / "state.json").write_text(json.dumps(state))


def _end(aside: Path, step: int, ranks: Ranks) -> None:
    """The manifest, when every file that it names is on the disk; each rank looks after its share of them."""
    entries = dict[str, dict[str, int]]()
    # rank 0 looks: a folder that is shared may show other ranks late what was written
    names = ranks.told(sorted(f"{path.relative_to(aside)}" for path in aside.rglob("*") if path.is_file()))

    def checked() -> None:
        for name in names[ranks.rank :: ranks.size]:
            entries[name] = _fingerprint(aside / name)
        for name in names[ranks.rank :: ranks.size]:
            sync(aside / name)

    def written() -> None:
        (aside / MANIFEST).write_text(json.dumps({"step": step, "files": entries}))
        sync(aside / MANIFEST)
        for folder in (*(path for path in aside.iterdir() if path.is_dir()), aside):
            sync(folder)

    on_all(ranks, checked)
    for share in ranks.gathered(dict(entries)):
        entries |= share
    _led(ranks, written)


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
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, Kept] = NONE,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:  # fmt: skip
    """Restore weights and moments in place and return the state; all ranks together, also of another number than wrote it.
    Raises CheckpointError for a damaged or foreign one, and for one that lacks a model of `others`.
    """
    problem = next(filter(None, ranks.gathered(_problem(folder, checksums=True, ranks=ranks))), None)
    if problem:
        raise CheckpointError(f"{folder}: {problem}; without this folder a run resumes from the checkpoint before it")
    kept: dict[str, Kept] = {"": (model, optimizer), **others}
    for name, (trained, its_optimizer) in kept.items():
        settle(trained)
        of_weights, of_moments = file_names(name)
        if (weights := stored(folder, of_weights)) is None:
            raise CheckpointError(f"{folder}: no {of_weights}.safetensors: it was saved by a run that kept no {name}")
        _copy(weights, dict(_kept(trained, its_optimizer)), ranks)
        if its_optimizer is not None:
            _restore(trained, its_optimizer, stored(folder, of_moments), ranks)
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


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, moments: Stored | None, ranks: Ranks) -> None:
    """Moments, for as many parameters as have some: an optimizer that took no step yet has none, and no parts of any."""
    targets, found = dict[str, Tensor](), {} if moments is None else moments.shapes
    for name, p in _learned(model):
        optimizer.state.pop(p, None)
        if f"step/{name}" in found:
            optimizer.state[p] = {
                "step": torch.zeros((), device=p.device),  # the fused step counts where the weights are
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }  # in the optimizer's own order: by it ranks agree on who writes a tensor that all of them have
            targets |= {f"{kind}/{name}": tensor for kind, tensor in optimizer.state[p].items()}
    if moments is not None and targets:
        _copy(moments, targets, ranks)


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


def _problem(folder: Path, checksums: bool, ranks: Ranks = ALONE) -> str:
    """Empty for none. checksums: of this rank's share of the files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"no readable {MANIFEST} ({error})"
    for place, (name, entry) in enumerate(manifest["files"].items()):
        path = folder / name
        if not path.exists() or path.stat().st_size != entry["bytes"]:
            return f"{name} is missing or cut"
        if checksums and place % ranks.size == ranks.rank and _fingerprint(path) != entry:
            return f"{name} is damaged"
    return ""


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{kind}/{name}": value.detach()
        for name, p in _learned(model)
        if p in optimizer.state
        for kind, value in optimizer.state[p].items()
    }


def _copy(found: Stored, targets: Mapping[str, Tensor], ranks: Ranks) -> None:
    folder = found.path.parent
    if missing := sorted(set(targets) - set(found.shapes)):
        raise CheckpointError(
            f"{folder}: made for another model, {len(missing)} tensors are missing, first {missing[0]}"
        )
    for name, target in targets.items():
        if found.shapes[name] != target.shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {tuple(found.shapes[name])}, the model's has {tuple(target.shape)}"
            )
    found.read_into(targets, ranks)


def _fingerprint(path: Path) -> dict[str, int]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return {"bytes": size, "crc32": crc}
