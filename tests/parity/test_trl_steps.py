"""TRL 1.16.0's trainers and our learner on the same rows and the same (tiny) model: their own tokenising, collators and
`compute_loss` against our rows, packed forward and micro-batches. Padding on either side, by the id that also ends a text.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from offline_items import learner_of, row, watched
from parity.outcome import TOLERANCE, distance
from tiny_model import byte_tokenizer
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaForCausalLM

from partita.algo.bradley import BradleyTerry
from partita.algo.pairwise import Hinge, Ipo, Kto, PairLoss, Robust, Sigmoid
from partita.config import load_config
from partita.models.export import export_scorer
from partita.models.load import load_causal_lm
from partita.offline.build import load_data
from partita.offline.config import DpoConfig
from partita.offline.models import load_model
from partita.train.objectives import Judge, Prefer, Rank
from partita.train.offline import Item, Objective
from partita.train.references import Asked

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:::(transformers|trl|parity)")]
pytest.importorskip("trl", reason="needs TRL 1.16.0: `make parity`, or the extra bench")
trl = importlib.import_module("trl")
datasets = importlib.import_module("datasets")
trl_peer = importlib.import_module("parity.trl_peer")

ROWS = [
    ("Name a bird.", "Wren.", "I would rather not name one."),
    ("What is 6 times 7?", "It is 42, as everybody knows.", "41"),
    ("Hi", "Hello!", "Hello?"),
    ("Say nothing for a while, then speak.", "Now.", "... no"),
]
LOSSES: dict[str, tuple[PairLoss, dict[str, Any]]] = {
    "sigmoid": (Sigmoid(0.1), {}),
    "hinge": (Hinge(0.1), {}),
    "ipo": (Ipo(0.5), {"beta": 0.5}),
    "robust": (Robust(0.1, 0.2), {"label_smoothing": 0.2}),
}


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory, model_folder) -> Path:
    """The reference's weights, moved a little; both sides load the same file."""
    lm, generator = LlamaForCausalLM.from_pretrained(model_folder), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in lm.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.05)
    folder = tmp_path_factory.mktemp("policy")
    lm.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def learns_ends(lm: Any) -> Any:
    """The model with a gradient for the embedding of the id that pads and ends: transformers leaves that out."""
    lm.get_input_embeddings().padding_idx = None
    return lm


