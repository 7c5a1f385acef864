"""Reward models in Hugging Face's format: ours read what theirs read, and theirs read what we write."""

import json

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from partita.models.adapters import LoraConfig
from partita.models.export import export_hf, export_scorer
from partita.models.families import FAMILIES, VOCABULARY, tiny
from partita.models.load import ModelLoadError
from partita.models.lora import add_adapters, trained_parameters
from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.models.scoring import LastToken, ScoreStats, WholeModel, is_scorer, load_scorer, load_value_model
from partita.models.selfcheck import self_check
from partita.ops.packing import pack
from partita.records import Row

EOS = VOCABULARY - 2
ROWS = [[5, 6, 7, EOS], [5, 6, 9, 8, 7, 6, 4, 3, 2, 1, EOS, EOS], [4, 4, 4, 4, 4], [11]]
NO_CLASS = {
    "Granite: attention, residual and logit scales",
    "Cohere: logit scale",
    "Falcon-H1: Mamba-2 beside attention",
}
# Without position ids transformers counts the padding on the left, too.
LEFT_UNSUPPORTED = {"GPT-2: learned positions"}


def valued(title="Llama"):
    lm = tiny(title, torch.float32)
    with quiet():
        verdict = self_check(lm)
    model = PackedModel(lm, kind=verdict.kind, padded=verdict.padded).eval()
    model.add_value_head()
    with torch.no_grad():
        model.value_head.weight.copy_(torch.randn(1, 32, generator=torch.Generator().manual_seed(1)) * 0.3)
    return model


def ends(model, rows, alike=None):
    rows = [[Row(row, [False] * len(row), [0.0] * len(row), [-1] * len(row))] for row in rows]
    with torch.no_grad():
        return model.values(pack(rows, alike or list(range(len(rows))), whole=True), ends=True)[1]


def theirs(folder):
    with quiet():
        return AutoModelForSequenceClassification.from_pretrained(folder).eval()


@torch.no_grad()
def alone(hf, rows=ROWS):
    hf.config.pad_token_id = None
    return torch.cat([hf(input_ids=torch.tensor([row])).logits[:, 0] for row in rows])


def saved_scorer(folder, model, tokenizer):
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def seeded(kind, config, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config).eval()


def llama(labels=1, **changes):
    values = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "num_labels": labels,
        "pad_token_id": EOS, "eos_token_id": EOS, "bos_token_id": None,
    }  # fmt: skip
    return seeded(LlamaForSequenceClassification, LlamaConfig(**values | changes))


def bert(labels=1):
    config = BertConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_labels=labels,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    return seeded(BertForSequenceClassification, config)


@pytest.mark.slow
@pytest.mark.parametrize("title", FAMILIES)
def test_an_exported_scorer_gives_our_scores_in_transformers_and_here(title, tmp_path, tokenizer):
    model, folder = valued(title), tmp_path / "scorer"
    if title in NO_CLASS:
        with pytest.raises(ModelLoadError, match="no sequence-classification class for the family"):
            export_scorer(model, tokenizer, folder)
        assert list(tmp_path.iterdir()) == []
        return
    export_scorer(model, tokenizer, folder)
    ours, hf, padder = ends(model, ROWS), theirs(folder), AutoTokenizer.from_pretrained(folder)
    for padder.padding_side in ("right", "left"):
        if (title, padder.padding_side) not in {(one, "left") for one in LEFT_UNSUPPORTED}:
            batch = padder.pad({"input_ids": ROWS}, return_tensors="pt")
            with torch.no_grad():
                assert torch.allclose(hf(**batch).logits[:, 0], ours, atol=1e-5, rtol=1e-5)
    assert torch.allclose(alone(hf), ours, atol=1e-5, rtol=1e-5)
    scorer = load_scorer(str(folder))
    assert isinstance(scorer.way, LastToken)
    assert scorer.way.model.kind == model.kind
    assert scorer.scores(ROWS) == pytest.approx(ours.tolist(), abs=1e-5)


