"""The one-file PPO: its formulas against the golden cases, what it reads of a padded batch, and the whole of it on a tiny model."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "examples"))  # a script that is run, not a package
import one_file_ppo as ppo

GOLDEN = Path(__file__).parent / "golden"


def case(name: str) -> tuple[dict[str, torch.Tensor], dict, dict[str, torch.Tensor]]:
    read = json.loads((GOLDEN / f"{name}.json").read_text())
    tensors = [
        {key: torch.tensor(value, dtype=torch.float64) for key, value in read[part].items()}
        for part in ("inputs", "expected")
    ]
    return tensors[0], read["config"], tensors[1]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ["gae_gamma1_lambda0", "gae_gamma1_lambda1", "gae_gamma099_lambda095"])
def test_advantages_and_returns_are_the_golden_ones(name):
    given, config, expected = case(name)
    advantages, returns = ppo.gae(
        given["token_rewards"], given["values"], given["mask"], config["gamma"], config["lam"]
    )
    close(advantages, expected["advantages"])
    close(returns * given["mask"], expected["returns"])


def test_actor_and_critic_from_scores_to_gradients():
    given, config, expected = case("e2e_ppo_actor_critic")
    mask, new = given["mask"], given["logp"].requires_grad_()
    values = given["values"].requires_grad_()
    rewards = ppo.token_rewards(given["rewards"], given["old_logp"], given["ref_logp"], mask, config["kl_coef"])
    advantages, returns = ppo.gae(rewards, given["old_values"], mask, config["gamma"], config["lam"])
    white = ppo.whiten(advantages, mask)
    policy = ppo.policy_loss(new, given["old_logp"], white, mask, 0.2, 0.2, dual=3.0)
    value = ppo.value_loss(values, given["old_values"], returns, mask, config["value_clip"])
    (policy + value).backward()
    close(rewards, expected["token_rewards"])
    close(advantages, expected["advantages_raw"])
    close(returns, expected["returns"])
    close(white, expected["advantages"])
    close(policy.detach(), expected["policy_loss"])
    close(new.grad, expected["grad_logp"])
    close(value.detach(), expected["value_loss"])
    close(values.grad, expected["grad_values"])


def test_the_dual_clip_bounds_negative_advantages_only():
    given, config, expected = case("loss_dual_clip")
    new = given["logp"].requires_grad_()
    loss = ppo.policy_loss(
        new, given["old_logp"], given["advantages"], given["mask"], config["eps_low"], config["eps_high"], 3.0
    )
    loss.backward()
    close(loss.detach(), expected["loss"])
    close(new.grad, expected["grad_logp"])


@pytest.mark.parametrize("response, expected", [(" 93.", 1.0), (" 41.", 0.3), (" 7.", 0.0), (" a lot", 0.0), ("", 0.0)])
def test_the_first_number_is_judged(response, expected):
    assert ppo.reward(response, ["17", "41", "58", "93"]) == expected


def test_padding_changes_no_number(model_folder):
    policy, _, critic, tokenizer = ppo.load(str(model_folder))
    critic.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([list(tokenizer("abc defgh")["input_ids"])])
    padded = torch.cat([torch.full((1, 5), tokenizer.pad_token_id), ids], 1)
    attention = torch.cat([torch.zeros(1, 5), torch.ones_like(ids)], 1).long()
    with torch.no_grad():
        for read in (lambda *a: ppo.score_tokens(policy, *a)[0], lambda *a: ppo.values_of(critic, *a)):
            alone, beside = read(ids, torch.ones_like(ids), 4), read(padded, attention, 4)
            assert alone.shape == (1, 4)
            torch.testing.assert_close(alone, beside, atol=0.05, rtol=0.02)  # the forward passes are bf16's
        logits = policy(ids).logits.log_softmax(-1)
        own = logits[0, -5:-1].gather(-1, ids[0, -4:, None])[:, 0]
        torch.testing.assert_close(
            ppo.score_tokens(policy, ids, torch.ones_like(ids), 4)[0][0], own, atol=0.1, rtol=0.05
        )


def test_a_rollout_is_whole_and_nothing_moves_the_reference(model_folder):
    torch.manual_seed(0)
    policy, reference, critic, tokenizer = ppo.load(str(model_folder))
    before = [weight.clone() for weight in reference.parameters()]
    found, score = ppo.rollout_of(policy, reference, critic, tokenizer, ppo.task(6, random.Random(0)))
    assert 0 <= score <= 1
    assert found.mask_BR.shape == found.old_BR.shape == found.advantages_BR.shape == (6, found.mask_BR.shape[1])
    assert (found.mask_BR[:, 0] == 1).all() and (found.mask_BR.diff(dim=1) <= 0).all()
    assert float((found.advantages_BR * (1 - found.mask_BR)).abs().max()) == 0
    assert float(found.values_BR.abs().max()) == 0  # the head begins at 0, so returns are rewards to go
    found.returns_BR += found.mask_BR  # there is something to learn, whatever a random model says
    optimizers = tuple(torch.optim.SGD(model.parameters(), lr=0.1) for model in (policy, critic))
    ppo.learn(policy, critic, optimizers, found)
    assert all(torch.equal(old, new) for old, new in zip(before, reference.parameters(), strict=True))
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    assert float(critic.score.weight.detach().abs().max()) > 0


def test_the_quick_mode_ends(model_folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["one_file_ppo.py", "--quick", "--model", str(model_folder)])
    ppo.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("reward" in line and "value loss" in line for line in lines)
