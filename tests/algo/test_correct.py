"""Corrections: weights and masks by hand for every kind, level and bound; when they act; denominators; no gradient."""

import math

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.correct import Drift, DropDrifted, Inside, SecondMoment, Weighted
from partita.algo.keys import AlgorithmKeys, CorrectionConfig
from partita.algo.tokens import Current

WEIGHTS, LENGTHS = [3.0, 0.5, 1.0, 6.0], [3, 1]  # of the first sample: product 1.5, geometric mean 1.1447


@pytest.fixture
def drift():
    """Tokens whose sampler gave them these fractions of the old policy's probability."""

    def of(weights=WEIGHTS, lengths=LENGTHS, *, counted=None, advantages=None, steps=None):
        total = len(weights)
        return Drift(
            torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
            len(lengths),
            torch.ones(total, dtype=torch.bool) if counted is None else torch.tensor(counted),
            torch.ones(total) if advantages is None else torch.tensor(advantages),
            torch.tensor(weights, dtype=torch.float64).log(),
            None if steps is None else torch.tensor(steps, dtype=torch.float64),
        )

    return of


@pytest.mark.parametrize(
    ("part", "weights", "kept"),
    [
        (Weighted(), [3.0, 0.5, 1.0, 6.0], [1, 1, 1, 1]),
        (Weighted(cap=2.0), [2.0, 0.5, 1.0, 2.0], [1, 1, 1, 1]),  # clamped: truncated importance sampling
        (Weighted(cap=5.0, mask=True), [3.0, 0.5, 1.0, 0.0], [1, 1, 1, 0]),
        (Weighted(cap=3.0 + 1e-9, mask=True), [3.0, 0.5, 1.0, 0.0], [1, 1, 1, 0]),
        (Weighted(cap=2.0, product=True), [1.5, 1.5, 1.5, 2.0], [1, 1, 1, 1]),
        (Weighted(cap=2.0, product=True, mask=True), [1.5, 1.5, 1.5, 0.0], [1, 1, 1, 0]),
        (Inside("token", 0.6, 5.0), [3.0, 0.0, 1.0, 0.0], [1, 0, 1, 0]),
        (Inside("sequence", 0.5, 2.0), [3.0, 0.5, 1.0, 0.0], [1, 1, 1, 0]),  # kept sequences keep their tokens' weights
        (Inside("geometric", 0.9, 1.1), [0.0] * 4, [0] * 4),
        (Inside("geometric", 1.1, 1.2), [3.0, 0.5, 1.0, 0.0], [1, 1, 1, 0]),
        # squared logs: 1.2069, 0.4805, 0, 3.2104; means of the smallest: 0, 0.2402, 0.5625, 1.2245
        (SecondMoment(0.25), [0.0, 1.0, 1.0, 0.0], [0, 1, 1, 0]),
        (SecondMoment(0.57), [1.0, 1.0, 1.0, 0.0], [1, 1, 1, 0]),
        (SecondMoment(2.0), [1.0] * 4, [1] * 4),
    ],
    ids=str,
)
def test_weights_and_masks(drift, close, part, weights, kept):
    found = part(drift())
    close(found.weight_T, weights)
    assert found.kept_T.int().tolist() == kept


def test_tokens_out_of_the_loss_are_in_no_sequence_and_no_moment(drift, close):
    counted = [True, False, True, True]
    close(Inside("sequence", 2.9, 3.1)(drift(counted=counted)).weight_T[[0, 2, 3]], [3.0, 1.0, 0.0])
    close(Weighted(cap=9.0, product=True)(drift(counted=counted)).weight_T[0], 3.0)
    found = SecondMoment(0.25)(drift([1.0, 1e9, math.e, 1.0], counted=counted))
    assert found.kept_T[[0, 2, 3]].tolist() == [True, False, True]