def test_an_export_says_what_its_readers_need(tmp_path, tokenizer):
    export_scorer(valued(), tokenizer, tmp_path / "scorer", ScoreStats(0.5, 2.0))
    config = json.loads((tmp_path / "scorer" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert list(config["id2label"]) == ["0"]
    assert (config["dtype"], config.get("problem_type")) == ("float32", None)
    assert "partita" not in json.dumps(config)
    assert json.loads((tmp_path / "scorer" / "reward_stats.json").read_text()) == {"mean": 0.5, "std": 2.0}


@pytest.mark.parametrize("given", [None, "<eos>"])
def test_a_padding_that_may_end_a_text_is_replaced(given, tmp_path, tokenizer):
    tokenizer.pad_token = given
    export_scorer(valued(), tokenizer, tmp_path / "scorer")
    hf, read = theirs(tmp_path / "scorer"), AutoTokenizer.from_pretrained(tmp_path / "scorer")
    assert (read.pad_token, read.pad_token_id, hf.config.pad_token_id, hf.config.vocab_size) == ("<|pad|>", 96, 96, 97)
    assert (tokenizer.pad_token, len(tokenizer)) == (given, 96)  # the caller's is left as it was


def test_a_padding_of_its_own_is_kept(tmp_path, tokenizer):
    tokenizer.pad_token = "w0"
    export_scorer(valued(), tokenizer, tmp_path / "scorer")
    hf = theirs(tmp_path / "scorer")
    assert (hf.config.pad_token_id, hf.config.vocab_size) == (0, 96)


CHATML = """{% macro turn(m) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endmacro %}
{%- set ns = namespace(n=0) %}
{% for m in messages %}
{{- turn(m) -}}
{% set ns.n = ns.n + 1 %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant{{ ns.n }}
{% endif %}"""


def test_the_folder_s_template_ends_a_conversation_where_training_does(tmp_path, tokenizer):
    tokenizer.chat_template = CHATML
    said = [{"role": "user", "content": "w1 "}, {"role": "assistant", "content": "w2"}]
    plain = tokenizer.apply_chat_template(said, tokenize=False)
    assert plain.endswith("w2<|im_end|>\n")
    export_scorer(valued(), tokenizer, tmp_path / "one")
    export_scorer(valued(), AutoTokenizer.from_pretrained(tmp_path / "one"), tmp_path / "two")
    for name in ("one", "two"):
        read = AutoTokenizer.from_pretrained(tmp_path / name)
        assert read.apply_chat_template(said, tokenize=False) == plain.rstrip()
        asked = [
            one.apply_chat_template(said[:1], tokenize=False, add_generation_prompt=True) for one in (read, tokenizer)
        ]
        assert asked[0] == asked[1]
        assert asked[0].endswith("<|im_start|>assistant1\n")
    assert tokenizer.chat_template == CHATML


def test_an_export_that_fails_leaves_the_one_before(tmp_path, tokenizer):
    folder, model = tmp_path / "scorer", valued()
    export_scorer(model, tokenizer, folder)
    before = alone(theirs(folder))
    with pytest.raises(ModelLoadError):
        export_scorer(valued("Cohere: logit scale"), tokenizer, folder)
    assert torch.equal(alone(theirs(folder)), before)
    with torch.no_grad():
        model.value_head.weight.neg_()
    export_scorer(model, tokenizer, folder)
    assert torch.allclose(alone(theirs(folder)), -before)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_model_without_a_value_head_is_no_scorer(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="add_value_head comes first"):
        export_scorer(PackedModel(tiny("Llama", torch.float32)), tokenizer, tmp_path / "scorer")


@pytest.mark.parametrize("pad", [None, 0, EOS])
def test_the_score_is_read_after_the_last_token_whatever_pads(pad, tmp_path, tokenizer):
    """A text that ends with the padding id, one that has none, and one that is only that id."""
    model = llama(pad_token_id=pad)
    rows = [[3, 4, 5, EOS], [3, 4, 5, 6], [3, 4, 5, EOS, EOS, EOS], [EOS], [0, 0]]
    with torch.no_grad():
        states = [model.model(input_ids=torch.tensor([row])).last_hidden_state[0] for row in rows]
        every = [model.score(state_LD)[:, 0] for state_LD in states]
    scorer = load_scorer(saved_scorer(tmp_path / "m", model, tokenizer))
    assert scorer.scores(rows) == pytest.approx([float(score_L[-1]) for score_L in every], abs=1e-5)
    assert all(abs(every[r][-1] - every[r][2]) > 1e-2 for r in (0, 2))  # what would be read before the padding id


@pytest.mark.parametrize("make", [llama, bert])
def test_scores_do_not_depend_on_what_runs_together(make, tmp_path, tokenizer):
    path = saved_scorer(tmp_path / "m", make(), tokenizer)
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 96, (n,), generator=generator).tolist() for n in (17, 1, 40, 5, 5, 23, 2, 31)]
    rows += [[*rows[0], 7, 8], [*rows[0], 9]]
    truth = alone(theirs(path), rows).tolist()
    assert max(truth) - min(truth) > 0.1
    for budget in (1, 50, 8192):
        scorer = load_scorer(path, max_tokens=budget)
        assert scorer.scores(rows) == pytest.approx(truth, abs=1e-5)
        assert scorer.scores(rows[::-1], [0, 0, *range(1, 8), 0]) == pytest.approx(truth[::-1], abs=1e-5)
    assert scorer.scores([]) == []


def test_an_encoder_is_scored_by_its_own_class(tmp_path, tokenizer):
    scorer = load_scorer(saved_scorer(tmp_path / "m", bert(), tokenizer))
    assert isinstance(scorer.way, WholeModel) and scorer.way.padded
    assert scorer.notes[0] == "BertForSequenceClassification: scored with padding, checked"


