"""Reward placement, reward-to-go and GAE against golden numbers and by hand; padded fixtures are compacted first."""

import json
from pathlib import Path

import pytest
import torch

from partita.ops.returns import gae, last_token_T, place_at_end, reward_to_go

GOLDEN = Path(__file__).parent.parent / "golden"


def read(name):
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    seq_T = torch.repeat_interleave(torch.arange(len(mask)), mask.sum(1))
    return case, mask, seq_T


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def close(value_T, expected, mask):
    torch.testing.assert_close(value_T, double(expected)[mask], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["gae_gamma099_lambda095", "gae_gamma1_lambda0", "gae_gamma1_lambda1",
                                  "gae_left_pad_and_tool_tokens", "gae_truncation_bootstrap"])  # fmt: skip
def test_gae(name):
    case, mask, seq_T = read(name)
    inputs, config = case["inputs"], case["config"]
    bootstrap = inputs.get("bootstrap_values")
    advantages_T, returns_T = gae(
        double(inputs["token_rewards"])[mask],
        double(inputs["values"])[mask],
        seq_T,
        None if bootstrap is None else double(bootstrap),
        config["gamma"],
        config["lam"],
    )
    close(advantages_T, case["expected"]["advantages"], mask)
    close(returns_T, case["expected"]["returns"], mask)


def test_rewards_land_on_the_last_trained_token():
    case, mask, seq_T = read("reward_placement")
    placed_T = place_at_end(double(case["inputs"]["rewards"]), seq_T)
    close(placed_T, case["expected"]["token_rewards"], mask)  # the fourth row has no token, so its 4.0 is nowhere


def test_a_batch_without_tokens():
    empty_T = torch.zeros(0, dtype=torch.long)
    assert last_token_T(empty_T).shape == (0,)
    assert place_at_end(torch.ones(2), empty_T).shape == (0,)
    assert reward_to_go(torch.zeros(0), empty_T, 0.9).shape == (0,)


@pytest.mark.parametrize(("discount", "expected"), [(1.0, "returns"), (0.9, "returns_gamma09")])
def test_reward_to_go(discount, expected):
    case, mask, seq_T = read("reward_kl_in_reward")
    rewards_T = double(case["expected"]["token_rewards"])[mask]
    close(reward_to_go(rewards_T, seq_T, discount), case["expected"][expected], mask)


def test_tool_output_neither_ends_an_episode_nor_costs_a_decay():
    # trained, tool, tool, trained, trained: three packed tokens, one decay between neighbours
    returns_T = reward_to_go(double([0, 0, 2]), torch.zeros(3, dtype=torch.long), 0.5)
    assert returns_T.tolist() == [0.5, 1.0, 2.0]


def test_reward_to_go_equals_a_plain_loop_on_ragged_sequences():
    generator = torch.Generator().manual_seed(0)
    length_S = torch.randint(0, 70, (9,), generator=generator)
    seq_T = torch.repeat_interleave(torch.arange(9), length_S)
    reward_T = torch.randn(seq_T.shape[0], generator=generator, dtype=torch.float64)
    expected, carried = [], 0.0
    for t in range(len(seq_T) - 1, -1, -1):
        follows = t + 1 < len(seq_T) and seq_T[t + 1] == seq_T[t]
        carried = float(reward_T[t]) + (0.97 * carried if follows else 0.0)
        expected.insert(0, carried)
    torch.testing.assert_close(reward_to_go(reward_T, seq_T, 0.97), double(expected), atol=1e-12, rtol=1e-12)


def test_gae_without_values_is_the_discounted_return():
    seq_T = torch.tensor([0, 0, 0, 1, 1])
    reward_T = double([0.1, 0.0, 1.0, 0.0, -1.0])
    advantages_T, _ = gae(reward_T, torch.zeros(5), seq_T, None, 0.9, 1.0)
    torch.testing.assert_close(advantages_T, reward_to_go(reward_T, seq_T, 0.9))
    assert advantages_T.tolist() == pytest.approx([0.1 + 0.81, 0.9, 1.0, -0.9, -1.0])
