import pytest

from partita.tasks.graders.choice import boxed_choice, multiple_choice, named_choice, read_options

CITIES = ["Rome", "Paris", "London", "Paris, Texas"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (C).", "C"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("The correct option is **D**.", "D"),
        ("I'd go with B", "B"),
        ("I choose option B.", "B"),
        ("the answer is (b)", "B"),
        ("the answer is b.", "B"),
        ("The answer is (B), because (A) and (C) are wrong", "B"),
        ("(A) is wrong, so (B)", "B"),
        ("Answer: A. No, answer: C", "C"),
        ("B", "B"),
        ("(b)", "B"),
        ("Let me see.\n\nB.", "B"),
        ("Final answer: $\\text{B}$", "B"),
        ("the answer is a mystery", None),
        ("the answer is A's", None),
        ("I do not know", None),
        ("A man walks", None),
        ("The answer is not B", None),
        ("Answer: A or C", None),
        ("Answer: A, C", None),
        ("Answer: (A) and (C)", None),
        ("Answer: A/B/C/D", None),
        ("", None),
    ],
)
def test_the_choice_that_a_text_names(text, letter):
    assert named_choice(text) == letter


@pytest.mark.parametrize(
    ("box", "choice"),
    [
        ("C", ("C", "")),
        ("(c)", ("C", "")),
        ("C.", ("C", "")),
        ("C. Paris", ("C", "Paris")),
        ("(C) Paris", ("C", "Paris")),
        ("Option C", ("C", "")),
        ("\\textbf{(C)} Paris", ("C", "Paris")),
        ("A, C", None),
        ("A or C", None),
        ("not A", None),
        ("Cat", None),
        ("", None),
    ],
)
def test_a_box_holds_a_choice_or_something_else(box, choice):
    assert boxed_choice(box) == choice


@pytest.mark.parametrize(
    ("response", "answer", "options", "reward"),
    [
        ("The answer is (B)", "B", CITIES, 1),
        ("The answer is (B)", "Paris", CITIES, 1),
        ("\\boxed{B. Paris}", "B", CITIES, 1),
        ("\\boxed{B. The capital of France}", "B", CITIES, 1),  # a text that is no other choice's
        ("\\boxed{B. London}", "B", CITIES, 0),  # a letter and another choice's text
        ("\\boxed{B. London}", "C", CITIES, 0),
        ("\\boxed{paris}", "B", CITIES, 1),
        ("<answer>Paris.</answer>", "B", CITIES, 1),
        ("Paris", "B", CITIES, 1),
        ("Paris, Texas", "D", CITIES, 1),
        ("Paris or London", "B", CITIES, 0),
        ("It is in France, so the answer is **Paris**.", "B", CITIES, 1),
        ("The answer is Rome. No: the answer is Paris.", "B", CITIES, 0),  # the last statement is not one text
        ("The answer is Rome.\nNo: the answer is Paris.", "B", CITIES, 1),
        ("The answer is Paris or Rome.", "B", CITIES, 0),
        ("The answer is not Paris", "B", CITIES, 0),
        ("E", "B", CITIES, 0),
        ("<think>B</think>A", "B", CITIES, 0),
        ("<think>B", "B", CITIES, 0),
        ("B", "b", None, 1),
        ("A", "B", None, 0),
        ("2", "2", {"label": ["1", "2"], "text": ["a", "b"]}, 0),  # labels that are no letters are named by their text
        ("b", "2", {"label": ["1", "2"], "text": ["a", "b"]}, 1),
    ],
)
def test_letters_and_texts(response, answer, options, reward):
    assert multiple_choice(response, answer, options) == reward


def test_an_index_is_only_read_when_said_so():
    assert multiple_choice("The answer is C", "2", choices=CITIES, first_index=0) == 1.0
    assert multiple_choice("The answer is B", "2", choices=CITIES, first_index=1) == 1.0
    for numbers in (CITIES, ["1", "2", "3", "4"]):
        with pytest.raises(ValueError, match="first_index"):
            multiple_choice("C", "2", choices=numbers)
    with pytest.raises(ValueError, match="there are 4 choices"):
        multiple_choice("C", "4", choices=CITIES, first_index=0)


def test_layouts_of_options():
    assert read_options(["x", "y"]) == {"A": "x", "B": "y"}
    assert read_options({"a": "x"}) == {"A": "x"}
    assert read_options({"label": ["A", "B"], "text": ["x", "y"]}) == {"A": "x", "B": "y"}
    with pytest.raises(ValueError, match="expected a list of texts"):
        read_options("A) x B) y")
