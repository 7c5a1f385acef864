"""The clip centre: the trainer's own old policy, the sampler's, or what lies between them by weight versions."""

import pytest
import torch

from partita.algo.center import Behaviour, LogLinear, Recomputed
from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, CorrectionConfig
from partita.algo.tokens import Current


@pytest.fixture
def batch(padded):
    return padded({"mask": [[1.0, 1.0]], "rewards": [1.0]}).batch(
        prox_T=torch.tensor([-1.0, -2.0]), behaviour_T=torch.tensor([-1.5, -1.0]), version_T=torch.tensor([3, 5]),
        advantages_T=torch.ones(2), train_version=6,
    )  # fmt: skip


def test_the_scored_stream_or_where_nothing_has_moved_the_policy_itself(batch):
    logprobs_T = torch.tensor([-0.5, -0.7], requires_grad=True)
    assert Recomputed()(batch, logprobs_T).tolist() == [-1.0, -2.0]
    at_start = Recomputed()(batch.with_(prox_T=None), logprobs_T)
    assert torch.equal(at_start, logprobs_T)
    assert not at_start.requires_grad


def test_the_sampler_s_own_log_probs(batch):
    assert Behaviour()(batch, torch.zeros(2)).tolist() == [-1.5, -1.0]
    with pytest.raises(ValueError, match="behaviour_T"):
        Behaviour()(batch.with_(behaviour_T=None), torch.zeros(2))


@pytest.mark.parametrize(
    ("version", "trained", "alpha"),
    [
        (5, 6, 0.0),  # sampled by the weights of before this step: the sampler is the old policy
        (4, 6, 1 / 2),
        (3, 6, 2 / 3),
        (0, 6, 5 / 6),
        (6, 6, 0.0),  # sampled after the step began
        (7, 6, 0.0),
        (-1, 6, 0.0),  # not sampled at all
    ],
)
def test_how_far_the_old_policy_is_from_the_sampler(version, trained, alpha):
    assert LogLinear().alpha(torch.tensor([version]), trained).tolist() == pytest.approx([alpha])


def test_between_the_sampler_and_the_policy(batch, close):
    logprobs_T = torch.tensor([-0.6, -0.7], dtype=torch.float64, requires_grad=True)
    found = LogLinear()(batch, logprobs_T)
    close(found, [-1.5 + 2 / 3 * 0.9, -1.0])  # every token by its own version
    assert not found.requires_grad


def test_golden_interpolation(golden, padded, close):
    case = golden("offpolicy_prox_loglinear")
    rows = padded(case["inputs"])
    batch = rows.batch(
        behaviour_T=rows.tokens("behaviour_logp"), version_T=rows.tokens("versions").long(),
        train_version=case["inputs"]["current_version"],
    )  # fmt: skip
    close(rows.padded(LogLinear()(batch, rows.tokens("logp"))), case["expected"]["prox_logp"])


def test_versions_must_be_there(batch):
    with pytest.raises(ValueError, match="train_version"):
        LogLinear()(batch.with_(train_version=None), torch.zeros(2))
    with pytest.raises(ValueError, match="version_T"):
        LogLinear()(batch.with_(version_T=None), torch.zeros(2))


def ratio_of(keys, batch, logprobs_T):
    algorithm = compose(keys, n_samples=1, max_new_tokens=4)
    stats = algorithm.loss(algorithm.weights(batch), Current(logprobs_T)).stats
    return algorithm.needs, float(stats["ratio"].sum)


def test_keys_say_which_and_what_must_be_scored(batch):
    logprobs_T = torch.tensor([-0.6, -0.7], dtype=torch.float64)
    for keys, needs, centre in (
        (AlgorithmKeys(), set(), [-1.0, -2.0]),
        (AlgorithmKeys(recompute_logprob=False), {"behaviour"}, [-1.5, -1.0]),
        (AlgorithmKeys(prox_logp_method="loglinear"), {"behaviour"}, [-0.9, -1.0]),
    ):
        found, total = ratio_of(keys, batch, logprobs_T)
        assert found == needs
        assert total == pytest.approx(float((logprobs_T - torch.tensor(centre)).exp().sum()), rel=1e-6)
    assert {part.scored for part in (Behaviour(), LogLinear())} == {False}
    assert Recomputed().scored


def test_the_weight_of_an_interpolated_centre_is_taken_in_the_loss(batch, close):
    """No pass has scored the old policy, so the weight π_prox/μ is known only once the policy has spoken."""
    keys = AlgorithmKeys(prox_logp_method="loglinear", correction=CorrectionConfig("decoupled"), gate="open")
    algorithm = compose(keys, n_samples=1, max_new_tokens=4)
    weighted = algorithm.weights(batch.with_(prox_T=None))
    assert weighted.correction_T is None
    logprobs_T = torch.tensor([-0.6, -0.7], dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(weighted, Current(logprobs_T))
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    # w · ρ = prox/μ · π/prox = π/μ; the weight is constant, so that is the gradient too
    close(gradient_T, -(logprobs_T - batch.behaviour_T).exp() / 2)
    close(loss.stats["correction/weight"].sum, torch.tensor([2 / 3 * 0.9, 0.0]).exp().sum())
