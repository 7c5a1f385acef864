import json

import pytest

from partita.tasks.graders.code_rows import BadTestsError, Call, Code, Program, read_tests

STDIN = {"inputs": ["3\n1 2 3\n", "1\n-5\n"], "outputs": ["6\n", "-5\n"]}
CALLS = {"fn_name": "clip_at", "inputs": [[[5, 9, 2], 4], [[], 1]], "outputs": [[[4, 4, 2]], [[]]]}
PROGRAMS = (Program("3\n1 2 3\n", "6\n"), Program("1\n-5\n", "-5\n"))


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"input_output": json.dumps(STDIN)}, None),
        ({"input_output": STDIN}, None),
        ({}, json.dumps(STDIN)),
        ({"input_output": "{}"}, json.dumps(STDIN)),
        (
            {},
            json.dumps(
                [{"input": i, "output": o, "type": "stdin_stdout"} for i, o in zip(*STDIN.values(), strict=True)]
            ),
        ),
        ({"input_output": {"inputs": [["3", "1 2 3", ""], ["1", "-5", ""]], "outputs": [["6", ""], ["-5", ""]]}}, None),
    ],
)
def test_programs_with_inputs_and_outputs(row, answer):
    assert tuple(read_tests(row, answer)) == PROGRAMS


def test_functions_with_arguments_and_values():
    wrapped = (Call("clip_at", [[5, 9, 2], 4], [[[4, 4, 2]], [4, 4, 2]]), Call("clip_at", [[], 1], [[[]], []]))
    assert tuple(read_tests({"input_output": json.dumps(CALLS)})) == wrapped
    # where one of them cannot be wrapped, none is
    assert read_tests({}, json.dumps({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], 2]})) == (
        Call("f", [1], [[1]]),
        Call("f", [2], [2]),
    )
    # arguments as lines of JSON
    assert read_tests({}, json.dumps({"fn_name": "f", "inputs": ['[1, 2]\n"x"'], "outputs": ["[3]"]})) == (
        Call("f", [[1, 2], "x"], ["[3]", [3]]),
    )


def test_functions_as_livecodebench_names_them():
    case = {"input": "[1]\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "f"}}
    assert read_tests({}, json.dumps([case])) == (Call("f", [[1], 2], ["3", 3]),)
    assert read_tests({}, json.dumps([{**case, "testtype": "stdin", "metadata": {"func_name": None}}])) == (
        Program("[1]\n2", "3"),
    )


def test_asserts_and_check_functions():
    row = {
        "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
        "test_setup_code": "x = 1",
        "test_imports": ["import math"],
    }
    assert read_tests(row) == (
        Code("import math\nx = 1\nassert f(1) == 2\n", "test_list[0]"),
        Code("import math\nx = 1\nassert f(2) == 3\n", "test_list[1]"),
    )
    check = "def check(candidate):\n    assert candidate(1) == 2"
    assert read_tests({"test": check, "entry_point": "f"}) == (Code(f"{check}\ncheck(f)\n", "test"),)
    assert read_tests({"test": "def test_f(): pass"}) == (Code("def test_f(): pass", "test"),)


@pytest.mark.parametrize(
    ("row", "answer", "why"),
    [
        ({"question": "Draw a cat."}, None, "no tests: .* the columns are question"),
        ({"input_output": ""}, None, "input_output is empty"),
        ({"input_output": None}, None, "input_output is empty"),
        ({"input_output": "{"}, None, "input_output is not JSON"),
        ({"input_output": "{}"}, None, "input_output is empty|no lists"),
        ({"input_output": '{"inputs": ["1"], "outputs": []}'}, None, "1 inputs and 0 outputs"),
        ({"input_output": '{"inputs": [], "outputs": []}'}, None, "0 inputs and 0 outputs"),
        ({"input_output": '[{"input": "1"}]'}, None, "no output; its keys are input"),
        ({"input_output": '{"fn_name": "f", "inputs": [5], "outputs": [6]}'}, None, "arguments 5 are no list"),
        ({"input_output": '{"fn_name": "f", "inputs": ["x"], "outputs": [6]}'}, None, "arguments 'x' are not JSON"),
        ({}, '[{"input": "1", "output": "1", "testtype": "functional"}]', "neither fn_name nor metadata.func_name"),
        (
            {},
            '[{"input": "1", "output": "1", "fn_name": "f"}, {"input": "1", "output": "1"}]',
            "its tests are for None, f; expected one function",
        ),
        ({"test_list": []}, None, "test_list is empty"),
        ({"test": " ", "entry_point": "f"}, None, "test is empty"),
    ],
)
def test_a_row_without_usable_tests_says_why(row, answer, why):
    with pytest.raises(BadTestsError, match=why):
        read_tests(row, answer)
