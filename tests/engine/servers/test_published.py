import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from partita.engine.servers import published
from partita.engine.servers.published import Publisher, write_weights


def test_weights_are_cast_and_split_into_files_that_an_index_names(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "SHARD_BYTES", 40)
    given = {"a": torch.arange(8.0), "b": torch.arange(16.0)[::2], "c": torch.tensor([1, 2])}
    write_weights(given.items(), tmp_path, torch.bfloat16)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "a": "model-00001.safetensors",
        "b": "model-00001.safetensors",
        "c": "model-00002.safetensors",
    }
    found = {name: load_file(tmp_path / file)[name] for name, file in index["weight_map"].items()}
    assert found["b"].dtype == torch.bfloat16 and found["c"].dtype == torch.int64
    assert torch.equal(found["b"], given["b"].to(torch.bfloat16))


def test_every_publication_has_a_folder_of_its_own_with_the_models_small_files(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
    ):
        (model / name).write_text(name)
    publisher = Publisher(tmp_path / "weights", model, torch.float32)
    made = [publisher.write([("w", torch.ones(1) * n)], version=0) for n in range(3)]
    assert len({one.name for one in made}) == 3 and not made[0].folder.exists() and made[1].folder.exists()
    assert sorted(file.name for file in made[2].folder.iterdir()) == [
        "config.json", "model-00001.safetensors", "model.safetensors.index.json", "tokenizer.json"
    ]  # fmt: skip
    publisher.close()
    assert not (tmp_path / "weights").exists()


def test_a_tied_head_is_written_under_its_own_name_too_where_that_is_asked_for(tmp_path):
    made = Publisher(tmp_path / "weights", tmp_path, torch.float32, tied={"head.weight": "embed.weight"})
    folder = made.write([("embed.weight", torch.ones(2)), ("norm.weight", torch.zeros(1))], 0).folder
    found = load_file(folder / "model-00001.safetensors")
    assert sorted(found) == ["embed.weight", "head.weight", "norm.weight"]
    assert torch.equal(found["head.weight"], found["embed.weight"])


def test_adapters_are_written_by_whoever_has_them_and_the_weights_are_not_looked_at(tmp_path):
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text("adapters")

    def never():
        raise AssertionError("gathering whole weights is what this saves")
        yield

    made = Publisher(tmp_path / "weights", tmp_path, torch.float32, write).write(never(), 4)
    assert (
        made.adapters
        and made.version == 4
        and [file.name for file in made.folder.iterdir()] == ["adapter_model.safetensors"]
    )
