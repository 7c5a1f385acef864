"""Figures of groups that were made by hand: what is right, what votes, what was cut, and each category by itself."""

import pytest
from evals.made import GROUPS, NUMBERS, group, numbers, sample

from partita.config import ConfigError
from partita.evals.answers import ANSWERS
from partita.evals.config import EvaluatorConfig
from partita.evals.measures import CORRECT, Measures, summarise
from partita.records import Prompt
from partita.tasks.files import DataError
from partita.tasks.graders.builtin import BUILTINS


def test_reward_accuracy_pass_and_majority_by_hand() -> None:
    found = summarise(GROUPS, NUMBERS, 4).estimates
    assert list(found) == ["reward", "avg@4", "pass@1", "pass@2", "pass@4", "maj@1", "maj@2", "maj@4"]
    means = {name: estimate.mean for name, estimate in found.items()}
    # right of four: 2, 1, 0
    assert means["reward"] == means["avg@4"] == means["pass@1"] == means["maj@1"] == pytest.approx(3 / 12)
    assert means["pass@2"] == pytest.approx((5 / 6 + 3 / 6 + 0) / 3)
    assert means["pass@4"] == pytest.approx(2 / 3)
    # pairs of 7 7 9 none: 77 and the two of 7 and none win, both 79 tie; of 9 9 7 3: 79 79 73 tie
    assert means["maj@2"] == pytest.approx(((1 + 2 + 2 / 2) / 6 + 3 / 2 / 6 + 0) / 3)
    assert means["maj@4"] == pytest.approx(1 / 3)
    assert found["avg@4"].low == found["pass@1"].low == found["maj@1"].low


def test_categories_have_their_own_figures() -> None:
    found = summarise(GROUPS, Measures((1, 4), answer_of=ANSWERS["number"], by="level"), 4).categories
    assert {name: one.prompts for name, one in found.items()} == {"easy": 1, "hard": 2}
    assert {name: one.estimates["avg@4"].mean for name, one in found.items()} == {"easy": 0.5, "hard": 0.125}
    assert found["hard"].estimates["pass@4"].mean == 0.5


def test_answers_that_the_reward_calls_right_vote_together() -> None:
    written = [sample("1/2", 1.0), sample("0.5", 1.0), sample("x", 1.0), sample("3", 0.0), sample("3", 0.0)]
    found = summarise([group(0, *written, answer="0.5")], Measures((5,), answer_of=ANSWERS["text"]), 5)
    assert found.estimates["maj@5"].mean == 1.0
    named_right = [sample("right", 0.0), sample("7", 1.0), sample("right", 0.0)]  # a wrong answer of that name
    assert (
        summarise([group(0, *named_right)], Measures((3,), answer_of=ANSWERS["text"]), 3).estimates["maj@3"].mean == 0.0
    )


def test_cut_responses_answers_lengths_and_parts_are_counted() -> None:
    one = group(0, sample("7", 1.0, 6, "length", format=1.0), sample("none", 0.0, 2), sample("x", None, 4))
    found = summarise([one], NUMBERS, 3)
    assert (found.samples, found.errors, found.length) == (3, 1, 4.0)
    assert found.truncated == pytest.approx(1 / 3)
    assert found.answered == pytest.approx(1 / 3)
    assert found.parts == {"format": (1.0, 1)}  # of the one sample that has it
    assert any("33% of the responses were cut at max_new_tokens" in note for note in found.notes)


def test_a_prompt_with_too_few_scored_samples_is_left_out_and_said() -> None:
    groups = [*GROUPS, group(3, *numbers("7", "7"), sample("7", None), sample("7", None))]
    found = summarise(groups, NUMBERS, 4)
    assert found.estimates["pass@4"].prompts == 3
    assert found.estimates["avg@4"].prompts == 4
    assert "pass@4 is over 3 prompts: 1 have too few samples with a reward" in found.notes


