"""What samples and tokens are worth, and which unit statistics take."""

import torch

from partita.algo.compose import compose
from partita.algo.credit import Outcome, RewardToGo
from partita.algo.keys import AlgorithmKeys, NormConfig


def test_an_outcome_is_one_number_per_sample_even_without_tokens(padded):
    batch = padded({"mask": [[1.0, 1.0], [0.0, 0.0]], "rewards": [1.0, 2.0]}).batch()
    worth = Outcome()(batch.with_(score_S=torch.tensor([1.0, 2.0])))
    assert worth.value.tolist() == [1.0, 2.0]
    assert not worth.per_token


def test_reward_to_go_pays_the_last_token_first(padded):
    batch = padded({"mask": [[1.0, 1.0], [1.0, 0.0]], "rewards": [1.0, 2.0]}).batch()
    worth = RewardToGo(0.5)(batch.with_(score_S=torch.tensor([1.0, 2.0])))
    assert worth.value.tolist() == [0.5, 1.0, 2.0]
    assert worth.per_token


def test_an_empty_response_still_counts_in_its_group(padded):
    batch = padded({"mask": [[1.0], [0.0]], "rewards": [1.0, 0.0]}).batch()
    norm = NormConfig(mean_level="group", std_level=None)
    credited = compose(AlgorithmKeys(adv_norm=norm), n_samples=2, max_new_tokens=4).credit(batch)
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
    norm = NormConfig(mean_level="group", std_level=None)
    credited = compose(AlgorithmKeys(adv_norm=norm), n_samples=2, max_new_tokens=4).credit(batch)
    assert credited.advantages_T.tolist() == [1.0, 1.0, 1.0, -1.0]