def test_equal_moments_stand_or_fall_together(drift):
    # 0, 0, 1, 1: three of them have a mean of 1/3, all four of 1/2; one of two equals cannot be kept
    assert SecondMoment(0.4)(drift([1.0, math.e, 1 / math.e, 1.0])).kept_T.tolist() == [True, False, False, True]
    assert SecondMoment(0.6)(drift([1.0, math.e, 1 / math.e, 1.0])).kept_T.tolist() == [True] * 4
    assert SecondMoment(0.01)(drift([math.e] * 4)).kept_T.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("advantages", "steps", "kept"),
    [
        ([-1.0] * 4, [0.3, 0.0, 0.3, 0.1], [0, 0, 0, 1]),  # means 0.2 and 0.1; the bound itself is kept
        ([1.0] * 4, [0.3, 0.0, 0.3, 9.0], [1, 1, 1, 1]),  # only what is pushed down
        ([-1.0] * 4, [-9.0, 0.0, 0.0, -9.0], [1, 1, 1, 1]),  # only what the policy has left behind
        ([2.0, -1.0, -1.5, -1.0], [0.3] * 4, [0, 0, 0, 0]),  # the sign of a sample is that of its sum
        ([3.0, -1.0, -1.5, 0.0], [0.3] * 4, [1, 1, 1, 1]),
    ],
)
def test_drifted_sequences_are_dropped_where_they_are_pushed_down(drift, advantages, steps, kept):
    found = DropDrifted(0.1)(drift(advantages=advantages, steps=steps))
    assert found.kept_T.int().tolist() == kept
    assert found.weight_T.int().tolist() == kept


@pytest.mark.parametrize(
    "part", [Weighted(), Weighted(cap=2.0), Inside("sequence", 0.5, 2.0), SecondMoment(1.0)], ids=str
)
def test_a_thousand_nats_are_finite(drift, part):
    far = drift([1.0] * 4)
    far = Drift(far.seq_T, 2, far.counted_T, far.advantages_T, torch.tensor([1e3, -1e3, 0.0, 1e30]).double())
    assert bool(torch.isfinite(part(far).weight_T).all())


# ---- inside an algorithm


def stepped(padded, correction, *, weights=WEIGHTS, ratios=(1.0,) * 4, advantages=(1.0,) * 4, **keys):
    """Weighted batch, loss and gradient of one step on two samples of 3 and 1 tokens."""
    prox_T = torch.full((4,), -1.0, dtype=torch.float64)
    batch = padded({"mask": [[1.0] * 3, [1.0, 0.0, 0.0]], "rewards": [0.0] * 2}).batch(
        prox_T=prox_T, behaviour_T=prox_T - torch.tensor(weights, dtype=torch.float64).log(),
        advantages_T=torch.tensor(advantages, dtype=torch.float64),
    )  # fmt: skip
    algorithm = compose(AlgorithmKeys(correction=correction, **keys), n_samples=2, max_new_tokens=4)
    batch = algorithm.weights(batch)
    logprobs_T = (prox_T + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss = algorithm.loss(batch, Current(logprobs_T))
    (gradient_T,) = torch.autograd.grad(loss.value, logprobs_T)
    return batch, loss, gradient_T


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (CorrectionConfig("decoupled"), [3.0, 0.5, 1.0, 6.0]),
        (CorrectionConfig("decoupled", high=2.5), [2.5, 0.5, 1.0, 2.5]),
        (CorrectionConfig("decoupled", high=2.5, action="mask"), [0.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("decoupled", high=2.5, level="sequence"), [1.5, 1.5, 1.5, 2.5]),
        (CorrectionConfig("tis"), [2.0, 0.5, 1.0, 2.0]),
        (CorrectionConfig("tis", high=4.0), [3.0, 0.5, 1.0, 4.0]),
        (CorrectionConfig("tis", level="sequence"), [1.5, 1.5, 1.5, 2.0]),
        (CorrectionConfig("icepop"), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("icepop", low=0.6, high=2.0), [0.0, 0.0, 1.0, 0.0]),
        (CorrectionConfig("mis"), [0.0] * 4),
        (CorrectionConfig("mis", low=1.1, high=1.2), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("mis", level="sequence"), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("m2po", threshold=0.57), [1.0, 1.0, 1.0, 0.0]),
        (CorrectionConfig("m2po"), [0.0, 0.0, 1.0, 0.0]),
        (CorrectionConfig("opsm"), [1.0] * 4),
    ],
    ids=str,
)
def test_each_kind_by_its_keys(padded, close, correction, expected):
    batch, loss, gradient_T = stepped(padded, correction)
    close(gradient_T, -torch.tensor(expected) / 4)  # four tokens, ratio 1, A = 1
    close(loss.stats["correction/weight"].sum, sum(expected))
    close(loss.stats["correction/weight_squared"].sum, sum(weight**2 for weight in expected))
    close(loss.stats["correction/masked"].sum, expected.count(0.0))
    assert [float(stat.count) for name, stat in loss.stats.items() if name.startswith("correction")] == [4.0] * 3
    assert correction.kind == "opsm" or not batch.correction_T.requires_grad


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        (CorrectionConfig("decoupled", high=5.0, action="mask"), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("icepop"), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("mis", level="sequence"), [3.0, 0.5, 1.0, 0.0]),
        (CorrectionConfig("m2po", threshold=0.57), [1.0, 1.0, 1.0, 0.0]),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("mode", "original", "kept"),
    [
        ("token_mean", [1 / 4] * 4, [1 / 3] * 4),
        ("seq_mean_token_mean", [1 / 6] * 3 + [1 / 2], [1 / 3] * 3 + [0.0]),  # a sequence that is gone does not count
        ("prompt_token_mean", [1 / 4] * 4, [1 / 3] * 4),
    ],
)
def test_what_is_masked_stays_in_the_denominator_unless_asked(padded, close, correction, weights, mode, original, kept):
    for denominator, expected in (("original", original), ("kept", kept)):
        asked = CorrectionConfig(
            correction.kind,
            correction.level,
            correction.low,
            correction.high,
            correction.threshold,
            correction.action,
            denominator,
        )
        _, _, gradient_T = stepped(padded, asked, loss_agg_mode=mode)
        close(gradient_T, [-w * x for w, x in zip(weights, expected, strict=True)])


