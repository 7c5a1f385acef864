import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from partita.tasks.dataset import DatasetConfig, load_rows
from partita.tasks.graders import math
from partita.tasks.graders.math import (
    UnjudgedError,
    final_answer,
    math_correct,
    math_correct_async,
    quick_equal,
    same_answer,
)

ROWS = Path(__file__).parents[1] / "gsm8k_rows.jsonl"
# By hand: gold answer, response, whether it is right, and why.
ADVERSARIAL = [
    json.loads(line) for line in Path(__file__).with_name("adversarial_answers.jsonl").read_text().splitlines()
]


def box(text):
    return f"\\boxed{{{text}}}"


def test_fifty_word_problems_right_and_wrong():
    rows = load_rows(DatasetConfig(path=str(ROWS)), seed=1).rows
    assert len(rows) == 50
    assert [row.answer for row in rows[:3]] == ["1080", "-4", "2.25"]
    assert [row.answer for row in rows if math_correct(row.row["right"], row.answer) != 1.0] == []
    assert [row.answer for row in rows if math_correct(row.row["wrong"], row.answer) != 0.0] == []


def test_most_word_problems_need_no_algebra():
    rows = load_rows(DatasetConfig(path=str(ROWS)), seed=1).rows
    undecided = [row for row in rows if quick_equal(row.answer, final_answer(row.row["right"], row.answer)) is None]
    assert undecided == []


def wrongly_judged(rows):
    return [row for row in rows if math_correct(row["response"], row["gold"]) != row["right"]]


def needs_algebra(row):
    given = final_answer(row["response"], row["gold"])
    return given is not None and quick_equal(row["gold"], given) is None


def test_adversarial_answers_that_need_no_algebra_are_judged_right():
    rows = [row for row in ADVERSARIAL if not needs_algebra(row)]
    assert len(ADVERSARIAL) >= 200 and len(rows) >= 200 and wrongly_judged(rows) == []


@pytest.mark.slow
def test_all_adversarial_answers_are_judged_right():
    assert wrongly_judged(ADVERSARIAL) == []


@pytest.mark.parametrize(
    ("response", "gold", "reward"),
    [
        # plain numbers
        (box("1080"), "1080", 1),
        (box("1,080"), "1080", 1),
        (box("1080.0"), "1080", 1),
        (box("1081"), "1080", 0),
        (box("24"), "1080", 0),
        ("I think 24*45=1080 but one broke, so \\boxed{1079}", "1080", 0),
        ("", "1080", 0),
        ("The answer is 1080.", "1080", 1),
        (box("-4"), "-4", 1),
        (box("4"), "-4", 0),
        (box("\\$2.25"), "2.25", 1),
        (box("\\frac{9}{4}"), "2.25", 1),
        (box("225"), "2.25", 0),
        # braces
        ("... so \\boxed{\\frac{5}{8}}", "5/8", 1),
        (box("{" * 3000 + "}" * 3000), "5", 0),
        ("\\boxed {5}", "5", 1),
        # several boxes, unfinished and empty ones
        ("Hence \\boxed{615}. To sum up: \\boxed{615}", "615", 1),
        ("Hence \\boxed{615}." + " so" * 170 + " \\boxed{615}", "615", 1),
        ("I think \\boxed{5}. Hmm, rather \\boxed{", "5", 0),
        ("I think \\boxed{5}. Hmm, rather \\boxed{}", "5", 0),
        ("I think \\boxed{5}. Hmm, rather \\boxed", "5", 0),
        ("I think \\boxed{5}. Hmm, rather \\boxed{5", "5", 0),
        # thousands
        (box("1{,}234"), "1234", 1),
        (box("1\\,234"), "1234", 1),
        (box("1 234"), "1234", 1),
        (box("1,234.0"), "1234", 1),
        (box("3118007"), "3,118,007", 1),
        (box("12"), "1,2", 0),
        (box("1,2"), "12", 0),
        ("The total is 3,118,007. So \\boxed{007}", "7", 1),
        # units, currency, percent
        (box("28\\text{ kg}"), "28", 1),
        (box("28 kg"), "28", 1),
        (box("\\$28"), "28", 1),
        (box("60"), "60\\%", 1),
        (box("0.6"), "60\\%", 1),
        (box("60\\%"), "60\\%", 1),
        (box("60%"), "60\\%", 1),
        (box("5"), "0.05", 0),
        # choices
        ("I do not know", "A", 0),
        ("A man walks... the answer is (C)", "A", 0),
        ("A man walks... the answer is (C)", "C", 1),
        ("Answer: B", "B", 1),
        (box("\\text{(C)}"), "C", 1),
        (box("C"), "A", 0),
        # thinking
        ("<think>the answer is \\boxed{7}</think> I give up", "7", 0),
        ("<think>the answer is \\boxed{7}", "7", 0),
        ("maybe \\boxed{10}</think> \\boxed{12}", "12", 1),
        # the answer line of the data's own format, and headings that look like it
        ("24*45\n#### 1,080", "1080", 1),
        ("#### Step 1\n24*45=1080\n#### Step 2\nIt is 1080", "1080", 1),
        # tags
        ("<answer>5</answer>, in 3 steps", "5", 1),
        ("<answer>It is 5 dollars</answer>, in 3 steps", "5", 1),
        ("<answer>\\sqrt{2}</answer>", "\\sqrt{2}", 1),
        ("<answer>(B)</answer> and not (A)", "B", 1),
        ("<answer>6</answer> <answer>5</answer>", "5", 1),
        ("<answer>5</answer> <answer>", "5", 0),
        ("<answer></answer> 5", "5", 0),
        ("<answer>\\boxed{5}</answer>", "5", 1),
        # words
        (box("\\text{Tuesday}"), "tuesday", 1),
        (box("Tuesady"), "Tuesday", 0),
        ("It is Tuesday", "Tuesday", 0),
    ],
)
def test_the_final_answer_decides(response, gold, reward):
    started = time.monotonic()
    assert math_correct(response, gold) == reward
    assert time.monotonic() - started < 5.0  # the first symbolic case starts a process


