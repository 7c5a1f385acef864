import inspect

import pytest

from partita.tasks.graders.builtin import BUILTINS


def test_every_builtin_is_called_by_name_and_says_what_it_does():
    for name, builtin in BUILTINS.items():
        assert builtin.function.__name__ == name and builtin.function.__doc__
        parameters = inspect.signature(builtin.function).parameters
        assert "response" in parameters or name == "length_target"
        assert "seconds" not in parameters  # what the event loop gives; a column of that name must not collide with it


@pytest.mark.parametrize(
    ("name", "row", "answer", "kwargs", "why"),
    [
        ("code_tests", {"input_output": ""}, None, {}, "input_output is empty"),
        ("by_data_source", {"data_source": "lab"}, "1", {}, "data_source 'lab' has no grader"),
        ("by_data_source", {"data_source": "taco", "input_output": ""}, None, {}, "input_output is empty"),
        ("by_data_source", {}, "1", {}, "data_source 'None' has no grader"),
        ("multiple_choice", {"choices": ["x", "y"]}, "2", {}, "first_index"),
    ],
)
def test_rows_that_can_never_be_judged_are_found_before_a_run(name, row, answer, kwargs, why):
    with pytest.raises(ValueError, match=why):
        BUILTINS[name].check(row, answer, kwargs)


def test_good_rows_pass():
    BUILTINS["code_tests"].check({"test_list": ["assert f(1)"]}, None, {})
    BUILTINS["by_data_source"].check({"data_source": "lab"}, "1", {"sources": {"lab": "exact_match"}})
    BUILTINS["by_data_source"].check({"data_source": "math_dapo"}, "1", {})
    BUILTINS["multiple_choice"].check({"choices": ["x", "y"]}, "1", {"first_index": 0})
