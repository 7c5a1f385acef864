"""A wrong answer is told so and may be tried again: which reward counts, what is told, and when it ends."""

import pytest
from talking import CHATML, Speaker, asked, chat_with, played, shown

from partita.engine.api import Sampling
from partita.records import Group
from partita.rollout.retry import FEEDBACK, RetryWithFeedback
from partita.rollout.summary import summarise
from partita.tasks.files import DataError

CHAT = chat_with(CHATML, "<|im_end|>")


async def right(response: str, answer: str) -> float:
    return float(response == answer)


def tried(*lines, rewards=(right,), chat=CHAT, setting=None, **keys):
    engine = Speaker(chat, "<|im_end|>", *lines)
    prompt = asked(chat, "2 + 5?", answer="7", unit="apples")
    prompt = type(prompt)(prompt.uid, prompt.ids, prompt.text, prompt.row, prompt.messages, "7")
    [sample] = played(engine, RetryWithFeedback(**keys), prompt, *rewards, **setting or {})
    return sample


def test_a_right_answer_ends_it() -> None:
    sample = tried("7")
    assert (sample.reward, sample.text, sample.stop_reason) == (1.0, "7", "stop")
    assert sample.metrics == {"retry/first_right": 1.0, "retry/right": 1.0}


def test_a_wrong_answer_is_told_so_and_the_last_try_counts() -> None:
    sample = tried("8", "7", "never")
    assert (sample.reward, sample.text) == (1.0, "8\n\n7")
    assert f"8<|im_end|>\n<|im_start|>user\n{FEEDBACK}<|im_end|>" in shown(CHAT, sample.rows[0].ids)
    assert sample.metrics == {"retry/first_right": 0.0, "retry/right": 1.0}
    assert tried("8", "9").reward == 0.0
    both = [tried("7"), tried("8", "7")]
    metrics = summarise([Group(0, asked(CHAT), both)])
    assert metrics["retry/first_right"].mean == 0.5 and metrics["turns/mean"].mean == 1.5


def test_a_later_try_is_worth_less_where_that_is_asked_for() -> None:
    assert tried("8", "9", "7", tries=3, discount=0.5).reward == 0.25
    assert tried("7", tries=3, discount=0.5).reward == 1.0


def test_feedback_is_a_text_with_places_or_a_function() -> None:
    sample = tried("8", "7", feedback="Try {try}: {response} {unit} is worth {reward}, {{so}}.")
    assert "user\nTry 1: 8 apples is worth 0.0, {so}.<" in shown(CHAT, sample.rows[0].ids)

    def hint(response, scored, row):
        return f"{response} is not {row['answer']}; {scored.parts}"

    sample = tried("8", "7", feedback_function=hint)
    assert "user\n8 is not 7; {'right': 0.0}<" in shown(CHAT, sample.rows[0].ids)
    with pytest.raises(DataError, match="weight"):
        tried("8", "7", feedback="It has {weight}.")


def test_a_feedback_function_that_fails_is_the_error_of_its_sample() -> None:
    def broken(response, scored, row):
        return row["no such"]

    sample = tried("8", "7", feedback_function=broken)
    assert (sample.reward, sample.status) == (None, "reward_error")
    assert sample.error.startswith("feedback: KeyError: 'no such'")


def test_a_try_without_a_reward_or_that_was_cut_is_the_last() -> None:
    async def fails(response: str) -> float:
        raise ValueError("broken")

    sample = tried("8", "7", rewards=(fails,))
    assert (sample.text, sample.status) == ("8", "reward_error") and sample.metrics == {}
    cut = tried("88", "7", setting={"sampling": Sampling(2)})
    assert (cut.text, cut.stop_reason, cut.reward) == ("88", "length", 0.0)


def test_steps_of_a_reward_are_counted_within_the_whole_sample() -> None:
    async def stepped(response: str, tokens: list[int]) -> dict[str, object]:
        return {"score": float(response == "7"), "steps": [[len(tokens) - 1, 0.5]]}

    sample = tried("8", "7", rewards=(stepped,), discount=0.5)
    assert sample.length == 4 and sample.step_rewards == [(3, 0.25)]


def test_values_that_cannot_work_are_refused() -> None:
    for keys in ({"tries": 0}, {"discount": 0.0}, {"discount": 1.5}, {"rows": "x"}):
        with pytest.raises(ValueError):
            RetryWithFeedback(**keys)
