import pytest

from partita.tasks.graders.sources import UnknownSourceError, by_data_source, grader_of


@pytest.mark.parametrize(
    ("source", "grader"),
    [
        ("math_dapo", "dapo_answer"),
        ("aime2024", "dapo_answer"),
        ("openai/gsm8k", "math_correct"),
        ("DigitalLearningGmbH/MATH-lighteval", "math_correct"),
        ("taco", "code_tests"),
    ],
)
def test_every_source_has_its_grader(source, grader):
    assert grader_of(source) == grader


def test_rows_are_judged_by_their_source():
    assert by_data_source("Answer: 21", "21", "math_dapo", {}) == {"score": 1.0, "accuracy": 1.0}
    assert by_data_source("Answer: 20", "21", "math_dapo", {}) == {"score": -1.0, "accuracy": 0.0}
    assert by_data_source("#### 21", "21", "openai/gsm8k", {}) == {"score": 1.0}
    tests = '{"inputs": ["1"], "outputs": ["2"]}'
    judged = by_data_source("```python\nprint(int(input()) + 1)\n```", tests, "taco", {})
    assert judged["score"] == 1.0 and judged["tests"] == 1


def test_further_sources_come_from_the_config():
    assert by_data_source("Paris", "paris", "lab/cities", {}, sources={"lab/cities": "exact_match"}) == {"score": 1.0}
    with pytest.raises(UnknownSourceError, match=r"sources.lab/cities: no grader 'exact'"):
        by_data_source("Paris", "paris", "lab/cities", {}, sources={"lab/cities": "exact"})
    with pytest.raises(
        UnknownSourceError, match=r"data_source 'lab/units' has no grader; known are openai/gsm8k, .*taco"
    ):
        by_data_source("x", "x", "lab/units", {})
