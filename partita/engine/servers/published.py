"""Published weights as a folder that servers read: safetensors under the family's own names, in the servers' precision.

Every publication has a folder and a name of its own: nothing that a server has open is written again, and one that holds
something else can be told by the name. The folder before the newest is kept for servers that are still reading it.
Left out: the transfer from GPU to GPU, which needs no folder.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from partita.engine.servers.api import Weights

SHARD_BYTES = 4 << 30
"""Of one file, and so of the memory that writing takes."""
ASIDE = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")
"""Endings of a model folder's weights: what else lies there goes beside the published ones."""
KEPT = 2


class Publisher:
    """Writes publications into `folder`, its own. model: what the servers were started with. adapter: writes adapters alone.

    tied: further names of weights, as {lm_head.weight: model.embed_tokens.weight}, under which these are written too.
    """

    def __init__(
        self, folder: Path, model: Path, dtype: torch.dtype, adapter: Callable[[Path], None] | None = None,
        tied: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._model, self._dtype, self.adapter = folder, model, dtype, adapter
        self._tied = tied or {}
        self._tag, self._count = secrets.token_hex(4), 0
        self._written: list[Path] = []

    def write(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Weights:
        """A publication of `weights`, or of the adapters of now, where these go alone."""
        name = f"partita-{self._tag}-{self._count}"
        folder, self._count = self._folder / name, self._count + 1
        if self.adapter is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.adapter(folder)
        else:
            folder.mkdir(parents=True)
            write_weights(self._named(weights), folder, self._dtype)
            for file in self._model.iterdir():
                if file.is_file() and file.suffix not in ASIDE and not file.name.endswith(".index.json"):
                    shutil.copyfile(file, folder / file.name)
        self._written.append(folder)
        for old in self._written[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        del self._written[:-KEPT]
        return Weights(name, version, folder, self.adapter is not None)

    def _named(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, weight in weights:
            yield name, weight
            for other in (alias for alias, tied in self._tied.items() if tied == name):
                yield other, weight.clone()

    def close(self) -> None:
        """Remove what was written, and the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    """Safetensors files of a few GB each, and the index that names the file of every weight."""
    shard, size, files = dict[str, Tensor](), 0, dict[str, str]()
    total, number = 0, 0

    def flush() -> None:
        nonlocal size, number
        number += 1
        name = f"model-{number:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        files.update(dict.fromkeys(shard, name))
        shard.clear()
        size = 0

    for name, weight in weights:
        held = weight.to("cpu", dtype if weight.is_floating_point() else weight.dtype).contiguous()
        if shard and size + held.nbytes > SHARD_BYTES:
            flush()
        shard[name] = held
        size, total = size + held.nbytes, total + held.nbytes
    flush()
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