def test_a_part_says_what_is_right() -> None:
    weighed = Measures((1,), part="math_correct")
    one = group(0, sample("7", 1.2, math_correct=1.0, short=0.2), sample("9", 0.2, math_correct=0.0, short=0.2))
    found = summarise([one], weighed, 2)
    assert (found.estimates["reward"].mean, found.estimates["avg@2"].mean) == (pytest.approx(0.7), 0.5)
    assert weighed.rule == "math_correct ≥ 1"


def test_where_the_part_says_nothing_a_sample_is_neither_right_nor_wrong() -> None:
    groups = [
        group(0, sample("7", 1.0, code=1.0), sample("7", 0.0, code=0.0), kind="code"),
        group(1, sample("x", 0.5), sample("y", 0.5), kind="words"),
    ]
    found = summarise(groups, Measures((1, 2), part="code", by="kind"), 2)
    assert found.estimates["avg@2"].mean == 0.5
    assert found.estimates["avg@2"].prompts == 1
    assert set(found.categories["words"].estimates) == {"reward"}  # absent, not 0
    with pytest.raises(
        ConfigError, match=r"evaluator.correct_by: no sample has the part maths of the reward; parts: code"
    ):
        summarise(groups, Measures((1,), part="maths"), 2)


def test_a_part_that_only_some_samples_have_is_averaged_over_those_of_each_source() -> None:
    groups = [
        group(0, sample("a", 1.0, short=0.2), sample("b", 0.0), source="A"),
        group(1, sample("c", 0.0), sample("d", 1.0, short=0.4), source="A"),
        group(2, sample("e", 1.0, short=0.9), sample("f", 0.0, tidy=1.0), source="B"),
    ]
    found = summarise(groups, Measures((1,), by="source"), 2)
    assert found.parts == {"short": (pytest.approx(0.5), 3), "tidy": (1.0, 1)}
    assert found.categories["A"].parts == {"short": (pytest.approx(0.3), 2)}  # tidy is absent, not 0
    assert found.categories["B"].parts == {"short": (0.9, 1), "tidy": (1.0, 1)}


def test_rewards_that_never_reach_the_threshold_are_said() -> None:
    found = summarise([group(0, sample("a", 0.4), sample("b", 0.2))], Measures((1,)), 2)
    [note] = [note for note in found.notes if "no sample counts as right" in note]
    assert "(reward ≥ 1); the highest reward is 0.4" in note


def test_a_failing_answer_function_costs_the_majority_only() -> None:
    def fails(prompt: Prompt, response: str) -> str:
        raise KeyError(response)

    found = summarise(GROUPS, Measures((1,), answer_of=fails), 4)
    assert "maj@1" not in found.estimates
    assert found.estimates["pass@1"].mean == pytest.approx(0.25)
    assert found.failed.startswith("answer_of failed on 12 responses; the first: KeyError: '7'")
    assert summarise(GROUPS, Measures((1,)), 4).failed == ""


def test_from_the_section_and_the_names_of_the_rewards() -> None:
    section = EvaluatorConfig(n_samples=4)
    assert Measures.of(section, ["math_correct", "short"]) == Measures(
        (1, 4), "math_correct", answer_of=ANSWERS["math"]
    )
    assert Measures.of(section, ["mine"]) == Measures((1, 4))
    assert Measures.of(section, ["dapo_answer"]).part == "dapo_answer/accuracy"
    assert set(CORRECT) <= set(BUILTINS)
    with pytest.raises(
        ConfigError, match=r"evaluator\.correct_by: mine/acc: the reward has no such part; it has math_correct"
    ):
        Measures.of(EvaluatorConfig(correct_by="mine/acc"), ["math_correct"])
    assert Measures.of(EvaluatorConfig(correct_by="mine/acc"), ["mine"]).part == "mine/acc"
    with pytest.raises(ConfigError, match=r"evaluator\.answer_of: boxes"):
        Measures.of(EvaluatorConfig(answer_of="boxes"), ["mine"])


def test_a_column_that_is_not_there_is_said_before_anything_is_sampled() -> None:
    prompts = [one.prompt for one in GROUPS]
    Measures(by="level").check(prompts)
    with pytest.raises(
        DataError, match=r"row p0: no column 'levle' \(near: level\), which `by` names; its columns: level"
    ):
        Measures(by="levle").check(prompts)