def test_half_precision_gives_nearly_the_same(tmp_path, tokenizer):
    path = saved_scorer(tmp_path / "m", llama(), tokenizer)
    wide, half = load_scorer(path).scores(ROWS), load_scorer(path, dtype=torch.bfloat16).scores(ROWS)
    assert half != wide
    assert half == pytest.approx(wide, abs=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: llama(labels=2), r"2 labels \(LABEL_0, LABEL_1\); .*num_labels=1"),
        (lambda: tiny("Llama", torch.float32), "LlamaForCausalLM has no head for a score"),
    ],
)
def test_models_of_another_kind_are_refused(make, words, tmp_path, tokenizer):
    path = saved_scorer(tmp_path / "m", make(), tokenizer)
    with pytest.raises(ModelLoadError, match=words):
        load_scorer(path)


def test_a_head_that_was_never_trained_does_not_score(tmp_path, tokenizer):
    lm = tiny("Llama", torch.float32)
    path = tmp_path / "m"
    saved_scorer(path, lm, tokenizer)
    config = json.loads((path / "config.json").read_text())
    for architectures in (["LlamaForSequenceClassification"], None):
        config |= {"architectures": architectures, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelLoadError, match=r"1 weights are missing.*score\.weight.*random rewards"):
            load_scorer(str(path))


def test_rows_that_cannot_be_read_are_refused(tmp_path, tokenizer):
    scorer = load_scorer(saved_scorer(tmp_path / "m", llama(), tokenizer))
    assert scorer.context == 64
    for row in ([], [1] * 65):
        with pytest.raises(ValueError, match=f"row 1 has {len(row)} tokens; .* takes 1 to 64"):
            scorer.scores([[1], row])


def test_scores_are_normalised_by_the_model_s_own_statistics(tmp_path, tokenizer):
    path = saved_scorer(tmp_path / "m", llama(), tokenizer)
    raw = load_scorer(path).scores(ROWS)
    with pytest.raises(ModelLoadError, match=r"no reward_stats\.json to normalise by"):
        load_scorer(path, normalise=True)
    ScoreStats(1.5, 4.0).write(tmp_path / "m")
    assert load_scorer(path).scores(ROWS) == raw
    assert load_scorer(path, normalise=True).scores(ROWS) == [(score - 1.5) / 4.0 for score in raw]
    (tmp_path / "m" / "reward_stats.json").write_text('{"mean": 0.0, "std": 0.0}')
    with pytest.raises(ModelLoadError, match=r"reward_stats\.json: not .*a positive std"):
        load_scorer(path, normalise=True)


def test_a_critic_starts_from_a_reward_model(tmp_path, tokenizer):
    export_scorer(valued("Qwen3"), tokenizer, tmp_path / "scorer")
    path = str(tmp_path / "scorer")  # has a padding token that the policy does not know
    assert is_scorer(path)
    model = load_value_model(path, tokenizer)
    assert torch.allclose(ends(model, ROWS), ends(valued("Qwen3"), ROWS), atol=1e-5)
    values_T, _ = model.values(pack([[Row([3, 4, 5], [False, True, True], [0.0] * 3, [0] * 3)]], [0]))
    assert torch.allclose(values_T.detach(), ends(model, [[3], [3, 4]]), atol=1e-5)
    values_T.sum().backward()
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    assert "value_head.weight" in names and "lm.model.layers.0.self_attn.q_proj.weight" in names
    assert not any("score" in name for name, _ in model.named_parameters())


def test_a_critic_must_know_the_policy_s_ids_and_value_every_state(tmp_path, tokenizer, saved):
    assert not is_scorer(str(saved)) and not is_scorer(str(tmp_path / "no such folder"))
    path = saved_scorer(tmp_path / "m", bert(), tokenizer)
    with pytest.raises(ModelLoadError, match="says nothing of the states before"):
        load_value_model(path, tokenizer)
    tokenizer.add_tokens(["ours"])
    with pytest.raises(ModelLoadError, match=r"tokenizers differ \('ours' is absent and 96\)"):
        load_value_model(path, tokenizer)


def test_a_trained_scorer_may_be_exported_again(tmp_path, tokenizer):
    export_scorer(valued(), tokenizer, tmp_path / "one")
    model = load_value_model(str(tmp_path / "one"), tokenizer)
    export_scorer(model, AutoTokenizer.from_pretrained(tmp_path / "one"), tmp_path / "two")
    assert torch.equal(alone(theirs(tmp_path / "two")), alone(theirs(tmp_path / "one")))
    export_hf(model, tokenizer, tmp_path / "plain")
    with pytest.raises(ModelLoadError, match="weights are missing"):
        load_scorer(str(tmp_path / "plain"))


def test_adapters_are_merged_into_an_exported_scorer(tmp_path, tokenizer):
    model = valued()
    before = ends(model, ROWS)
    add_adapters(model, LoraConfig(rank=2), seed=0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in trained_parameters(model).values():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    ours = ends(model, ROWS)
    assert not torch.allclose(ours, before, atol=0.01)
    export_scorer(model, tokenizer, tmp_path / "scorer")
    assert torch.allclose(alone(theirs(tmp_path / "scorer")), ours, atol=1e-5, rtol=1e-5)
    assert torch.equal(ends(model, ROWS), ours)
