import pytest

from partita.tasks.graders.text import (
    exact_match,
    fuzzy_match,
    last_number_correct,
    length_target,
    think_answer_format,
)


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
        ("<answer>1</answer><think>a</think>", 0),
        ("<think>" + "</think><answer></answer>" * 2000 + "x", 0),
        ("42", 0),
    ],
)
def test_one_thought_and_one_answer(response, reward):
    assert think_answer_format(response) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("Paris", "Paris", 1),
        (" paris. ", "Paris", 1),
        ("New   York", "new york", 1),
        ("ＮＡＳＡ", "NASA", 1),  # full width
        ("<answer>Paris</answer>", "Paris", 1),
        ("\\boxed{Paris}", "Paris", 1),
        ("<think>Paris</think>Rome", "Paris", 0),
        ("It is Paris", "Paris", 0),
        ('"Don\'t!"', "dont", 1),
        ("e-mail", "email", 1),
        ("1,000", "1000", 1),
        # signs that carry a value
        ("5", "-5", 0),
        ("35", "3.5", 0),
        ("1030", "10:30", 0),
        ("50", "50%", 0),
        ("C", "C++", 0),
        ("1", "1/2", 0),
        ("2010-2012", "20102012", 0),
        ("Parsi", "Paris", 0),
        ("", "Paris", 0),
        ("", "", 0),
    ],
)
def test_exact_match(response, answer, reward):
    assert exact_match(response, answer) == reward


def test_differences_that_count_can_be_chosen():
    assert exact_match("paris", "Paris", case=False) == 0.0 and exact_match("Paris", "Paris", case=False) == 1.0
    assert exact_match("a  b", "a b", space=False) == 0.0 and exact_match("a b.", "a b", punctuation=False) == 0.0
    assert exact_match("\uff21", "A", nfkc=False) == 0.0
    assert exact_match("the Big Apple", "New York", aliases=["NYC", "The Big Apple"]) == 1.0


def test_fuzzy_match():
    assert fuzzy_match("Paris", "paris") == 1.0
    assert fuzzy_match("abcd", "abxd") == pytest.approx(2 * 3 / 8)  # difflib: a b d of 4 + 4
    assert fuzzy_match("abcd", "abxd", least=0.8) == 0.0
    assert fuzzy_match("the red car", "a red car here", by="words") == pytest.approx(2 * 2 / 7)
    assert fuzzy_match("x", "abc", aliases=["xy"]) == pytest.approx(2 / 3)
    assert fuzzy_match("", "abc") == fuzzy_match("", "abc", by="words") == 0.0
    assert fuzzy_match("a" * 500, "a") == 0.0


@pytest.mark.parametrize(
    ("length", "reward"), [(100, 1), (110, 1), (90, 1), (135, 0.5), (65, 0.5), (160, 0), (40, 0), (500, 0), (0, 0)]
)
def test_length_target(length, reward):
    assert length_target([7] * length, 100, band=10, soft=50) == reward


def test_length_target_may_count_on_one_side_only():
    assert length_target([7] * 10, 100, side="above") == 1.0 and length_target([7] * 150, 100, side="above") == 0.5
    assert length_target([7] * 50, 100, side="below") == 0.5 and length_target([7] * 500, 100, side="below") == 1.0
    assert length_target([7] * 101, 100, soft=0) == 0.0
