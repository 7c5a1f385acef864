"""Which tokens of a sample are trained and which text is scored, where a tool speaks between the policy's turns."""

import asyncio

import pytest
from chains import reciter
from tiny_model import byte_tokenizer
from toy import EOS, TableEngine

from partita.engine.api import Completion, Engine, Sampling
from partita.engine.local import LocalEngine
from partita.ops.packing import pack
from partita.records import Group, Prompt, Row, Sample
from partita.rollout.episodes import Setting, play
from partita.rollout.workflow import Episode, SingleTurn, Workflow, row_of
from partita.tasks.reward import RewardConfig, RewardRuntime
from partita.train.batch import collate

TOOL = [5] * 5


class WithTool:
    """One row: the policy writes, a tool answers, the policy writes on. Scored is what the policy wrote."""

    async def run(self, episode: Episode) -> Sample:
        first = await episode.generate(episode.prompt.ids)
        row = row_of(episode.prompt.ids, first)
        told = Row(
            [*row.ids, *TOOL],
            [*row.trained, *[False] * 5],
            [*row.behaviour_logprobs, *[0.0] * 5],
            [*row.versions, *[-1] * 5],
        )
        second = await episode.generate(told.ids)
        own = row_of((), second)
        whole = Row(
            told.ids + own.ids, told.trained + own.trained, told.behaviour_logprobs + own.behaviour_logprobs,
            told.versions + own.versions,
        )  # fmt: skip
        text = f"{first.text} {second.text}"
        scored = await episode.score(text, [*first.ids, *second.ids], second.stop_reason)
        return Sample([whole], second.stop_reason, text, scored.reward, dict(scored.parts), status=scored.status)


def played(engine: Engine, workflow: Workflow, prompt: Prompt, sampling: Sampling, *rewards) -> Group:
    scorer = RewardRuntime(RewardConfig(), rewards)
    setting = Setting(engine, workflow, scorer, sampling, seed=1, stream=0)
    return asyncio.run(play(setting, [(0, prompt)], 1))[0]


@pytest.fixture
def with_tool() -> Group:
    engine = TableEngine()
    engine.follow(t0=1, t1=2, t2=3, t3=EOS, t5=6, t6=EOS)
    prompt = Prompt("p", (4, 4, 4, 4, 0), "4 4 4 4 0", {})

    async def found(response: str) -> float:
        return float("5" in response)

    async def wrote(response: str) -> float:
        return float(response == "1 2 3 7 6 7")

    return played(engine, WithTool(), prompt, Sampling(8, stop_ids=(EOS,)), found, wrote)


def test_the_policy_is_not_paid_for_what_a_tool_said(with_tool: Group) -> None:
    [sample] = with_tool.samples
    assert sample.rows[0].ids == [4, 4, 4, 4, 0, 1, 2, 3, EOS, *TOOL, 6, EOS]
    assert sample.parts == {"found": 0.0, "wrote": 1.0}


def test_a_row_of_several_turns_trains_what_the_policy_wrote_and_each_end_of_turn_once(with_tool: Group) -> None:
    rollout = collate([with_tool], seed=1, version=0)
    [[row]] = rollout.rows
    assert row.trained == [False] * 5 + [True] * 4 + [False] * 5 + [True] * 2
    assert rollout.batch.length_S.tolist() == [6]
    assert rollout.batch.behaviour_T.tolist() == pytest.approx([0.0] * 6, abs=1e-6)  # the policy was certain
    assert rollout.batch.version_T.tolist() == [0] * 6
    packed = pack(rollout.rows, rollout.group_of_sample)
    assert packed.target_T.tolist() == [1, 2, 3, EOS, 6, EOS]
    assert packed.ids_N[packed.source_T].tolist() == [0, 1, 2, 3, 5, 6]  # the tool's last token predicts, untrained


@pytest.mark.parametrize("stops", [(), ("\nUser:",)])
def test_a_response_that_ends_by_its_end_token_is_scored_whether_or_not_a_stop_string_is_set(stops) -> None:
    tokenizer = byte_tokenizer()
    at, four, two, eos = (tokenizer.convert_tokens_to_ids(t) for t in ("@", "4", "2", "<eos>"))
    engine = LocalEngine(reciter(len(tokenizer), {at: four, four: two, two: eos}), tokenizer, slots=2, context=64)

    async def right(response: str, answer: str) -> float:
        return float(response == answer)

    try:
        prompt = Prompt("p", (at,), "@", {}, answer="42")
        sampling = Sampling(16, stop_ids=(eos,), stop_strings=stops)
        [sample] = played(engine, SingleTurn(), prompt, sampling, right).samples
    finally:
        engine.close()
    assert sample.rows[0].ids == [at, four, two, eos]
    assert sample.rows[0].trained == [False, True, True, True]
    assert (sample.text, sample.stop_reason, sample.reward, sample.status) == ("42", "stop", 1.0, "ok")


def test_log_probs_pass_from_the_engine_to_the_learner_unrounded() -> None:
    n = 4096
    completion = Completion((3,) * n, (-1.2345,) * n, (2,) * n, "length", "")
    row = row_of((1, 2), completion)
    batch = collate(
        [Group(0, Prompt("p", (1, 2), "", {}), [Sample([row], "length", "", 1.0)])], seed=1, version=0
    ).batch
    assert batch.behaviour_T.shape == (n,)  # in bfloat16 they would be -1.234375
    assert (batch.behaviour_T.double() + 1.2345).abs().max() < 1e-6
    assert abs(float(batch.behaviour_T.mean()) + 1.2345) < 1e-6
    assert set(batch.version_T.tolist()) == {2}