def test_a_sequence_without_a_kept_token_counts_as_empty(padded, close):
    keys = {"loss_agg_mode": "seq_mean_token_mean", "count_empty_rows": False}
    _, _, gradient_T = stepped(padded, CorrectionConfig("icepop", denominator="kept"), **keys)
    close(gradient_T, [-1.0, -1 / 6, -1 / 3, 0.0])


def test_a_sample_that_was_empty_before_any_mask_still_counts(padded, close):
    keys = AlgorithmKeys(correction=CorrectionConfig("icepop", denominator="kept"), loss_agg_mode="seq_mean_token_mean")
    prox_T = torch.zeros(3)
    batch = padded({"mask": [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], "rewards": [0.0] * 3}).batch(
        prox_T=prox_T, behaviour_T=prox_T - torch.tensor([1.0, 1.0, 6.0]).log(), advantages_T=torch.ones(3)
    )
    batch = compose(keys, n_samples=3, max_new_tokens=4).weights(batch)
    close(batch.weight_T, [1 / 6, 1 / 6, 1 / 3])
    close(
        batch.weight_T * batch.scale_T * batch.correction_T, [1 / 4, 1 / 4, 0.0]
    )  # two samples: the first, and the one without tokens


def test_the_decoupled_switch_masks_above_five_unless_a_correction_says_how(padded, close):
    weigh = {"use_decoupled_loss": True}
    close(stepped(padded, None, **weigh)[2] * -4, [3.0, 0.5, 1.0, 0.0])
    close(stepped(padded, CorrectionConfig("decoupled"), **weigh)[2] * -4, WEIGHTS)
    close(stepped(padded, CorrectionConfig("tis"), **weigh)[2] * -4, [2.0, 0.5, 1.0, 2.0])
    # a mask alone does not weigh, so both act
    close(stepped(padded, CorrectionConfig("m2po", threshold=0.25), **weigh)[2] * -4, [0.0, 0.5, 1.0, 0.0])


def test_the_weight_is_of_the_old_policy_and_has_no_gradient(padded, close):
    """Sampled at -1.2, scored at -1.0, now -0.5: the weight is exp(0.2), the ratio exp(0.5)."""
    weights, ratios = [math.exp(0.2)] * 4, [math.exp(0.5)] * 4
    _, loss, gradient_T = stepped(padded, CorrectionConfig("tis"), weights=weights, ratios=ratios, gate="open")
    close(loss.stats["correction/weight"].sum / 4, 1.221403)  # of the current policy it would be 2.013753, capped at 2
    close(loss.stats["ratio"].sum / 4, 1.648721)
    close(loss.value, -1.221403 * 1.648721)
    close(gradient_T.sum(), -1.221403 * 1.648721)  # the ratio's alone


