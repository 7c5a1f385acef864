"""A train step on data, on real (tiny) models: its gradient is the formula's by the family's own forward, whatever the split."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from offline_items import (
    CONVERSATIONS,
    JUDGED,
    PAIRS,
    learner_of,
    model_of,
    pair,
    plain_logprobs,
    plain_of,
    row,
    watched,
)
from scripted import FILLER, Scripted
from torch.nn.functional import logsigmoid

from partita.algo.bradley import BradleyTerry
from partita.algo.pairwise import Hinge, Ipo, Kto, Orpo, Robust, Sigmoid, Simpo
from partita.algo.reduce import SeqMeanTokenMean, TokenMean
from partita.records import Row
from partita.train.objectives import Imitate, Judge, Prefer, Rank
from partita.train.offline import Item
from partita.train.references import Asked
from partita.train.stepper import LearnerError

GOLDEN = Path(__file__).parents[1] / "golden"
OBJECTIVES = {
    "sft, tokens": (Imitate(TokenMean()), CONVERSATIONS),
    "sft, conversations": (Imitate(SeqMeanTokenMean()), CONVERSATIONS),
    "rm": (Rank(BradleyTerry(0.01)), PAIRS),
    "sigmoid": (Prefer(Sigmoid(0.5)), PAIRS),
    "conservative": (Prefer(Sigmoid(0.5, 0.1)), PAIRS),
    "hinge": (Prefer(Hinge(0.5)), PAIRS),
    "ipo": (Prefer(Ipo(0.5)), PAIRS),
    "robust": (Prefer(Robust(0.5, 0.1)), PAIRS),
    "simpo": (Prefer(Simpo(2.0, 0.5)), PAIRS),
    "orpo": (Prefer(Orpo(0.3)), PAIRS),
    "kto": (Judge(Kto(0.5, 1.0, 1.3)), JUDGED),
}


def made(name: str, budget: int = 4096, **optimizer):
    """The learner of an objective on the first model, with the second as its reference."""
    objective, items = OBJECTIVES[name]
    model = model_of(0, head=objective.scores)
    reference = Asked(model_of(1), torch.float32, budget) if objective.reference else None
    return learner_of(model, objective, budget, reference, **optimizer), items


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_weights_and_metrics_do_not_depend_on_the_token_budget(name) -> None:
    outcomes = []
    for budget in (1, 20, 4096):
        learner, items = made(name, budget)
        metrics = [learner.learn(items, step, 2).as_dict() for step in range(2)]
        outcomes.append((metrics, {name: p.detach().clone() for name, p in learner.model.named_parameters()}))
    for metrics, weights in outcomes[1:]:
        for got, want in zip(metrics, outcomes[0][0], strict=True):
            assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
        for weight, tensor in outcomes[0][1].items():
            torch.testing.assert_close(weights[weight], tensor, rtol=0, atol=1e-5)
    start = model_of(0)
    assert any(not torch.equal(p, outcomes[0][1][n]) for n, p in start.named_parameters())
    assert outcomes[0][0][0]["items"] == len(OBJECTIVES[name][1])


@pytest.mark.parametrize("name", ["sigmoid", "simpo", "rm"])
@pytest.mark.parametrize("budget", [1, 20])
def test_a_pair_is_never_split(name, budget) -> None:
    learner, items = made(name, budget)
    batches, passes = learner._micro_batches(items), list[int]()
    learner.model.backbone.register_forward_pre_hook(lambda *_: passes.append(1))
    learner.learn(items, 0, 1)
    assert sorted(place for places in batches for place in places) == list(range(len(items)))  # places of whole pairs
    assert (len(batches) == len(items)) == (budget == 1)
    assert len(passes) == len(batches)  # each is one forward


def direct(name: str, lm, head, reference) -> torch.Tensor:
    """The loss by its formula, each row in a forward of its own."""

    def scored(rows):
        return head(lm.base_model(torch.tensor([rows[-1].ids]), use_cache=False).last_hidden_state[0, -1])[0]  # fmt: skip

    if name.startswith("sft"):
        said = [-plain_logprobs(lm, item.samples[0]) for item in CONVERSATIONS]
        return torch.cat(said).mean() if name == "sft, tokens" else torch.stack([one.mean() for one in said]).mean()
    costs = []
    for item in PAIRS:
        chosen, rejected = item.samples
        if name == "rm":
            better, worse = scored(chosen), scored(rejected)
            costs.append(-logsigmoid(better - worse - (item.margin or 0)) + 0.01 * (better + worse) ** 2)
        else:
            better, worse = plain_logprobs(lm, chosen).sum(), plain_logprobs(lm, rejected).sum()
            with torch.no_grad():
                start = plain_logprobs(reference, chosen).sum() - plain_logprobs(reference, rejected).sum()
            costs.append(-logsigmoid(0.5 * (better - worse - start)))
    return torch.stack(costs).mean()


@pytest.mark.parametrize("name", ["sft, tokens", "sft, conversations", "sigmoid", "rm"])
def test_loss_and_gradient_are_the_formula_s_by_the_family_s_own_forward(name) -> None:
    learner, items = made(name, 20, lr=0.0)
    model = learner.model
    lm = plain_of(model)
    loss = direct(name, lm, model.value_head, plain_of(model_of(1)))
    named = {f"lm.{key}": p for key, p in lm.named_parameters()}
    if model.value_head is not None:
        named = {key: p for key, p in named.items() if "lm_head" not in key} | {
            "value_head.weight": model.value_head.weight
        }
    want = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    seen = watched(model)
    metrics = learner.learn(items, 0, 1).as_dict()
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert set(seen) == set(want)
    for key, grad in seen.items():
        torch.testing.assert_close(grad, want[key], rtol=1e-4, atol=1e-5)


def test_a_score_is_read_at_the_last_real_token_and_margins_are_kept() -> None:
    # one side is a part of the other, and pairs of other lengths stand beside
    short = pair("short", [5], [6], [6, 6, 2])
    model = model_of(0, head=True)
    learner = learner_of(model, Rank(BradleyTerry()))
    lm, head = plain_of(model).base_model, model.value_head
    assert head is not None
    items, want = [*PAIRS, short], []
    with torch.no_grad():
        for item in items:
            for (one,) in item.samples:
                want.append(head(lm(torch.tensor([one.ids]), use_cache=False).last_hidden_state[0, -1]).item())
    for budget in (1, 20, 4096):
        learner.max_tokens_per_mb = budget
        assert learner.scores(items).tolist() == pytest.approx(want, abs=1e-5)
    margins = [item.margin or 0.0 for item in items]
    costs = [math.log1p(math.exp(-(c - r - m))) for c, r, m in zip(want[::2], want[1::2], margins, strict=True)]
    metrics = learner.learn(items, 0, 1).as_dict()
    assert metrics["loss"] == pytest.approx(sum(costs) / 5, abs=1e-5)
    assert metrics["reward_model/margin"] == pytest.approx(
        sum(c - r for c, r in zip(want[::2], want[1::2], strict=True)) / 5, abs=1e-5
    )


@pytest.mark.parametrize("name", ["sft, tokens", "ipo", "rm", "kto"])
def test_evaluation_moves_nothing_and_is_the_loss_of_one_step_of_all(name) -> None:
    learner, items = made(name)
    before = {key: p.detach().clone() for key, p in learner.model.named_parameters()}
    found = learner.evaluate(items)
    assert found == pytest.approx(learner.evaluate(items))
    for key, p in learner.model.named_parameters():
        assert torch.equal(p, before[key]) and p.grad is None
    # the loss of a train step on the same items, before that step
    assert found["loss"] == pytest.approx(learner.learn(items, 0, 1).as_dict()["loss"], abs=1e-6)


def test_evaluation_by_hand() -> None:
    learner, items = made("sft, tokens")
    lm = plain_of(learner.model)
    with torch.no_grad():
        said = [-plain_logprobs(lm, item.samples[0]) for item in items]
    found = learner.evaluate(items)
    assert found["loss"] == pytest.approx(torch.cat(said).mean().item(), abs=1e-5)  # of every token alike
    assert found["sft/nll"] == pytest.approx(found["loss"], abs=1e-6)


def test_a_loss_that_is_not_finite_moves_nothing_and_too_many_in_a_row_end_the_run() -> None:
    learner = learner_of(model_of(0, head=True), Rank(BradleyTerry()))
    broken = [replace(PAIRS[0], margin=math.nan)]
    before = {key: p.detach().clone() for key, p in learner.model.named_parameters()}
    with pytest.warns(UserWarning, match="step 1: optimizer step of actor skipped, loss nan"):
        metrics = learner.learn([*PAIRS, *broken], 0, 9).as_dict()
    assert metrics["nonfinite_steps"] == 1 and "optimizer_steps" not in metrics
    assert all(torch.equal(p, before[key]) for key, p in learner.model.named_parameters())
    assert learner.state_dict() == {"skipped_in_a_row": 1}
    assert learner.learn(PAIRS, 1, 9).as_dict()["optimizer_steps"] == 1
    assert learner.state_dict() == {"skipped_in_a_row": 0}
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(LearnerError, match="3 optimizer steps in a row"):
        for step in range(2, 9):
            learner.learn(broken, step, 9)
    assert step == 4


def test_a_learner_goes_on_from_its_counters() -> None:
    learner = learner_of(model_of(0), Imitate(TokenMean()))
    learner.load_state_dict({"skipped_in_a_row": 2})
    assert learner.state_dict() == {"skipped_in_a_row": 2}


@pytest.mark.parametrize("name", ["sigmoid", "ipo", "rm", "kto"])
def test_the_others_of_a_step_change_nothing_for_an_item(name) -> None:
    """Pairs of 3 and 7 tokens alone and together, where peers pad the one to the other, and pad is also the end."""
    objective, items = OBJECTIVES[name]
    if name == "kto":  # whose z is one of the whole step
        objective = Judge(Kto(0.5))
        items = [replace(item, beside=()) for item in items]
    reference = Asked(model_of(1), torch.float32, 4096) if objective.reference else None
    learner = learner_of(model_of(0, head=objective.scores), objective, reference=reference)
    alone = [learner.evaluate([item])["loss"] for item in items]
    assert learner.evaluate(items)["loss"] == pytest.approx(sum(alone) / len(alone), abs=1e-6)


def spoken(values: list[list[float]], ref: list[list[float]], loss, budget: int):
    """Pairs of scripted models: the numbers are log-probs of tokens, chosen and rejected in turns."""
    count, rows = 0, list[Row]()
    for tokens in values:
        rows.append(row([FILLER], range(count + 1, count + 1 + len(tokens))))
        count += len(tokens)
    items = [Item(str(at), ((rows[at],), (rows[at + 1],))) for at in range(0, len(rows), 2)]
    model = Scripted([torch.tensor([x for one in values for x in one])])
    frozen = Scripted([torch.tensor([x for one in ref for x in one])])
    learner = learner_of(model, Prefer(loss), budget, Asked(frozen, torch.float32, budget))
    return learner.learn(items, 0, 1).as_dict(), model.gradients[0]


@pytest.mark.parametrize("name", ["dpo_sigmoid", "dpo_sigmoid_label_smoothing", "dpo_extreme_margin"])
@pytest.mark.parametrize("budget", [1, 4096])
def test_golden_preferences_through_a_train_step(name, budget) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    given, expected = golden["inputs"], golden["expected"]

    def turns(kind: str) -> list[list[float]]:
        return [[x] for both in zip(given[f"{kind}_chosen"], given[f"{kind}_rejected"], strict=True) for x in both]

    metrics, grad_T = spoken(turns("policy"), turns("ref"), Sigmoid(**golden["config"]), budget)
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert grad_T[::2].tolist() == pytest.approx(expected["grad_policy_chosen"], abs=1e-9)
    assert grad_T[1::2].tolist() == pytest.approx(expected["grad_policy_rejected"], abs=1e-9)
    count = len(expected["margin"])
    assert metrics["preference/margin"] == pytest.approx(sum(expected["margin"]) / count, abs=1e-6)
    if "accuracy" in expected:
        assert metrics["preference/accuracy"] == pytest.approx(expected["accuracy"])
        for side in ("chosen", "rejected"):
            want = sum(expected[f"implicit_reward_{side}"]) / count
            assert metrics[f"preference/reward_{side}"] == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("budget", [1, 4096])
def test_ipo_takes_means_over_real_tokens_and_sigmoid_takes_sums(budget) -> None:
    policy, ref = [[-2.0] * 3, [-2.0] * 10], [[-3.0] * 3, [-1.5] * 10]
    assert spoken(policy, ref, Ipo(0.1), budget)[0]["loss"] == pytest.approx(12.25)  # not 9, by sums
    metrics, grad_T = spoken(policy, ref, Sigmoid(0.1), budget)
    assert metrics["loss"] == pytest.approx(0.371101, abs=1e-6)
    assert (
        len(set(grad_T[:3].tolist())) == 1 and len(set(grad_T[3:].tolist())) == 1
    )  # no token weighs more than another