def messages(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def our_items(folder: Path, root: Path) -> list[Item]:
    """The rows as a run would read them."""
    file = root / "rows.jsonl"
    rows = [{"prompt": asked, "chosen": chosen, "rejected": rejected} for asked, chosen, rejected in ROWS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_config(DpoConfig, overrides=[f"train_dataset.path={file}", f"actor.path={folder}"]).value
    return list(load_data(config, load_model(config, torch.device("cpu"))).items)


def our_step(items: list[Item], policy: Path, ref: Path, objective: Objective, budget: int):
    """Metrics, and the gradient by parameter, of a step."""
    model = load_causal_lm(str(policy), dtype=torch.float32).model
    learns_ends(model.lm)
    reference = Asked(load_causal_lm(str(ref), dtype=torch.float32).model, torch.float32, budget)
    seen, learner = watched(model), learner_of(model, objective, budget, reference, lr=0.0)
    metrics = learner.learn(items, 0, 1).as_dict()
    return metrics, {name.removeprefix("lm."): grad for name, grad in seen.items()}


def their_trainer(policy: Path, ref: Path, root: Path, **setting: Any) -> Any:
    rows = [
        {
            "prompt": messages("user", asked),
            "chosen": messages("assistant", chosen),
            "rejected": messages("assistant", rejected),
        }
        for asked, chosen, rejected in ROWS
    ]
    return trl.DPOTrainer(
        learns_ends(LlamaForCausalLM.from_pretrained(policy)), LlamaForCausalLM.from_pretrained(ref),
        args=trl.DPOConfig(**trl_peer.common(root), **({"beta": 0.1} | setting)),
        train_dataset=datasets.Dataset.from_list(rows), processing_class=byte_tokenizer(),
    )  # fmt: skip


def padded(inputs: dict[str, Tensor], side: str) -> dict[str, Tensor]:
    """The collator's batch, whose padding is on the right, with it on the other side."""
    if side == "right":
        return inputs
    empty_B = (inputs["attention_mask"] == 0).sum(1).tolist()
    return {
        name: torch.stack([row.roll(by) for row, by in zip(rows, empty_B, strict=True)])
        for name, rows in inputs.items()
    }


def assert_gradient(ours: dict[str, Tensor], theirs: torch.nn.Module) -> None:
    """The same, and not nothing."""
    given = {name: p.grad for name, p in theirs.named_parameters()}
    assert set(given) == set(ours)
    apart = {name: distance(ours[name], grad) for name, grad in given.items()}
    assert max(apart.values()) <= TOLERANCE, apart
    assert max(float(grad.abs().max()) for grad in given.values()) > 0.01


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_of_a_step_agree(name, side, policy_folder, model_folder, tmp_path) -> None:
    loss, setting = LOSSES[name]
    trainer = their_trainer(policy_folder, model_folder, tmp_path, loss_type=[name], **setting)
    inputs = trainer.data_collator([trainer.train_dataset[n] for n in range(len(ROWS))])
    items = our_items(policy_folder, tmp_path)
    end = byte_tokenizer().eos_token_id
    assert (inputs["input_ids"][inputs["attention_mask"] == 0] == end).all()  # pad is the id of the end
    for at, mask in enumerate(inputs["attention_mask"].bool()):
        (row,) = items[at % len(ROWS)].samples[at // len(ROWS)]
        assert inputs["input_ids"][at][mask].tolist() == row.ids
        assert inputs["completion_mask"][at][mask].bool().tolist() == row.trained
    theirs = trainer.compute_loss(trainer.model.train(), padded(inputs, side))
    theirs.backward()
    told = {key: values[-1] for key, values in trainer._metrics["train"].items()}
    for budget in (1, 100, 4096):
        metrics, gradient = our_step(items, policy_folder, model_folder, Prefer(loss), budget)
        assert metrics["loss"] == pytest.approx(theirs.item(), abs=TOLERANCE)
        if not loss.per_token:  # where means are compared, our rewards are of means too
            assert metrics["preference/margin"] == pytest.approx(told["rewards/margins"], abs=TOLERANCE)
            assert metrics["preference/accuracy"] == pytest.approx(told["rewards/accuracies"])
        assert_gradient(gradient, trainer.model)
    assert abs(told["rewards/chosen"]) > 0.05


def test_judged_answers_agree(policy_folder, model_folder, tmp_path) -> None:
    rows = [
        {"prompt": messages("user", asked), "completion": messages("assistant", one), "label": good}
        for asked, chosen, rejected in ROWS
        for one, good in ((chosen, True), (rejected, False))
    ][:-1]
    trainer = trl.KTOTrainer(
        learns_ends(LlamaForCausalLM.from_pretrained(policy_folder)), LlamaForCausalLM.from_pretrained(model_folder),
        args=trl.KTOConfig(
            **trl_peer.common(tmp_path), beta=0.1, desirable_weight=1.2, undesirable_weight=0.7,
            per_device_train_batch_size=len(rows),
        ),
        train_dataset=datasets.Dataset.from_list(rows), processing_class=byte_tokenizer(),
    )  # fmt: skip
    given = [trainer.train_dataset[n] for n in range(len(rows))]
    items = [
        Item(
            str(n), ((row(one["prompt_ids"], one["completion_ids"]),),),
            ((row(one["prompt_ids"], one["KL_completion_ids"]),),), good=one["label"],
        )
        for n, one in enumerate(given)
    ]  # fmt: skip
    theirs = trainer.compute_loss(trainer.model.train(), trainer.data_collator(given))
    theirs.backward()
    for budget in (1, 100, 4096):
        metrics, gradient = our_step(items, policy_folder, model_folder, Judge(Kto(0.1, 1.2, 0.7)), budget)
        assert metrics["loss"] == pytest.approx(theirs.item(), abs=TOLERANCE)
        assert metrics["preference/rest"] == pytest.approx(0.1 * trainer._metrics["train"]["kl"][-1], abs=TOLERANCE)
        assert_gradient(gradient, trainer.model)


def test_a_reward_model_agrees(policy_folder, tmp_path) -> None:
    loaded = load_causal_lm(str(policy_folder), dtype=torch.float32)
    model, generator = loaded.model, torch.Generator().manual_seed(7)
    learns_ends(model.lm)
    model.add_value_head()
    assert model.value_head is not None
    with torch.no_grad():
        model.value_head.weight.copy_(0.05 * torch.randn(model.value_head.weight.shape, generator=generator))
    folder = tmp_path / "scorer"
    export_scorer(model, loaded.tokenizer, folder)  # it gets a padding token of its own, before which theirs is read
    rows = [
        {
            "prompt": messages("user", asked),
            "chosen": messages("assistant", chosen),
            "rejected": messages("assistant", rejected),
            "margin": at / 4,
        }
        for at, (asked, chosen, rejected) in enumerate(ROWS)
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = trl.RewardTrainer(
        AutoModelForSequenceClassification.from_pretrained(folder),
        args=trl.RewardConfig(**trl_peer.common(tmp_path), center_rewards_coefficient=0.01),
        train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
    )  # fmt: skip
    inputs = trainer.data_collator([trainer.train_dataset[n] for n in range(len(ROWS))])
    assert "margin" in inputs and (inputs["attention_mask"] == 0).any()
    items = [
        replace(item, margin=one["margin"]) for item, one in zip(our_items(policy_folder, tmp_path), rows, strict=True)
    ]
    for at, mask in enumerate(inputs["attention_mask"].bool()):
        assert inputs["input_ids"][at][mask].tolist() == items[at % len(ROWS)].samples[at // len(ROWS)][0].ids
    theirs = trainer.compute_loss(trainer.model.train(), inputs)
    theirs.backward()
    seen = watched(model)
    for budget in (1, 100, 4096):
        seen.clear()
        metrics = learner_of(model, Rank(BradleyTerry(0.01)), budget, lr=0.0).learn(items, 0, 1).as_dict()
        assert metrics["loss"] == pytest.approx(theirs.item(), abs=TOLERANCE)
        assert metrics["reward_model/margin"] == pytest.approx(trainer._metrics["train"]["margin"][-1], abs=TOLERANCE)
        gradient = {name.removeprefix("lm.").replace("value_head", "score"): grad for name, grad in seen.items()}
        padding_1D = torch.zeros(1, gradient["model.embed_tokens.weight"].shape[1])  # a token that is theirs alone
        gradient["model.embed_tokens.weight"] = torch.cat([gradient["model.embed_tokens.weight"], padding_1D])
        assert_gradient(gradient, trainer.model)
