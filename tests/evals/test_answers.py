"""The answer in a response, and which answers are the same."""

from pathlib import Path

import pytest

from partita.evals.answers import ANSWERS, OF_REWARDS, answers_of_rewards, find_answers, spelt
from partita.records import Prompt
from partita.tasks.graders.builtin import BUILTINS


def prompt(answer: str | None = "1080", **row: object) -> Prompt:
    return Prompt("1", (1,), "How many?", row, (), answer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,080", "1080.0"), ("\\frac{1}{2}", "0.5"), ("x = 4", "4"), ("(C)", "C"), ("B.", "B"), ("Paris.", "paris"),
        ("x + 1", "x+1"), ("\\$2.25", "2.25"), ("-4", "−4"), ("60%", "60 \\%"),
    ],
)  # fmt: skip
def test_the_same_answer_has_one_spelling(one: str, other: str) -> None:
    assert spelt(one) == spelt(other)


@pytest.mark.parametrize(("one", "other"), [("1080", "1081"), ("60%", "60"), ("C", "D"), ("x+1", "x-1"), ("4", "-4")])
def test_other_answers_have_another(one: str, other: str) -> None:
    assert spelt(one) != spelt(other)


@pytest.mark.parametrize(
    ("how", "response", "answer"),
    [
        ("math", "It is \\boxed{1,080}.", "1080"),
        ("math", "so 24*45=1080 but \\boxed{}", None),
        ("math", "The answer is 1081.", "1081"),
        ("math", "<think>\\boxed{1}", None),
        ("number", "First 3, then 4.5", "9/2"),
        ("number", "no idea", None),
        ("tags", "<answer>7</answer> or <answer> 8 </answer>", "8"),
        ("tags", "<answer></answer>", None),
        ("tags", "8", None),
        ("tags", "<think><answer>8</answer>", None),
        ("text", " Yes. ", "yes"),
        ("text", "so <answer>No</answer> it is", "no"),
        ("text", "  ", None),
        ("line", "Answer: 20\nNo.\nAnswer: $21$", "21"),
        ("line", "It is \\boxed{21}.", "21"),
        ("line", "I do not know", None),
        ("choice", "So the answer is (b).", "B"),
        ("choice", "\\boxed{C}", "C"),
        ("choice", "A or C, who knows", None),
    ],
)
def test_where_the_answer_stands(how: str, response: str, answer: str | None) -> None:
    assert ANSWERS[how](prompt(), response) == answer


def test_which_answers_go_with_which_reward() -> None:
    assert answers_of_rewards(["my_reward", "math_correct"]) == "math"
    assert answers_of_rewards(["last_number_correct"]) == "number"
    assert answers_of_rewards(["my_reward"]) is None
    assert set(OF_REWARDS) <= set(BUILTINS)
    assert set(OF_REWARDS.values()) <= set(ANSWERS)


def test_the_data_source_decides_as_it_does_for_the_reward() -> None:
    answer_of = ANSWERS["source"]
    assert answer_of(prompt(data_source="openai/gsm8k"), "\\boxed{1,080}") == "1080"
    assert answer_of(prompt(data_source="math_dapo"), "Answer: 1080") == "1080"
    assert answer_of(prompt(data_source="apps"), "print(1)") is None  # programs do not vote
    with pytest.raises(ValueError, match="has no grader"):
        answer_of(prompt(data_source="lab/units"), "1")


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def last_word(response, row):\n    return response.split()[-1] if row['unit'] == 'word' else None\n"
        "def wrong(response):\n    return 3\n"
        "def asks(response, weight):\n    return response\n"
    )
    own = find_answers(f"{file}:last_word")
    assert own(prompt(unit="word"), "It is Blue.") == "blue"
    assert own(prompt(unit="x"), "It is Blue.") is None
    with pytest.raises(TypeError, match="returned int; it must be text or None"):
        find_answers(f"{file}:wrong")(prompt(), "x")
    with pytest.raises(ValueError, match="asks for 'weight'; it can have response, answer, row, prompt"):
        find_answers(f"{file}:asks")
    with pytest.raises(ValueError, match="choices: math, number, line, choice, text, tags, source"):
        find_answers("boxes")


@pytest.mark.parametrize("name", ["math", "line", "choice", "text", "tags"])
def test_a_thought_that_the_prompt_opened_is_none_of_the_answer(name):
    asked = Prompt("1", (), "<|user|>?<|assistant|><think>\n", {}, answer="7")
    unfinished = "it is \\boxed{C}\nAnswer: C <answer>C</answer>"
    assert find_answers(name)(asked, unfinished) is None
    assert find_answers(name)(asked, f"it is \\boxed{{D}}</think>{unfinished}") is not None
