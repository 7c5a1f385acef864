"""What samples and tokens are worth: outcome, reward-to-go, GAE with and without a bootstrap, steps; and which unit
statistics take."""

import math

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.credit import Gae, Outcome, ProcessRewards, RewardToGo
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.norm import Center, Norm, Scale

GROUP = NormConfig(mean_level="group", std_level=None)
NAN = math.nan


def of(padded, mask, rewards, **streams):
    batch = padded({"mask": mask, "rewards": rewards}).batch()
    return batch.with_(score_S=torch.tensor(rewards, dtype=torch.float64), **streams)


def worth(credit, batch):
    return credit(batch, batch.valid_S)


def test_an_outcome_is_one_number_per_sample_even_without_tokens(padded):
    found = worth(Outcome(), of(padded, [[1.0, 1.0], [0.0, 0.0]], [1.0, 2.0]))
    assert found.value.tolist() == [1.0, 2.0]
    assert (found.per_token, found.returns_T) == (False, None)


def test_what_is_paid_on_tokens_is_part_of_the_outcome(padded):
    batch = of(padded, [[1.0, 1.0], [1.0, 0.0]], [1.0, 2.0], token_rewards_T=torch.tensor([-0.1, -0.2, -0.5]))
    assert worth(Outcome(), batch).value.tolist() == pytest.approx([0.7, 1.5])


def test_reward_to_go_pays_the_last_token_first(padded):
    batch = of(padded, [[1.0, 1.0], [1.0, 0.0]], [1.0, 2.0])
    found = worth(RewardToGo(0.5), batch)
    assert found.value.tolist() == found.returns_T.tolist() == [0.5, 1.0, 2.0]
    assert found.per_token


@pytest.mark.parametrize("credit", [RewardToGo(0.0), Gae(1.0, 0.0)], ids=["to go", "gae"])
def test_a_score_is_paid_on_the_token_that_ends_the_response_whatever_follows_it(padded, credit):
    """[t0, t1, t2, eos, pad, pad], where pad may be the same id, and a response that fills its row: a score on the place behind
    the end would be masked out, and no reward would reach the policy (TRL #3750, DeepSpeedExamples #672)."""
    mask = [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0] * 6]
    kl_T = torch.tensor([-0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.0, -0.1, 0.0, 0.0], dtype=torch.float64)
    batch = of(padded, mask, [2.0, 2.0], values_T=torch.zeros(10, dtype=torch.float64))
    assert worth(credit, batch).value.tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    shaped_T = worth(credit, batch.with_(token_rewards_T=-kl_T)).value
    assert shaped_T[:4].sum().item() == pytest.approx(2.0 - kl_T[:4].sum().item())
    assert shaped_T[4:].sum().item() == pytest.approx(2.0 - kl_T[4:].sum().item())


def test_an_empty_response_still_counts_in_its_group(padded):
    batch = padded({"mask": [[1.0], [0.0]], "rewards": [1.0, 0.0]}).batch()
    credited = compose(AlgorithmKeys(adv_norm=GROUP), n_samples=2, max_new_tokens=4).credit(batch)
    assert credited.advantages_T.tolist() == [0.5]  # over tokens it would be alone in its group


def test_credit_that_varies_by_token_is_normalised_over_tokens(golden, padded, close):
    case = golden("adv_token_weighted_norm")
    rows = padded(case["inputs"])
    norm = NormConfig(mean_level="batch", std_level="batch", eps=1e-5)
    by_token = AlgorithmKeys(adv_norm=norm, credit="reward_to_go")
    by_sample = AlgorithmKeys(adv_norm=norm)
    asked = AlgorithmKeys(adv_norm=NormConfig(unit="token", eps=1e-5))
    for keys, name in ((by_token, "token"), (by_sample, "sequence"), (asked, "token")):
        credited = compose(keys, n_samples=2, max_new_tokens=4).credit(rows.batch())
        close(rows.padded(credited.advantages_T), case["expected"][f"{name}_batch_norm"])


def test_several_rows_of_one_trajectory_share_its_advantage(padded):
    # a trajectory rendered twice is one sample: its tokens stand together, and it counts once in the baseline
    batch = padded({"mask": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], "rewards": [2.0, 0.0]}).batch()
    credited = compose(AlgorithmKeys(adv_norm=GROUP), n_samples=2, max_new_tokens=4).credit(batch)
    assert credited.advantages_T.tolist() == [1.0, 1.0, 1.0, -1.0]


# ---- GAE


@pytest.fixture
def two(padded):
    """Two tokens with outcome 1 and one token with outcome 2, the second sample cut at the limit."""
    return of(
        padded, [[1.0, 1.0], [1.0, 0.0]], [1.0, 2.0], values_T=torch.tensor([0.5, 0.25, 1.0]),
        bootstrap_value_S=torch.tensor([8.0, 4.0]), truncated_S=torch.tensor([False, True]),
    )  # fmt: skip


