"""Loading: stop ids, context, dropout, incomplete and missing models; export and back."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants

from partita.models.export import export_hf
from partita.models.families import tiny
from partita.models.load import ModelLoadError, find_stop_ids, load_causal_lm, model_context, model_folder
from partita.models.packed import weights
from partita.models.quiet import quiet
from partita.ops.packing import pack
from partita.records import Row


def test_a_folder_loads_checked_and_quietly(saved, capfd):
    loaded = load_causal_lm(str(saved), dtype=torch.float32)
    assert loaded.path_kind == "packed"
    assert loaded.context == 128
    assert loaded.stop_ids == (2, 94, 95)  # the model's, the tokenizer's, and the declared end of turn
    assert "fast path" in loaded.notes[0]
    assert not loaded.model.training
    assert capfd.readouterr() == ("", "")


def test_stop_ids_are_the_union_of_all_declarations(tokenizer):
    configs = [
        SimpleNamespace(eos_token_id=[7, 8]),
        SimpleNamespace(eos_token_id=7),
        SimpleNamespace(eos_token_id=None),
    ]
    assert find_stop_ids(tokenizer, [*configs, SimpleNamespace()]) == (7, 8, 94, 95)


def test_the_longer_context_of_the_model_does_not_outlive_the_tokenizer_s(saved):
    path = saved / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 40}))
    assert load_causal_lm(str(saved), dtype=torch.float32).context == 40


def test_positions_that_depend_on_the_longest_row_limit_the_context(saved):
    path = saved / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, "factor": 4.0,
        "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    loaded = load_causal_lm(str(saved), dtype=torch.float32)
    assert loaded.context == 32
    assert any(note.startswith("context 32, not 128") for note in loaded.notes)


def test_dropout_is_off_also_in_train_mode(tmp_path, tokenizer):
    lm = tiny("GPT-2: learned positions", torch.float32)
    lm.config.attn_pdrop = lm.config.resid_pdrop = lm.config.embd_pdrop = 0.1
    with quiet():
        lm.save_pretrained(tmp_path / "m")
        tokenizer.save_pretrained(tmp_path / "m")
    loaded = load_causal_lm(str(tmp_path / "m"), dtype=torch.float32)
    assert any("dropout is off" in note for note in loaded.notes)
    packed = pack([[Row([1, 2, 3, 4], [False, True, True, True], [0.0] * 4, [0] * 4)]], [0])
    scored = loaded.model(packed, temperature=1.0).logprobs_T
    trained = loaded.model.train()(packed, temperature=1.0).logprobs_T
    assert torch.equal(scored, trained)


def test_the_end_of_a_text_learns_also_where_it_pads(tmp_path, tokenizer):
    lm = tiny("Llama", torch.float32)
    lm.config.pad_token_id = lm.config.eos_token_id = 2
    with quiet():
        lm.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
    model = load_causal_lm(str(tmp_path / "model"), dtype=torch.float32).model
    row = Row([5, 2, 7, 9], [False, False, True, True], [0.0] * 4, [-1] * 4)
    model(pack([[row]], [0]), temperature=1.0).logprobs_T.sum().backward()
    gradient = model.lm.get_input_embeddings().weight.grad
    assert gradient[2].abs().sum() > 0 and gradient[3].abs().sum() == 0


def test_missing_weights_are_an_error_and_not_random_numbers(saved):
    lm = tiny("Llama", torch.float32)
    state = {name: w for name, w in lm.state_dict().items() if "layers.1.mlp" not in name}
    with quiet():
        lm.save_pretrained(saved, state_dict=state)
    with pytest.raises(ModelLoadError, match=r"3 weights are missing.*layers\.1\.mlp"):
        load_causal_lm(str(saved), dtype=torch.float32)


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c", "~/no-such-model"])
def test_a_missing_folder_is_named(path):
    with pytest.raises(ModelLoadError, match="no such folder") as error:
        load_causal_lm(path, dtype=torch.float32)
    assert path in str(error.value)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"without config\.json"):
        load_causal_lm(str(tmp_path), dtype=torch.float32)


def test_a_hub_name_without_a_hub_says_what_to_do(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError) as error:
        load_causal_lm("nobody/no-such-model", dtype=torch.float32)
    for part in ("nobody/no-such-model", "HF_HUB_OFFLINE=1", "unset it", "local folder", "smollm2-135m"):
        assert part in str(error.value)


def test_an_export_replaces_the_older_one_and_leaves_nothing_else(saved, tmp_path):
    loaded = load_causal_lm(str(saved), dtype=torch.float32)
    folder = tmp_path / "out" / "final"
    for factor in (2.0, 3.0):
        with torch.no_grad():
            loaded.model.lm.model.norm.weight.fill_(factor)
        export_hf(loaded.model, loaded.tokenizer, folder)
    assert [p.name for p in folder.parent.iterdir()] == ["final"]
    again = load_causal_lm(str(folder), dtype=torch.float32)
    for (name, mine), (_, theirs) in zip(weights(again.model), weights(loaded.model), strict=True):
        assert torch.equal(mine, theirs), name
    assert again.tokenizer("w3 w5")["input_ids"] == [3, 5]


READ_BACK = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(model.config._attn_implementation, model.dtype, model(torch.tensor([[3, 5]])).logits[0, 1, :2].tolist())
"""


@pytest.mark.slow
def test_an_export_loads_in_a_process_that_knows_nothing_of_us(saved, tmp_path):
    loaded = load_causal_lm(str(saved), dtype=torch.float32)
    export_hf(loaded.model, loaded.tokenizer, tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-c", READ_BACK, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    with quiet():
        truth = tiny("Llama, tied embeddings (SmolLM2)", torch.float32)(torch.tensor([[3, 5]])).logits[0, 1, :2]
    attention, dtype, *values = done.stdout.split(maxsplit=2)
    assert (attention, dtype) == ("sdpa", "torch.float32")
    assert json.loads(values[0]) == pytest.approx(truth.tolist(), abs=1e-5)


def test_the_folder_and_the_context_of_a_model_are_known_without_loading_it(saved):
    assert model_folder(str(saved)) == saved.resolve()
    assert model_context(str(saved)) == load_causal_lm(str(saved), dtype=torch.float32).context
    with pytest.raises(ModelLoadError, match="no such folder"):
        model_folder(str(saved / "nothing"))