def test_drift_in_the_loss_depends_on_where_the_policy_is_now(padded, close):
    correction = CorrectionConfig("opsm", threshold=0.1)
    down = {"advantages": [-1.0] * 4, "gate": "open", "weights": [1.0] * 4}
    _, _, still_T = stepped(padded, correction, **down)
    close(still_T, [0.25] * 4)
    batch, loss, gone_T = stepped(padded, correction, ratios=[0.8, 0.8, 0.8, 0.95], **down)
    assert batch.correction_T is None
    close(gone_T, [0.0, 0.0, 0.0, 0.25 * 0.95])
    close(loss.stats["correction/masked"].sum, 3.0)


def test_drift_is_from_the_sampler_so_an_engine_that_disagrees_counts(padded, close):
    correction = CorrectionConfig("opsm", threshold=0.1)
    _, _, gradient_T = stepped(padded, correction, advantages=[-1.0] * 4, weights=[0.8, 0.8, 0.8, 1.25])
    close(gradient_T, [0.0, 0.0, 0.0, 0.25])  # on policy: no step has been taken yet


def test_what_is_known_before_the_step_and_what_only_in_the_loss_multiply(padded, close):
    correction = CorrectionConfig("opsm", threshold=0.1)
    sides = {"advantages": [-1.0] * 4, "ratios": [0.95, 0.95, 0.95, 0.4], "gate": "open", "use_decoupled_loss": True}
    batch, loss, gradient_T = stepped(padded, correction, weights=[3.0, 0.5, 9.0, 2.0], **sides)
    close(batch.correction_T, [3.0, 0.5, 0.0, 2.0])
    close(gradient_T * 4 / 0.95, [3.0, 0.5, 0.0, 0.0])
    close(loss.stats["correction/weight"].sum, 3.5)


def test_a_penalty_keeps_its_denominator_where_the_objective_s_is_that_of_what_is_kept(padded, close):
    """Masked tokens still feel the leash, so it is a mean over all of them."""
    correction = CorrectionConfig("icepop", denominator="kept")
    leash = {"kl_penalty_coef": 1.0, "kl_penalty_estimator": "k1", "gate": "open", "advantages": [0.0] * 4}
    _, _, gradient_T = stepped(padded, correction, **leash)
    close(gradient_T, [-0.25] * 4)


def test_needs_say_what_must_be_scored_before_the_step():
    def needs(**keys):
        return compose(AlgorithmKeys(**keys), n_samples=2, max_new_tokens=4).needs

    for kind in ("decoupled", "tis", "icepop", "mis", "m2po"):
        assert needs(correction=CorrectionConfig(kind)) == {"prox", "behaviour"}
    assert needs(correction=CorrectionConfig("opsm")) == frozenset()
    assert needs(use_decoupled_loss=True) == {"prox", "behaviour"}
    assert needs(use_decoupled_loss=True, prox_logp_method="loglinear") == {"behaviour"}


def test_the_old_policy_is_read_before_it_is_dropped(padded):
    batch = padded({"mask": [[1.0]], "rewards": [1.0]}).batch(
        behaviour_T=torch.tensor([-1.0]), advantages_T=torch.ones(1)
    )
    algorithm = compose(AlgorithmKeys(correction=CorrectionConfig("tis")), n_samples=1, max_new_tokens=4)
    with pytest.raises(ValueError, match="prox_T"):
        algorithm.weights(batch)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Weighted(), ["w_it = ", "π_old", "μ"]),
        (Weighted(cap=2.0), ["min(", "2"]),
        (Weighted(cap=5.0, mask=True), ["0 above 5"]),
        (Weighted(cap=5.0, product=True), ["Π_t"]),
        (Inside("geometric", 0.99, 1.01), ["0.99", "1.01", "1/|o_i|"]),
        (DropDrifted(0.1), ["0.1", "A_i < 0"]),
        (SecondMoment(0.04), ["0.04"]),
    ],
    ids=str,
)
def test_formulas_have_their_bounds(part, words):
    assert all(word in part.formula() for word in words)
