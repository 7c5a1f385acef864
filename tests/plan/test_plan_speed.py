"""Times by hand: operations, decode steps that run out, ranks and servers."""

from dataclasses import replace

import pytest

from partita.plan.batch import Lengths, batch_of
from partita.plan.calibrate import Learned, fixed_seconds
from partita.plan.scaling import Cluster, publish_bytes, rank_bytes, ring_bytes, scaled, step_bytes
from partita.plan.sizes import Sizes
from partita.plan.speed import (
    Machine,
    Reading,
    Seconds,
    Speed,
    Work,
    forward_flop,
    hours,
    learn_flop,
    mean_length,
    sample_seconds,
    seconds_of,
    speed_from_flop,
)
from partita.run import load_run_config
from partita.trainer import QUICKSTART

SIZES = Sizes(
    parameters=1000, products=600, active=600, layer=310, layers=2, hidden=8, inner=16, queries=4, keys=2, width=2,
    vocabulary=40, table=320, tied=True, common=True, head_norms=False,
)  # fmt: skip
SPEED = Speed(
    step=1.0, row=0.5, seen=0.0, context=0.0, prefill=0.01, learned=Reading(100, 50, 20), learn=6.0, fixed=0.5, forward=2.0,
    optimizer=0.25, publish=0.125, stop=None, source="made up",
)  # fmt: skip


def batch(*words: str, response: float = 3):
    config = load_run_config([QUICKSTART], ["train_dataset.batch_size=2", "gconfig.n_samples=2", *words]).value
    return batch_of(config, Lengths(10, 10, response, 4), ranks=config.allocation.learners)


def test_operations_by_hand():
    # 2 x 600 x 10 + 2 x 320 x 4, and 4 x 2 layers x 8 x 10 tokens x 20 / 2 that each sees
    assert forward_flop(SIZES, Reading(10, 4, 20)) == 12000 + 2560 + 6400
    assert learn_flop(SIZES, Reading(10, 4, 20)) == 3 * 20960
    assert learn_flop(SIZES, Reading(10, 4, 20), checkpointing=True) == 3 * 20960 + 18400
    adapted = replace(SIZES, adapters=20)
    assert learn_flop(adapted, Reading(10, 4, 20)) == 2 * 20960


def test_the_mean_of_lengths_that_are_cut():
    assert mean_length(0.5, 3) == pytest.approx(0.5 * 1 + 0.25 * 2 + 0.25 * 3)
    assert mean_length(None, 7) == mean_length(0.0, 7) == 7


def test_responses_of_one_length_take_as_many_steps():
    lengths = Lengths(10, 10, 4, 4)
    # prompts with the first token: 2 x 10 x 0.01; three steps of 4 rows: 1 + 4 x 0.5 each
    assert sample_seconds(SPEED, batch(response=4), lengths, 64) == pytest.approx(0.2 + 3 * 3)


def test_fewer_slots_take_as_many_steps_more():
    lengths = Lengths(10, 10, 4, 4)
    # 4 samples in 2 slots: twice three steps of 2 rows
    assert sample_seconds(SPEED, batch(response=4), lengths, 2) == pytest.approx(0.2 + 6 * 2)


def test_the_last_response_is_waited_for():
    one = sample_seconds(SPEED, batch(response=2), Lengths(10, 10, 2, 100), 64)
    # 4 rows that go on with chance 1/2 after each token: one of them does after k tokens with chance 1 - (1 - 2^-k)^4
    steps = sum(1 - (1 - 0.5**k) ** 4 for k in range(1, 100))
    assert one == pytest.approx(0.2 + steps * 1 + 4 * (2 - 1) * 0.5, rel=0.01)


def test_a_longer_context_takes_longer():
    slow = replace(SPEED, seen=0.1, context=10)
    lengths = Lengths(10, 10, 4, 4)
    extra = 4 * 0.1 * (1 + 2 + 3)  # 4 rows that see 11, 12 and 13 tokens
    assert sample_seconds(slow, batch(response=4), lengths, 64) == pytest.approx(9.2 + extra)


def work(step, lengths: Lengths) -> Work:
    return Work(step, lengths, 64, SIZES, None, 1, 0, False, False)


def test_phases_follow_from_operations():
    step, lengths = batch(response=4), Lengths(10, 10, 4, 4)
    found = seconds_of(SPEED, work(step, lengths))
    one = Reading(step.expected.read, 16, 14)
    share = forward_flop(SIZES, one) / forward_flop(SIZES, SPEED.learned)
    assert found.score == pytest.approx(2.0 * share)
    assert found.learn == pytest.approx(6.0 * share + 0.5 + 0.25)
    assert found.publish == 0.125
    assert found.rest == pytest.approx(0.03 * found.step)


