import asyncio
import json
import threading
from concurrent.futures import Future

import pytest
from toy import CountedPrompts, FirstToken, TableEngine

from partita.engine.api import Sampling
from partita.records import Group, Prompt, Row, Sample
from partita.rollout.rollouts import Refill, RolloutError, Rollouts
from partita.rollout.summary import is_zero_variance, summarise
from partita.rollout.workflow import Episode, SingleTurn, row_of
from partita.tasks.reward import RewardErrors, Scored

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(7,))


def rollouts(**changes) -> Rollouts:
    engine = changes.pop("engine", None) or TableEngine()
    values = {"workflow": SingleTurn(), "prompts": CountedPrompts(), "scorer": FirstToken(), "refill": None} | changes
    return Rollouts(engine, sampling=SAMPLING, n_samples=4, seed=5, **values)


def plain(groups: list[Group]) -> list[tuple]:
    return [(g.serial, g.prompt.uid, [(s.rows[0].ids, s.reward) for s in g.samples]) for g in groups]


def test_groups_come_in_start_order_and_are_joined_by_serial() -> None:
    runner = rollouts()
    groups = asyncio.run(runner.take(3)).groups
    assert [g.serial for g in groups] == [0, 1, 2]
    assert [g.prompt.uid for g in groups] == ["p1", "p2", "p3"]
    assert all(len(g.samples) == 4 for g in groups)
    assert all(s.rows[0].ids[:1] == list(g.prompt.ids) for g in groups for s in g.samples)


def test_one_round_holds_all_requests_of_a_step_in_identity_order() -> None:
    runner = rollouts()
    asyncio.run(runner.take(3))
    [sent] = runner.engine.rounds
    assert [(r.draw.serial, r.draw.sample) for r in sent] == [(g, k) for g in range(3) for k in range(4)]


def test_slow_scoring_changes_nothing() -> None:
    assert plain(asyncio.run(rollouts().take(3)).groups) == plain(
        asyncio.run(rollouts(scorer=FirstToken(delay=0.01)).take(3)).groups
    )


class HeldBack(TableEngine):
    """Decodes the last sample of a round only when `scored` is set, as a long answer would end after the others' rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = threading.Event()

    def submit(self, requests):
        *futures, last = super().submit(requests)
        held: Future = Future()
        threading.Thread(target=lambda: held.set_result(last.result() if self.scored.wait(10) else None)).start()
        return [*futures, held]


def test_finished_samples_are_scored_while_others_are_decoded() -> None:
    """The last answer comes after the slow rewards of all others, or never."""
    engine, done = HeldBack(), list[str]()

    class Slow(FirstToken):
        async def score(self, prompt, text, ids, stop_reason):
            scored = await super().score(prompt, text, ids, stop_reason)
            done.append(prompt.uid)
            if len(done) == 7:
                engine.scored.set()
            return scored

    taken = asyncio.run(asyncio.wait_for(rollouts(engine=engine, scorer=Slow(delay=0.02)).take(2), 9))
    assert len(done) == 8 and len(taken.groups) == 2 and len(engine.rounds) == 1


def test_trained_row_is_what_was_sent_and_what_came_back() -> None:
    sample = asyncio.run(rollouts().take(1)).groups[0].samples[0]
    row = sample.rows[0]
    assert row.trained == [False] + [True] * (len(row.ids) - 1)
    assert row.versions == [-1] + [0] * (len(row.ids) - 1)
    assert row.behaviour_logprobs[0] == 0.0
    assert all(value == pytest.approx(-2.0794415) for value in row.behaviour_logprobs[1:])  # log 1/8: the table is flat


class TwoTurns:
    """Asks twice, with a pause between that depends on the sample: rounds must not depend on it."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    async def run(self, episode: Episode) -> Sample:
        first = await episode.generate(episode.prompt.ids)
        await asyncio.sleep(self.pause * (first.ids[0] % 3))
        second = await episode.generate([*episode.prompt.ids, *first.ids, 1])
        scored = await episode.score(second.text, second.ids, second.stop_reason)
        rows = [row_of(episode.prompt.ids, first), row_of([*episode.prompt.ids, *first.ids, 1], second)]
        return Sample(rows, second.stop_reason, second.text, scored.reward)


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_later_turns_wait_for_every_sample_and_draw_anew(pause: float) -> None:
    runner = rollouts(workflow=TwoTurns(pause))
    asyncio.run(runner.take(2))
    first, second = runner.engine.rounds
    assert len(first) == len(second) == 8
    assert [(r.draw.serial, r.draw.sample, r.draw.call) for r in second] == [
        (g, k, 1) for g in range(2) for k in range(4)
    ]


def mixed(group: Group) -> bool:
    return not is_zero_variance(group)


def test_dropped_groups_are_refilled_with_new_serials_and_stay_in_start_order() -> None:
    runner = rollouts(refill=Refill(mixed, max_batches=20, refill=True))
    taken = asyncio.run(runner.take(3))
    assert [is_zero_variance(g) for g in taken.groups] == [False] * 3
    serials = [g.serial for g in taken.started]
    assert serials == list(range(runner.started))
    assert [g.serial for g in taken.groups] == sorted(g.serial for g in taken.groups)


