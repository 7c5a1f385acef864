import pytest

from partita.tasks.graders.text import last_number_correct, think_answer_format


@pytest.mark.parametrize(
    ("response", "reward"),
    [("88", 1), ("The largest of 12, 88, 3, 54 is 88.", 1), ("88, not 12", 0), ("88.0", 1), ("-88", 0), ("", 0)],
)
def test_the_last_number_counts(response, reward):
    assert last_number_correct(response, "88") == reward


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<think>a</think><answer>1</answer>", 1),
        (" <think>a\nb</think>\n<answer>1</answer>\n", 1),
        ("<think>a</think><answer>1</answer><think>b</think><answer>2</answer>", 0),
        ("<think>x", 0),
        ("<think>a</think><answer>1</answer> and more", 0),
        ("<think><answer>0</answer></think><answer>1</answer>", 0),
        ("42", 0),
    ],
)
def test_one_thought_and_one_answer(response, reward):
    assert think_answer_format(response) == reward
