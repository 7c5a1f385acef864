"""The reference says the same from a file, from a frozen copy and from the model without its adapters."""

from pathlib import Path

import pytest
import torch
from offline_items import JUDGED, PAIRS, learner_of, model_of, pair, plain_logprobs, plain_of
from safetensors.torch import load_file

from partita.algo.pairwise import Kto, Sigmoid
from partita.models.adapters import LoraConfig
from partita.models.lora import add_adapters, base_view
from partita.models.packed import PackedModel, cast_copy
from partita.train.objectives import Judge, Prefer
from partita.train.references import Asked, known

MANY = [
    pair(f"{n}", [3 + n % 5, 9, 4][: 1 + n % 3], [4 + n, 5, 2][n % 2 :], [7 + n, *[8] * (n % 4), 2]) for n in range(12)
]


def adapted() -> PackedModel:
    model = model_of(0)
    add_adapters(model, LoraConfig(rank=2), 1)
    return model


def reference_of(way: str, model: PackedModel, items, folder: Path, dtype=torch.float32, budget: int = 4096):
    if way == "adapter_off":
        return Asked(base_view(model), dtype, budget)
    if way == "online":
        return Asked(cast_copy(model, dtype), dtype, budget)
    return known(items, Asked(model, dtype, budget), folder / "reference.safetensors", "m")


@pytest.mark.parametrize("items, objective", [(PAIRS, Prefer(Sigmoid(0.5))), (JUDGED, Judge(Kto(0.5)))])
def test_three_ways_to_ask_the_reference_give_the_same_losses(tmp_path, items, objective) -> None:
    found = {}
    for way in ("precomputed", "online", "adapter_off"):
        model = adapted()
        learner = learner_of(model, objective, 30, reference_of(way, model, items, tmp_path))
        found[way] = [learner.learn(items, step, 4).as_dict() for step in range(4)]
        (tmp_path / "reference.safetensors").unlink(missing_ok=True)
    for way in ("online", "adapter_off"):
        for got, want in zip(found[way], found["precomputed"], strict=True):
            assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
    losses = [metrics["loss"] for metrics in found["precomputed"]]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("budget", [1, 40, 4096])
@pytest.mark.parametrize("way", ["precomputed", "adapter_off"])
def test_before_the_first_step_the_policy_is_its_reference_to_the_last_bit(tmp_path, way, budget, dtype) -> None:
    """Asked in the policy's own precision and layout: else half precision would give margins of a few hundredths."""
    model = adapted()
    learner = learner_of(
        model, Prefer(Sigmoid(0.1)), budget, reference_of(way, model, MANY, tmp_path, dtype, budget), dtype
    )
    metrics = learner.learn(MANY, 0, 1).as_dict()
    assert metrics["preference/margin"] == 0
    assert metrics["preference/reward_chosen"] == metrics["preference/reward_rejected"] == 0
    assert metrics["loss"] == pytest.approx(0.693147, abs=1e-6)


def test_sums_are_those_of_the_family_s_own_forward(tmp_path) -> None:
    model = model_of(0)
    lm = plain_of(model)
    reference = reference_of("precomputed", model, JUDGED, tmp_path)
    own, beside = reference(JUDGED[1:])
    with torch.no_grad():
        want = [plain_logprobs(lm, rows).sum().item() for item in JUDGED[1:] for rows in item.samples]
        crossed = [plain_logprobs(lm, rows).sum().item() for item in JUDGED[1:] for rows in item.beside]
    assert own.tolist() == pytest.approx(want, abs=1e-4)
    assert beside.tolist() == pytest.approx(crossed, abs=1e-4)
    assert own.dtype == torch.float64
    assert [one.shape for one in reference([])] == [(0,), (0,)]


class Counting:
    """Asks a model, and counts how often."""

    def __init__(self) -> None:
        self.model, self.times = Asked(model_of(0), torch.float32, 4096), 0

    def __call__(self, items):
        self.times += 1
        return self.model(items)


def test_a_file_is_read_only_for_the_same_tokens_and_the_same_model(tmp_path) -> None:
    file, ask = tmp_path / "reference.safetensors", Counting()
    first = known(PAIRS, ask, file, "m")
    assert ask.times == 1 and load_file(file)["samples"].shape == (8,)
    assert not list(tmp_path.glob("*.writing"))
    again = known(PAIRS, ask, file, "m")
    assert ask.times == 1
    assert all(torch.equal(a, b) for a, b in zip(first(PAIRS), again(PAIRS), strict=True))
    other = pair("a", [3, 9], [4, 5, 5], [7, 2])  # one token is another one, under the same name
    longer = pair("a", [3], [9, 4, 5, 2], [9, 7, 2])  # the same tokens, of which one more is learned
    changes = [
        ([other, *PAIRS[1:]], "m"),
        ([longer, *PAIRS[1:]], "m"),
        (PAIRS[:3], "m"),
        (PAIRS[::-1], "m"),
        (PAIRS, "n"),
    ]
    for times, (items, name) in enumerate(changes, 2):
        told = known(items, ask, file, name)
        assert ask.times == times
        assert torch.equal(told(items)[0], ask.model(items)[0])


@pytest.mark.parametrize("damage", [b"", b"half a file"])
def test_a_damaged_file_is_asked_for_again(tmp_path, damage) -> None:
    file, ask = tmp_path / "reference.safetensors", Counting()
    known(PAIRS, ask, file, "m")
    file.write_bytes(damage or file.read_bytes()[:-9])
    assert torch.equal(known(PAIRS, ask, file, "m")(PAIRS)[0], ask.model(PAIRS)[0])
    assert ask.times == 2
