import pytest

from partita.tasks.graders.dapo import answer_line, dapo_answer


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("5+16=21\nAnswer: 21", 1),
        ("Answer: 20\nNo.\nAnswer: 21", 1),
        ("Answer: $21$", 1),
        ("Answer: \\boxed{21}", 1),
        ("answer: 21", 1),
        ("**Answer:** 21", 1),
        ("Answer: 21.", 1),
        ("Answer: 20", -1),
        ("Answer: 21\nAnswer: 20", -1),
        ("", -1),
        ("So it is \\boxed{21}.", -1),
        ("It is 21", -1),
        ("Answer: 21\n" + "so " * 170, 1),
        ("<think>Answer: 21</think> I give up", -1),
        ("<think>Answer: 21", -1),
    ],
)
def test_the_last_answer_line_decides(response, score):
    assert dapo_answer(response, "21") == {"score": float(score), "accuracy": float(score == 1)}


def test_options():
    assert dapo_answer("So it is \\boxed{21}.", "21", boxed=True)["score"] == 1.0
    assert dapo_answer("Answer: 20\n\\boxed{21}", "21", boxed=True)["score"] == -1.0  # a line goes before a box
    assert dapo_answer("Answer: 20", "21", right=2.0, wrong=0.0) == {"score": 0.0, "accuracy": 0.0}
    assert dapo_answer("Answer: 21", "21", right=2.0, wrong=0.0) == {"score": 2.0, "accuracy": 1.0}


def test_what_the_line_holds():
    assert answer_line("Answer: $\\frac{1}{2}$.") == "\\frac{1}{2}"
    assert answer_line("Answer:\n21") == "21"
    assert answer_line("Answer:") is None and answer_line("Answer: \\boxed{") is None
