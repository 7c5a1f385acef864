import pytest
import torch

from partita.models.load import load_causal_lm
from partita.ops.packing import pack
from partita.records import Row
from partita.train.probed import logprobs_after
from partita.train.stepper import precision


def test_logprobs_are_of_the_given_tokens_after_the_prompt_at_the_temperature(model_folder):
    model = load_causal_lm(str(model_folder), dtype=torch.float32).model
    exact = precision(model, torch.float32)
    found = logprobs_after(model, exact, [5, 6, 7], [8, 9], 0.5)
    packed = pack([[Row([5, 6, 7, 8, 9], [False] * 3 + [True] * 2, [0.0] * 5, [-1] * 5)]], [0])
    assert found == pytest.approx(model(packed, temperature=0.5).logprobs_T.tolist())
    rounded = logprobs_after(model, precision(model, torch.bfloat16), [5, 6, 7], [8, 9], 0.5)
    assert rounded != found and rounded == pytest.approx(found, rel=0.05)