def test_dynamic_batch_trains_on_what_one_round_left() -> None:
    runner = rollouts(refill=Refill(mixed, max_batches=20, refill=False))
    taken = asyncio.run(runner.take(4))
    assert taken.rounds == 1 and len(taken.groups) + len(taken.dropped) == 4


class Nothing:
    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        return Scored(0.0)


def test_a_filter_that_keeps_nothing_ends_after_its_rounds_with_an_explanation() -> None:
    runner = rollouts(refill=Refill(mixed, max_batches=3, refill=True), scorer=Nothing())
    said = (
        r"after 3 rounds only 0 of 4 groups .*; 12 of the 12 dropped .* equal rewards \(share at 0: 1.00\).*max_batches"
    )
    with pytest.raises(RolloutError, match=said):
        asyncio.run(runner.take(4))
    assert [len(sent) for sent in runner.engine.rounds] == [16, 16, 16]


def test_where_nothing_passes_a_batch_that_shrinks_is_an_empty_step_and_the_next_one_is_no_larger() -> None:
    runner = rollouts(refill=Refill(mixed, max_batches=3, refill=False), scorer=Nothing())
    for step in range(3):
        taken = asyncio.run(runner.take(4))
        assert (taken.groups, len(taken.dropped), taken.rounds) == ([], 4, 1)
        assert runner.started == 4 * (step + 1)  # what a step left unused is no room for the next
        assert runner.version == step + 1


def second_half(group: Group) -> bool:
    """Of every eight groups the first four are dropped: a step of four needs two rounds."""
    return group.serial % 8 >= 4 if group.serial < 16 else group.serial in (17, 18)