def test_every_micro_batch_takes_its_fixed_time():
    lengths = Lengths(10, 10, 4, 4)
    whole, cut = batch(response=4), batch("actor.mb_spec.max_tokens_per_mb=16", response=4)
    assert (whole.actor.micro_batches, cut.actor.micro_batches) == (1, 2)
    apart = seconds_of(SPEED, work(cut, lengths)).learn - seconds_of(SPEED, work(whole, lengths)).learn
    assert apart == pytest.approx(0.5)


def test_without_a_model_the_machine_says_how_long():
    step, lengths = batch(response=4), Lengths(10, 10, 4, 4)
    speed = speed_from_flop(Machine(1e6, 1e5), SIZES, work(step, lengths), (2, 2))
    assert speed.step == pytest.approx(2 * 920 / 1e5)
    assert speed.learn == pytest.approx(learn_flop(SIZES, speed.learned) / 0.6e6)
    assert speed.optimizer == pytest.approx(28 * 1000 / 1e5)
    assert speed.fixed == pytest.approx(6 * 1000 / 1e5)
    wide = speed_from_flop(Machine(1e6, 1e5), SIZES, work(step, lengths), (2, 4))
    assert wide.fixed == 0  # nothing is rounded
    assert wide.step == speed.step
    assert speed.stop is None


def test_a_whole_critic_beside_adapters_takes_the_fixed_time_of_its_own_weights():
    lengths = Lengths(10, 10, 4, 4)
    step = batch_of(
        load_run_config([QUICKSTART], ["train_dataset.batch_size=2", "gconfig.n_samples=2"]).value, lengths, critic=True
    )
    some = replace(work(step, lengths), policy=replace(SIZES, adapters=20), critic=SIZES)
    apart = seconds_of(replace(SPEED, fixed=1.5), some).critic - seconds_of(SPEED, some).critic
    assert apart == pytest.approx(1.0)


@pytest.mark.parametrize(
    "small, large, fixed",
    [
        pytest.param((10, 2.5), (20, 4.5), 0.5, id="0.5 + 0.2 a token"),
        pytest.param((10, 1.0), (20, 0.9), 0.0, id="noise: the larger one was quicker"),
        pytest.param((10, 1.0), (20, 2.5), 0.0, id="noise: a line that begins below 0"),
        pytest.param((10, 2.5), (12, 2.9), 0.0, id="too close to tell"),
    ],
)
def test_a_line_through_two_passes(small, large, fixed):
    one, other = (Learned(Reading(tokens, 0, 0), seconds, 0, 0) for tokens, seconds in (small, large))
    assert fixed_seconds(SIZES, one, other) == pytest.approx(fixed)


def test_what_ranks_send_by_hand():
    assert ring_bytes(100, 4) == 75
    assert ring_bytes(100, 1) == 0
    step = batch("allocation.learners=2", "actor.mb_spec.max_tokens_per_mb=16", "actor.ppo_epochs=3")
    turns = 3 * step.actor.per_rank
    # 2 layers of 310 twice, 380 outside them once, gradients of all
    assert step_bytes(SIZES, step, Cluster(learners=2)) == turns * (2 * 4 * 620 + 4 * 380 + 4 * 1000) / 2
    assert step_bytes(SIZES, step, Cluster(learners=2, keeps=True)) == turns * (4 * 620 + 4 * 380 + 4 * 1000) / 2
    rounded = Cluster(learners=2, width=2)
    assert step_bytes(SIZES, step, rounded) == turns * (2 * 2 * 620 + 4 * 380 + 4 * 1000) / 2
    assert step_bytes(replace(SIZES, wide=True), step, rounded) == step_bytes(SIZES, step, Cluster(learners=2))
    assert publish_bytes(SIZES, 2, Cluster(servers=3)) == 6000
    assert publish_bytes(replace(SIZES, adapters=20), 2, Cluster(servers=3)) == 120


def test_ranks_share_the_micro_batches_and_servers_the_responses():
    one = Seconds(sample=8, score=2, critic=0, learn=6, publish=1, rest=1)
    step = batch("allocation.learners=2")
    found = scaled(one, SIZES, step, Cluster(learners=2, servers=2, link=1e6), 2)
    assert (found.sample, found.score, found.learn, found.publish) == (4, 1, 3, 1)
    assert found.communicate == pytest.approx((step_bytes(SIZES, step, Cluster(learners=2)) + 4000) / 1e6)
    shared = scaled(one, SIZES, step, Cluster(learners=2, learner=0.5, link=1e6), 2)
    assert (shared.sample, shared.learn) == (16, 6)  # two processes on the cores of one gain nothing


def test_a_rank_holds_its_part_and_what_it_gathers():
    assert rank_bytes(SIZES, 1, 2) == 16 * 1000
    assert rank_bytes(SIZES, 4, 2) == 4000 + 4 * 380 + 2 * 2 * 310 + 4 * 310  # two layers, and the gradient of one


@pytest.mark.parametrize(
    "seconds, told", [(3.21, "3.2 s"), (600.0, "10 min"), (7200.0, "2.0 h"), (float("inf"), "unknown")]
)
def test_times_are_readable(seconds: float, told: str):
    assert hours(seconds) == told
