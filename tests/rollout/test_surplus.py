"""Oversampled rounds: the batch takes groups by start order, the others wait, are never too old, and survive a kill exactly."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from toy import CountedPrompts, FirstToken, TableEngine

from partita.engine.api import Sampling
from partita.records import Group, Prompt, Row, Sample
from partita.rollout.budget import oversampled
from partita.rollout.rollouts import Refill, Retry, RolloutError, Rollouts, Taken
from partita.rollout.summary import is_zero_variance, summarise_taken
from partita.rollout.surplus import Waiting
from partita.rollout.workflow import SingleTurn
from partita.tasks.reward import Scored


def all_of_them(group: Group) -> bool:
    return True


def odd(group: Group) -> bool:
    return group.serial % 2 == 1


def never(group: Group) -> bool:
    return False


def refill(keep: Callable[[Group], bool] = all_of_them, oversample: float = 1.5, **changed) -> Refill:
    return Refill(keep, **({"max_batches": 10, "refill": True, "oversample": oversample} | changed))


def rollouts(asked: Refill, **changed) -> Rollouts:
    values = {"workflow": SingleTurn(), "prompts": CountedPrompts(), "scorer": FirstToken(), "n_samples": 4} | changed
    sampling = values.pop("sampling", Sampling(max_new_tokens=4, stop_ids=(7,)))
    return Rollouts(TableEngine(), sampling=sampling, seed=5, refill=asked, **values)


def take(runner: Rollouts, groups: int = 4) -> Taken:
    """One step, as the loop takes it: what is sampled bears the number of finished steps as its version."""
    runner.engine.version = runner.version
    return asyncio.run(runner.take(groups))


def serials(taken: Taken) -> list[int]:
    return [group.serial for group in taken.groups]


def counts(taken: Taken) -> tuple[int, int, int]:
    return taken.surplus.used, taken.surplus.kept, taken.surplus.dropped


@pytest.mark.parametrize(
    ("lacking", "factor", "starts"), [(10, 1.1, 11), (3, 1.5, 5), (1, 1.5, 2), (8, 1.0, 8), (0, 2.0, 0), (7, 3.0, 21)]
)
def test_a_round_starts_its_multiple_rounded_up(lacking: int, factor: float, starts: int) -> None:
    assert oversampled(lacking, factor) == starts


def test_groups_beyond_the_batch_come_first_in_the_next_one() -> None:
    runner = rollouts(refill())
    first, second, third = take(runner), take(runner), take(runner)
    assert (serials(first), counts(first), first.extra) == ([0, 1, 2, 3], (0, 2, 0), 2)
    # two wait, two are lacking: a round of three
    assert (serials(second), counts(second), second.extra) == ([4, 5, 6, 7], (2, 1, 0), 1)
    assert (serials(third), counts(third)) == ([8, 9, 10, 11], (1, 2, 0))
    assert [len(one.started) for one in (first, second, third)] == [6, 3, 5]
    assert (first.lacking, first.rounds) == (0, 1)


def test_what_waited_keeps_the_log_probs_and_the_version_of_its_sampler() -> None:
    runner = rollouts(refill())
    first = take(runner)
    waiting = [one.group for one in runner.surplus]
    runner.engine.follow(t0=1, t1=2, t2=3, t3=4)  # the weights move on
    second = take(runner)
    assert second.groups[:2] == waiting
    versions = [{v for s in g.samples for v in s.rows[0].versions if v >= 0} for g in second.groups]
    assert versions == [{0}, {0}, {1}, {1}]
    of_old = [p for s in second.groups[0].samples for p in s.rows[0].behaviour_logprobs[1:]]
    assert of_old == pytest.approx([-math.log(8)] * len(of_old))
    assert all(p == pytest.approx(0.0) for p in second.groups[3].samples[0].rows[0].behaviour_logprobs)
    assert first.groups[0].serial == 0


def test_statistics_of_the_policy_are_of_what_the_step_started() -> None:
    runner = rollouts(refill())
    take(runner)
    values = summarise_taken(take(runner)).as_dict()
    assert (values["groups/started"], values["prompts_used"]) == (3, 9)
    assert (values["surplus/used"], values["surplus/kept"], values["surplus/dropped"]) == (2, 1, 0)
    assert values["groups/oversampled"] == pytest.approx(1 / 3)
    assert values["groups/lacking"] == 0
    plain = summarise_taken(take(rollouts(refill(oversample=1.0)))).as_dict()
    assert not any("surplus" in name or "oversampled" in name for name in plain)


def test_a_step_that_waiting_groups_fill_samples_nothing() -> None:
    runner = rollouts(refill(oversample=2.0))
    take(runner)
    second = take(runner)
    assert (serials(second), second.rounds, second.started) == ([4, 5, 6, 7], 0, [])
    values = summarise_taken(second).as_dict()
    assert (values["rollout_rounds"], values["response_tokens"], values["groups/started"]) == (0, 0, 0)
    assert "reward/mean" not in values


@pytest.mark.parametrize(
    ("steps", "used", "seen"),
    [
        (0, [12, 24, 36], [(0, 0, 8), (0, 0, 8), (0, 0, 8)]),
        (1, [12, 12, 24], [(0, 8, 0), (4, 0, 4), (0, 8, 0)]),
        (2, [12, 12, 12], [(0, 8, 0), (4, 4, 0), (4, 0, 0)]),
    ],
)
def test_nothing_waits_longer_than_allowed(steps: int, used: list[int], seen: list[tuple]) -> None:
    runner = rollouts(refill(oversample=3.0, surplus_steps=steps))
    found = [(counts(take(runner)), runner.used) for _ in range(3)]
    assert found == list(zip(seen, used, strict=True))


def test_what_is_too_old_at_the_start_of_a_step_is_dropped_and_counted() -> None:
    runner = rollouts(refill())
    take(runner)
    runner.version += 1  # a step that took nothing
    second = take(runner)
    assert (serials(second), counts(second)) == ([6, 7, 8, 9], (0, 2, 2))


def test_the_batch_is_full_whatever_the_filter_leaves_of_a_round() -> None:
    runner = rollouts(refill(odd))
    steps = [take(runner) for _ in range(5)]
    assert all(len(one.groups) == 4 and one.lacking == 0 for one in steps)
    trained = [serial for one in steps for serial in serials(one)]
    assert trained == list(range(1, 40, 2))  # everyone who passed, once, in start order


def test_a_retried_group_stands_where_its_prompt_was_started() -> None:
    """The last attempt has a later number; taking groups by it would send the hard prompts of every step into the next."""
    retry = Retry(3, 1.0)
    runner = rollouts(refill(), retry=retry)
    first = take(runner)
    assert len(first.discarded) > 0
    assert sorted(group.prompt.uid for group in first.groups) == ["p1", "p2", "p3", "p4"]
    assert [one.group.prompt.uid for one in runner.surplus] == ["p5", "p6"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_interrupted_rollouts_go_on_with_what_waited(cut: int) -> None:
    straight, killed, resumed = (rollouts(refill(oversample=2.5, surplus_steps=2)) for _ in range(3))
    want = [take(straight) for _ in range(6)]
    for _ in range(cut):
        take(killed)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    got = [take(resumed) for _ in range(6 - cut)]
    assert any(one.surplus.used for one in got)
    for mine, theirs in zip(got, want[cut:], strict=True):
        assert [(g.serial, g.prompt.uid, g.prompt.ids, g.samples) for g in mine.groups] == [
            (g.serial, g.prompt.uid, g.prompt.ids, g.samples) for g in theirs.groups
        ]
        assert counts(mine) == counts(theirs)


def test_a_saved_group_is_the_same_to_the_last_bit() -> None:
    rows = [
        Row([1, 2, 3], [False, True, True], [0.0, -0.1, -math.inf], [-1, 3, 4]),
        Row([5, 6], [False, True], [0.0, -1e-17], [-1, 4]),
    ]
    kept = Sample(
        rows, "length", "two rows", 0.1 + 0.2, {"f": 1 / 3, "f/x": 2.0}, [(1, 0.5), (2, -0.25)], "ok", "", {"f": "said"}
    )
    failed = Sample([rows[0]], "abort", "", None, {}, [], "reward_error", "Traceback")
    prompt = Prompt("r7", (1, 2), "shown", {"image": object()}, ({"role": "user", "content": "x"},), "42")
    waiting = Waiting(Group(9, prompt, [kept, failed]), 5)
    back = Waiting.of_state(json.loads(json.dumps(waiting.state_dict())))
    assert back.group.samples == [kept, failed]
    assert (back.version, back.group.serial) == (5, 9)
    assert (back.group.prompt.uid, back.group.prompt.ids, back.group.prompt.text, back.group.prompt.answer) == (
        "r7", (1, 2), "shown", "42",
    )  # fmt: skip


def test_a_new_stage_has_no_use_for_what_waits() -> None:
    runner = rollouts(refill())
    take(runner)
    runner.forget_surplus()
    again = rollouts(refill())
    again.load_state_dict(json.loads(json.dumps(runner.state_dict())))
    for one in (runner, again):
        second = take(one)
        assert (serials(second), counts(second)) == ([6, 7, 8, 9], (0, 2, 2))
        assert counts(take(one))[2] == 0


def test_an_epoch_ends_when_its_prompts_and_what_waits_are_used() -> None:
    runner = rollouts(refill(), prompt_limit=10)
    trained = []
    while not runner.exhausted:
        trained.append(serials(take(runner)))
    assert trained == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (runner.used, runner.started) == (10, 10)


# ---- the limit


def test_at_the_limit_a_run_ends_unless_it_is_told_otherwise() -> None:
    runner = rollouts(refill(never, max_batches=3))
    with pytest.raises(RolloutError, match=r"after 3 rounds only 0 of 4 groups passed the filter; .*on_limit"):
        take(runner)
    assert [len(sent) // 4 for sent in runner.engine.rounds] == [6, 6, 6]


def one_in_eight(group: Group) -> bool:
    return group.serial % 8 == 7


def test_at_the_limit_a_step_may_train_on_less() -> None:
    runner = rollouts(refill(one_in_eight, 1.0, max_batches=2, on_limit="train_on_less"))
    with pytest.warns(UserWarning, match=r"after 2 rounds only 1 of 4 groups .* This step trains on what passed"):
        taken = take(runner)
    assert (serials(taken), taken.lacking, taken.rounds, runner.version) == ([7], 3, 2, 1)
    assert summarise_taken(taken).as_dict()["groups/lacking"] == 3
    with pytest.warns(UserWarning, match="only 1 of 4"):
        assert serials(take(runner)) == [15]


def test_at_the_limit_a_step_may_be_left_out_and_what_passed_waits() -> None:
    runner = rollouts(refill(one_in_eight, 1.0, max_batches=2, on_limit="skip", surplus_steps=9))
    seen = []
    with pytest.warns(UserWarning, match="This step learns nothing"):
        for _ in range(9):
            taken = take(runner)
            seen.append((serials(taken), taken.lacking, counts(taken)))
            if taken.groups:
                break
    assert seen[0] == ([], 4, (0, 1, 0))
    assert seen[-1][0] == [7, 15, 23, 31]
    assert all(groups == [] and lacking == 4 for groups, lacking, _ in seen[:-1])
    dropping = rollouts(refill(one_in_eight, 1.0, max_batches=2, on_limit="skip", surplus_steps=0))
    with pytest.warns(UserWarning, match="This step learns nothing"):
        assert counts(take(dropping)) == (0, 0, 1)


def test_rounds_end_with_the_prompts_even_where_nothing_passes() -> None:
    runner = rollouts(refill(never, 1.0, max_batches=10**6, on_limit="error"), prompt_limit=20)
    taken = take(runner)
    assert (taken.groups, taken.rounds, taken.lacking, runner.exhausted) == ([], 5, 4, True)


# ---- long answers are slow


@dataclass
class SlowByLength:
    """Scores after a pause that grows with the answer, and notes in which order answers were finished."""

    finished: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        await asyncio.sleep(0.002 * len(ids))
        self.finished.append((prompt.uid, len(ids)))
        return Scored(float(ids[0] % 2))


def mean_length(groups: list[Group]) -> float:
    lengths = [sample.length for group in groups for sample in group.samples]
    return sum(lengths) / len(lengths)


def test_slow_long_answers_are_trained_on_as_often_as_they_pass() -> None:
    """The groups of the batches are those that passed, each of them once: the same lengths to the last token. The first to finish
    would have been shorter."""
    scorer = SlowByLength()
    # the end token is one of eight: lengths from 1 to 24
    sampling = Sampling(max_new_tokens=24, stop_ids=(7,))
    runner = rollouts(
        refill(lambda group: not is_zero_variance(group), 2.0), scorer=scorer, sampling=sampling, n_samples=2
    )
    trained, started, hasty = list[Group](), list[Group](), list[Group]()
    for _ in range(8):
        scorer.finished.clear()
        taken = take(runner, 6)
        trained += taken.groups
        started += taken.started
        ends = {uid: place for place, (uid, _) in enumerate(scorer.finished)}
        passing = [group for group in taken.started if not is_zero_variance(group)]
        hasty += sorted(passing, key=lambda group: ends[group.prompt.uid])[: max(1, len(passing) // 2)]
    passed = [group for group in started if not is_zero_variance(group)]
    waiting = [one.group for one in runner.surplus]
    assert runner.version == 8 and len(trained) == 48
    assert trained + waiting == passed
    assert mean_length(hasty) < 0.8 * mean_length(passed)