def test_an_epoch_is_its_prompts_however_many_rounds_a_step_needs() -> None:
    """20 prompts, 4 in a round, 2 rounds in a step: two whole steps, and a third of what passed of the last 4."""
    runner = rollouts(refill=Refill(second_half, max_batches=10, refill=True), prompt_limit=20)
    seen = []
    while not runner.exhausted:
        taken = asyncio.run(runner.take(4))
        seen.append((taken.prompts_before, taken.rounds, [group.serial for group in taken.groups]))
    assert seen == [(0, 2, [4, 5, 6, 7]), (8, 2, [12, 13, 14, 15]), (16, 1, [17, 18])]
    assert (runner.used, runner.prompts.state_dict()) == (20, {"position": 20})
    assert [before // 4 for before, _, _ in seen] == [0, 2, 4]  # of 5 in the schedule: its last place is reached


@pytest.mark.parametrize("cut", [1, 2])
def test_an_epoch_that_is_interrupted_ends_at_the_same_prompt(cut: int) -> None:
    def make() -> Rollouts:
        return rollouts(refill=Refill(second_half, max_batches=10, refill=True), prompt_limit=20)

    killed, resumed = make(), make()
    for _ in range(cut):
        asyncio.run(killed.take(4))
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    assert resumed.used == 8 * cut
    steps = 0
    while not resumed.exhausted:
        asyncio.run(resumed.take(4))
        steps += 1
    assert (steps, resumed.used) == (3 - cut, 20)


def test_a_refill_uses_no_more_prompts_than_are_left() -> None:
    runner = rollouts(refill=Refill(lambda group: group.serial > 5, max_batches=10, refill=True), prompt_limit=9)
    taken = asyncio.run(runner.take(4))
    assert [group.serial for group in taken.groups] == [6, 7, 8]
    assert runner.exhausted


def test_without_a_filter_a_limit_in_whole_batches_changes_nothing() -> None:
    runner = rollouts(prompt_limit=8)
    assert [len(asyncio.run(runner.take(4)).groups) for _ in range(2)] == [4, 4]
    assert runner.exhausted
    assert not rollouts().exhausted


def test_resumed_rollouts_draw_the_same_groups() -> None:
    straight = rollouts()
    asyncio.run(straight.take(2))
    state = straight.state_dict()
    later = rollouts()
    later.load_state_dict(state)
    assert plain(asyncio.run(straight.take(2)).groups) == plain(asyncio.run(later.take(2)).groups)


def test_a_state_saved_before_prompts_were_counted_is_read() -> None:
    later = rollouts(prompt_limit=100)
    later.load_state_dict({"started": 7, "prompts": {"position": 7}})
    assert later.used == 7
    assert [group.serial for group in asyncio.run(later.take(2)).groups] == [7, 8]


def test_a_step_of_another_size_after_a_resume_starts_as_many_as_asked() -> None:
    before, after = rollouts(), rollouts()
    for _ in range(3):
        asyncio.run(before.take(2))
    after.load_state_dict(before.state_dict())
    assert len(asyncio.run(after.take(5)).groups) == 5  # 3 versions of 2 groups are no debt of a batch of 5


class Broken:
    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        return Scored(None, {}, "reward_error", "Traceback ... ZeroDivisionError: no")


def test_too_many_reward_errors_end_the_run_with_the_first_traceback() -> None:
    with pytest.raises(RewardErrors, match=r"16 of 16 .*max_error_share.*(?s:.*)ZeroDivisionError"):
        asyncio.run(rollouts(scorer=Broken(), max_error_share=0.5).take(4))
    groups = asyncio.run(rollouts(scorer=Broken(), max_error_share=1.0).take(1)).groups
    assert [s.reward for s in groups[0].samples] == [None] * 4


class BrokenFor:
    """Cannot score the samples of one prompt."""

    def __init__(self, uid: str) -> None:
        self.uid = uid

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        return Scored(None, {}, "reward_error", "no") if prompt.uid == self.uid else Scored(1.0)


@pytest.mark.parametrize(("share", "ends"), [(0.5, False), (0.2, False), (0.19, True)])
def test_reward_errors_are_judged_over_the_whole_step_not_over_a_refill(share: float, ends: bool) -> None:
    refill = Refill(lambda group: group.prompt.uid not in ("p1", "p5"), max_batches=5, refill=True)
    runner = rollouts(scorer=BrokenFor("p5"), refill=refill, max_error_share=share)
    if ends:
        with pytest.raises(RewardErrors, match="4 of 20 samples"):
            asyncio.run(runner.take(4))
        return
    taken = asyncio.run(runner.take(4))  # p5 alone is the second round: all of its samples failed
    assert [group.prompt.uid for group in taken.groups] == ["p2", "p3", "p4", "p6"]
    assert taken.rounds == 3


class BrokenInTwoWays:
    """Cannot score p2 and p3, for reasons of two kinds."""

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        errors = {"p2": f"own: ValueError: row {ids[0]}\nTraceback ...", "p3": "own: KeyError: 'x'\nTraceback ..."}
        error = errors.get(prompt.uid)
        return Scored(1.0) if error is None else Scored(None, {}, "reward_error", error)


def test_each_kind_of_reward_error_is_told_once() -> None:
    runner = rollouts(scorer=BrokenInTwoWays(), max_error_share=1.0)
    with pytest.warns(UserWarning, match="a reward failed") as told:
        asyncio.run(runner.take(4))
    lines = [str(one.message) for one in told]
    assert len(lines) == 2  # of eight samples
    assert lines[0].startswith("a reward failed, own: ValueError: row ")
    assert lines[1] == "a reward failed, own: KeyError: 'x'; further ones are only counted, in reward/error_share"
    assert runner.told == {"own: ValueError", "own: KeyError"}


class Crashing:
    async def run(self, episode: Episode) -> Sample:
        await episode.generate(episode.prompt.ids)
        if episode.prompt.uid == "p2":
            raise LookupError("environment is gone")
        await asyncio.sleep(3600)
        raise AssertionError("the crash of another sample must cancel this one")


def test_a_crash_in_one_workflow_ends_the_step_at_once() -> None:
    with pytest.raises(LookupError, match="environment is gone"):
        asyncio.run(asyncio.wait_for(rollouts(workflow=Crashing()).take(3), timeout=5))


def test_summary_counts_samples_not_means_of_groups() -> None:
    def sample(reward: float | None, length: int, stop: str = "stop", **parts: float) -> Sample:
        status = "ok" if reward is not None else "reward_error"
        row = Row([0] + [1] * length, [False] + [True] * length, [0.0] * (length + 1), [-1] + [0] * length)
        return Sample([row], stop, "", reward, parts, status=status)  # type: ignore[arg-type]

    prompt = Prompt("p", (0,), "", {})
    groups = [
        Group(0, prompt, [sample(1.0, 2, right=1.0), sample(0.0, 4, "length")]),
        Group(1, prompt, [sample(1.0, 6), sample(None, 8)]),
    ]
    values = summarise(groups).as_dict()
    assert values["reward/mean"] == pytest.approx(2 / 3)
    assert values["reward/right"] == 1.0
    assert values["reward/error_share"] == 0.25
    assert values["response_length/mean"] == 5.0
    assert values["response_length/correct"] == 4.0
    assert values["response_length/incorrect"] == 4.0
    assert values["response_length/truncated"] == 4.0
    assert values["truncated"] == 0.25
    assert values["zero_variance_groups"] == 0.5
    assert (values["samples_per_group/mean"], values["samples_per_group/min"]) == (2.0, 2.0)
    assert values["response_tokens"] == 20


def test_all_right_and_all_wrong_groups_have_no_variance_each_for_itself() -> None:
    def alike(reward: float) -> Group:
        return Group(0, Prompt("p", (0,), "", {}), [Sample([], "stop", "", reward) for _ in range(2)])

    assert summarise([alike(1.0), alike(0.0)]).as_dict()["zero_variance_groups"] == 1.0
    assert is_zero_variance(alike(0.7))


def test_groups_of_different_sizes_are_summarised() -> None:
    groups = [
        Group(i, Prompt("p", (0,), "", {}), [Sample([], "stop", "", 1.0)] * size) for i, size in enumerate([2, 7])
    ]
    values = summarise(groups).as_dict()
    assert [values[f"samples_per_group/{which}"] for which in ("min", "mean", "max")] == [2.0, 4.5, 7.0]