def test_gae_by_hand(two):
    found = worth(Gae(0.5, 0.5), two)
    # deltas: 0.5·0.25 - 0.5 = -0.375, 1 - 0.25 = 0.75; 2 - 1 = 1
    assert found.value.tolist() == pytest.approx([-0.375 + 0.25 * 0.75, 0.75, 1.0])
    assert found.returns_T.tolist() == pytest.approx([0.3125, 1.0, 2.0])
    assert found.per_token


def test_a_bootstrap_is_for_samples_that_were_cut(two):
    found = worth(Gae(0.5, 1.0, bootstrap=True), two)
    assert found.value.tolist() == pytest.approx([-0.375 + 0.5 * 0.75, 0.75, 2 + 0.5 * 4 - 1])
    with pytest.raises(ValueError, match="bootstrap_value_S"):
        worth(Gae(0.5, 1.0, bootstrap=True), two.with_(bootstrap_value_S=None))


def test_at_the_ends_of_lambda_the_outcome_or_the_critic_decides(two):
    assert worth(Gae(1.0, 1.0), two).value.tolist() == pytest.approx([0.5, 0.75, 1.0])  # R - V
    assert worth(Gae(1.0, 0.0), two).value.tolist() == pytest.approx([-0.25, 0.75, 1.0])  # one step of the critic
    with pytest.raises(ValueError, match="values_T"):
        worth(Gae(1.0, 1.0), two.with_(values_T=None))


def test_returns_are_fixed_before_the_advantages_are_whitened(two, close):
    keys = AlgorithmKeys(credit="gae", adv_norm=NormConfig(eps=0.0))
    credited = compose(keys, n_samples=2, max_new_tokens=4).credit(two)
    close(credited.returns_T, [1.0, 1.0, 2.0])
    assert float(credited.advantages_T.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(credited.advantages_T.std()) == pytest.approx(1.0)


def test_whitening_one_token_gives_zero(padded):
    batch = padded({"mask": [[1.0]], "rewards": [1.0]}).batch(values_T=torch.tensor([0.25]))
    keys = AlgorithmKeys(credit="gae", adv_norm=NormConfig())
    assert compose(keys, n_samples=1, max_new_tokens=4).credit(batch).advantages_T.tolist() == [0.0]


# ---- steps


def test_steps_of_a_group_are_normalised_together_and_summed_from_the_token_on(padded, close):
    # sample 0: a step of 1 on its second token, one of 3 on its third; sample 1: one of 2 on its only token
    steps_T = torch.tensor([NAN, 1.0, 3.0, 2.0])
    batch = of(padded, [[1.0] * 3, [1.0, 0.0, 0.0]], [9.0, 9.0], step_rewards_T=steps_T)
    found = worth(ProcessRewards(Norm(Center(True), Scale(True, eps=0.0))), batch)
    close(found.value, [0.0, 0.0, 1.0, 0.0])  # z-scores of 1, 3, 2: -1, 1, 0; the outcome has no say
    assert found.per_token
    close(worth(ProcessRewards(None), batch).value, [4.0, 4.0, 3.0, 2.0])


def test_a_sample_without_steps_and_the_steps_of_another_group(padded, close):
    steps_T = torch.tensor([1.0, NAN, 3.0, 5.0])
    batch = of(padded, [[1.0]] * 4, [0.0] * 4, step_rewards_T=steps_T, prompt_S=torch.tensor([0, 0, 0, 1]))
    centred = ProcessRewards(Norm(Center(True), None))
    close(worth(centred, batch).value, [-1.0, 0.0, 1.0, 0.0])
    counted_S = torch.tensor([True, True, False, True])
    close(centred(batch, counted_S).value, [0.0, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="step_rewards_T"):
        worth(centred, batch.with_(step_rewards_T=None))


def test_a_step_reward_of_infinity_takes_its_sample_out(padded):
    steps_T = torch.tensor([math.inf, 1.0, 3.0])
    batch = of(padded, [[1.0]] * 3, [0.0] * 3, step_rewards_T=steps_T)
    keys = AlgorithmKeys(credit="process", adv_norm=GROUP)
    credited = compose(keys, n_samples=3, max_new_tokens=4).credit(batch)
    assert credited.valid_S.tolist() == [False, True, True]
    assert credited.advantages_T.tolist() == [0.0, -1.0, 1.0]


def test_a_bootstrap_value_that_is_no_number_takes_its_sample_out_where_it_is_read(two):
    keys = AlgorithmKeys(credit="gae", bootstrap_truncated=True, adv_norm=NormConfig())
    algorithm = compose(keys, n_samples=2, max_new_tokens=4)
    for broken, valid in (([NAN, 4.0], [True, True]), ([8.0, NAN], [True, False]), ([8.0, math.inf], [True, False])):
        credited = algorithm.credit(two.with_(bootstrap_value_S=torch.tensor(broken)))
        assert credited.valid_S.tolist() == valid
        assert bool(torch.isfinite(credited.advantages_T).all())


def test_credits_say_which_streams_they_read():
    needs = {type(credit): credit.needs for credit in (Outcome(), RewardToGo(1.0), Gae(1.0, 1.0), ProcessRewards(None))}
    assert needs == {Outcome: set(), RewardToGo: set(), Gae: {"values"}, ProcessRewards: {"step_rewards"}}