def test_thousands_of_braces_are_wrong_at_once():
    started = time.monotonic()
    assert math_correct(box("{" * 3000 + "}" * 3000), "5") == math_correct("\\boxed{" * 3000, "5") == 0.0
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        ("\\{2,1\\}", "\\{1,\\,2\\}", 1),
        ("x \\le 3", "(-\\infty,3]", 1),
        ("(-\\infty,3]", "x \\le 3", 1),
        ("x=5", "5", 1),
        ("5", "x=5", 1),
        ("(1,2)", "(2,1)", 0),
        ("2\\sqrt{3}", "\\sqrt{12}", 1),
        ("(x+1)^2", "x^2+2x+1", 1),
        ("28", "28x", 0),
        ("2\\pi", "6.28", 0),
        ("5", "5,6", 0),
    ],
)
def test_algebra_is_judged_either_way_round(gold, answer, reward):
    assert math_correct(box(answer), gold) == reward


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10^{10^{10}}", "(10^8)!"])
def test_an_expression_that_would_take_for_ever_is_wrong_and_harms_nobody(answer, monkeypatch):
    async def score():
        return await asyncio.gather(
            math_correct_async(box(answer), "1"), math_correct_async(box("\\sqrt{12}"), "2\\sqrt{3}")
        )

    assert math_correct(box("\\sqrt{12}"), "2\\sqrt{3}") == 1.0  # the workers are up
    monkeypatch.setattr(math, "PROCESSOR_SECONDS", 0.4)
    assert asyncio.run(score()) == [0.0, 1.0]


def test_a_comparison_that_got_too_little_of_a_processor_is_no_wrong_answer():
    with pytest.raises(
        UnjudgedError, match=r"'9\^\{9\^9\}' was not compared with '1': .* raise reward.timeout_seconds"
    ):
        same_answer("1", "9^{9^9}", 0.001)


def test_blanks_without_end_cost_nothing():
    started = time.process_time()
    assert final_answer("answer" + " " * 100_000, "x") is None
    assert time.process_time() - started < 1.0


@pytest.mark.slow
def test_hostile_expressions_end_within_the_limit_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(math_correct(box("9^{9^{9^{9}}}"), "1")))
    started = time.monotonic()
    thread.start()
    thread.join()
    assert found == [0.0] and time.monotonic() - started < math.LIMIT_SECONDS
