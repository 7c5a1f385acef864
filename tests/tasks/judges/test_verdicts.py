import math

import pytest

from partita.tasks.judges.settings import JudgeConfig
from partita.tasks.judges.verdicts import Reply, Unreadable, read_reply, step_verdicts, verdict


def config(**keys) -> JudgeConfig:
    return JudgeConfig(**{"base_url": "http://x/v1", "model": "m", "prompt": "{response}", **keys})


@pytest.mark.parametrize(
    ("keys", "text", "value"),
    [
        ({}, '{"score": 0.75}', 0.75),
        ({}, 'Fine.\n```json\n{"score": 1, "why": "{}"}\n```', 1.0),
        ({}, 'It quotes {"score": 1.0}. I say {"why": "no", "score": 0}', 0.0),
        ({}, '<think>{"score": 1}</think>{"score": 0.5}', 0.5),
        ({}, '{"score": true}', 1.0),
        ({"field": "result.mark", "minimum": 1, "maximum": 5}, '{"result": {"mark": 3}}', 0.5),
        ({"minimum": -1}, '{"score": 0}', 0.5),
        ({"score_from": "number", "maximum": 10}, "Steps are right: 2 of 3.\n**Score: 7/10**\n", 0.7),
        ({"score_from": "number", "maximum": 10}, "Rating: [[7]]", 0.7),
        ({"score_from": "number", "maximum": 10}, "7.5 out of 10", 0.75),
        ({"score_from": "number"}, "-0", 0.0),
        ({"score_from": "choice", "choices": {"A": 1, "B": 0.5, "C": 0}}, "A good one.\nVerdict: [[B]]", 0.5),
        ({"score_from": "choice", "choices": {"correct": 1, "incorrect": 0}}, "Incorrect.", 0.0),
    ],
)
def test_verdicts_that_are_there(keys, text, value):
    assert verdict(Reply(text), config(**keys)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("keys", "text", "words"),
    [
        ({}, "", "no JSON object with the field 'score', but ''"),
        ({}, '{"score": "high"}', "the score is 'high'; expected a number from 0 to 1"),
        ({}, '{"score": 7}', "the score is 7; expected a number from 0 to 1"),
        ({}, '{"score": NaN}', "the score is nan"),
        ({}, '{"score": null}', "no JSON object with the field 'score'"),
        ({}, '{"score": ', "no JSON object"),
        ({}, "[" * 5000 + '{"a":' * 5000, "no JSON object"),
        ({}, '<think>{"score": 1}', "no JSON"),
        ({"score_from": "number", "maximum": 10}, "Score: 7/5", "not one number on the last line"),
        ({"score_from": "number", "maximum": 10}, "Score: 7\nThank you.", "not one number"),
        ({"score_from": "number", "maximum": 10}, "between 6 and 7", "not one number"),
        ({"score_from": "number", "maximum": 10}, "11", "the score is 11.0"),
        ({"score_from": "choice", "choices": {"A": 1, "B": 0}}, "A or B", "not one of A, B on the last line"),
        ({"score_from": "choice", "choices": {"A": 1, "B": 0}}, "a", "not one of A, B"),
        ({"score_from": "yes_no"}, "Maybe", "neither Yes nor No, but 'Maybe'"),
    ],
)  # fmt: skip
def test_verdicts_that_are_not_there_are_no_numbers(keys, text, words):
    if words == "no JSON" and "think" in text:
        assert verdict(Reply(text), config(**keys)) == 1.0  # thoughts that never ended are all there is
        return
    with pytest.raises(Unreadable, match=words.replace("(", r"\(")):
        verdict(Reply(text), config(**keys))


def test_a_reply_that_was_cut_off_says_so():
    with pytest.raises(Unreadable, match=r"cut off: raise max_tokens"):
        verdict(Reply("Let me think", "length"), config())


def answer(content="Yes", tokens=()):
    logprobs = {
        "content": [
            {"token": token, "top_logprobs": [{"token": name, "logprob": math.log(p)} for name, p in top.items()]}
            for token, top in tokens
        ]
    }
    return {"choices": [{"message": {"content": content}, "logprobs": logprobs, "finish_reason": "stop"}]}


def test_yes_against_no_at_the_token_that_says_it():
    top = {"Yes": 0.5, " yes": 0.1, "No": 0.2, "Maybe": 0.2}
    reply = read_reply(answer(tokens=[("\n", {"\n": 1.0}), ("Yes", top)]), logprobs=True)
    assert verdict(reply, config(score_from="yes_no")) == pytest.approx(0.75)
    certain = read_reply(answer(tokens=[("No", {"No": 1.0})]), logprobs=True)
    assert verdict(certain, config(score_from="yes_no")) == 0.0
    assert read_reply(answer(tokens=[("Well", {"Well": 0.9, "Yes": 0.1})]), logprobs=True).yes is None
    with pytest.raises(Unreadable, match="no logprobs in the reply"):
        read_reply({"choices": [{"message": {"content": "Yes"}}]}, logprobs=True)


@pytest.mark.parametrize(
    "given", [[], None, "x", {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": {}}]}]
)
def test_what_is_no_completion(given):
    with pytest.raises(Unreadable, match=r"not a chat completion|a completion without a text"):
        read_reply(given, logprobs=False)


def test_a_score_of_each_step():
    steps = config(steps="lines", maximum=2.0)
    assert step_verdicts(Reply('{"scores": [0, 1, 2]}'), steps, 3) == [0.0, 0.5, 1.0]
    for text in ('{"scores": [0, 1]}', '{"scores": 1}', '{"scores": "012"}'):
        with pytest.raises(Unreadable, match="expected a list of 3 scores, one for each step"):
            step_verdicts(Reply(text), steps, 3)
    with pytest.raises(Unreadable, match="the score is 3"):
        step_verdicts(Reply('{"scores": [0, 1, 3]}'), steps, 3)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"base_url": "localhost:8000"}, "must begin with http"),
        ({"base_url": "https://me:pw@x/v1"}, "no user, password or query"),
        ({"api_key_env": "sk-12345"}, "not the key itself"),
        ({"prompt": None}, "set one of them"),
        ({"minimum": 1}, "must be below maximum"),
        ({"score_from": "choice"}, "choice needs labels"),
        ({"choices": {"A": 1}}, "choice needs labels, others have none"),
        ({"score_from": "choice", "choices": {"A": 3}}, "choices.A=3 is not in minimum to maximum"),
        ({"score_from": "yes_no", "maximum": 10}, "leave out minimum and maximum"),
        ({"score_from": "number", "field": "x"}, "needs score_from=json"),
        ({"score_from": "number", "steps": "lines"}, "steps needs score_from=json"),
        ({"steps": "("}, "no regular expression"),
        ({"steps": r"\s*"}, "a border between any two characters"),
        ({"cache": False, "cache_dir": "x"}, "drop one of the two"),
    ],
)
def test_settings_that_cannot_work(keys, words):
    with pytest.raises(ValueError, match=words) as told:
        config(**keys)
    assert "sk-12345" not in str(told.value) and "pw" not in str(told.value)
