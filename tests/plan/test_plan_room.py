"""What fits where, and what to change where it does not."""

import pytest

from partita.plan.memory import Memory, Part
from partita.plan.room import GIB, Change, Holding, Room, advice, changed, ladders, main_memory, need, refusal, resident
from partita.run import load_run_config
from partita.trainer import QUICKSTART


def config(*words: str):
    return load_run_config([QUICKSTART], list(words)).value


def holding(kind: str, count: int, gib: float) -> Holding:
    return Holding(kind, f"{kind} of {gib}", count, Memory((Part("all", gib * GIB),)))


HELD = (holding("learner", 1, 10), holding("learner", 3, 6), holding("server", 2, 4))


@pytest.mark.parametrize("nodes, gib", [(1, 10 + 3 * 6 + 2 * 4), (2, 10 + 6 + 4), (4, 10 + 4)])
def test_processes_of_a_machine_are_added_up(nodes: int, gib: int):
    assert need(HELD, Room(0, "", on_cpu=True), nodes) == gib * GIB


def test_each_process_has_a_gpu_of_its_own():
    assert need(HELD, Room(0, "", on_cpu=False), 1) == 10 * GIB


def test_this_machine_has_memory_and_this_process_some_of_it():
    assert 0 < resident() < main_memory() < 1e15


def test_the_mildest_step_that_is_enough_is_named():
    asked = config("actor.mb_spec.max_tokens_per_mb=8192", "scheduler.type=ray")

    def needed(one) -> float:  # a byte for each token, a fifth of it with checkpointing, over the learners
        tokens = one.actor.mb_spec.max_tokens_per_mb * (0.2 if one.actor.gradient_checkpointing else 1)
        return tokens / one.allocation.learners

    found = advice(asked, Room(2100, "", on_cpu=True), needed)
    assert [one.words for one in found] == [
        ("actor.mb_spec.max_tokens_per_mb=2048",),
        ("actor.gradient_checkpointing=true",),
        ("allocation.learners=4", "cluster.nodes=4"),
    ]
    assert [one.need for one in found] == [2048, 8192 * 0.2, 2048]


def test_several_changes_together_where_one_is_not_enough():
    def needed(one) -> float:
        return 100 - 50 * one.actor.gradient_checkpointing - 40 * (one.actor.mb_spec.max_tokens_per_mb < 4096)

    [found] = advice(config(), Room(20, "", on_cpu=True), needed)
    assert found == Change(("actor.mb_spec.max_tokens_per_mb=256", "actor.gradient_checkpointing=true"), 10)


def test_nothing_is_promised_where_nothing_helps():
    assert advice(config(), Room(10, "", on_cpu=True), lambda _: 11.0) == ()
    told = str(refusal(11.0 * GIB, Room(10.0 * GIB, "this machine", True), ()))
    assert "11.00 GiB are needed" in told and "this machine has 10.00 GiB" in told and "actor.path" in told


def test_a_critic_of_its_own_is_changed_with_the_policy():
    first = next(ladders(config("critic.mb_spec.max_tokens_per_mb=16384")))[0]
    assert first == ("actor.mb_spec.max_tokens_per_mb=8192", "critic.mb_spec.max_tokens_per_mb=8192")
    shared = next(ladders(config("critic.shared=true")))[0]
    assert shared == ("actor.mb_spec.max_tokens_per_mb=2048",)


def test_every_step_is_a_config():
    asked = config("critic.optimizer.lr=1e-5", "rollout.dtype=float32", "scheduler.type=slurm")
    words = [ladder[-1] for ladder in ladders(asked)]
    assert len(words) == 6
    last = changed(asked, [word for step in words for word in step])
    assert last.actor.gradient_checkpointing and last.actor.lora is not None and last.rollout.dtype == "bfloat16"
    assert last.critic is not None and last.critic.lora is not None and last.allocation.learners == 64
