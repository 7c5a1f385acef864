"""Reads the tests of a data row: whole programs with inputs and outputs, functions with arguments and values, or code.

Read are, in this order: `answer` where it is JSON with tests (`columns.answer=input_output`, `reward_model.ground_truth`);
the column `input_output` (APPS, TACO); `test_list` with `test_setup_code` or `test_imports` (MBPP); `test` with
`entry_point` (HumanEval), or alone (test functions that import from `solution`).

Left out: programs that judge outputs, of which some contests have several right ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


class BadTestsError(ValueError):
    """A row without tests, or with tests in no known layout; the message says which column."""

    __test__ = False  # not a test class of pytest's


@dataclass(frozen=True)
class Program:
    """A whole program reads `stdin` and must print `expected`."""

    stdin: str
    expected: str


@dataclass(frozen=True)
class Call:
    """The function `name`, called with `arguments`, must return one of `expected`. All are JSON values."""

    name: str
    arguments: Sequence[Any]
    expected: Sequence[Any]


@dataclass(frozen=True)
class Code:
    """Tests that are code: they pass if nothing is raised. `about`: where they stand, for messages."""

    source: str
    about: str


Test = Program | Call | Code


def read_tests(row: Mapping[str, Any], answer: str | None = None) -> Sequence[Test]:
    """The tests of a row, at least one. Raises BadTestsError."""
    if answer is not None and answer.lstrip()[:1] in ("{", "["):
        return _from_json(answer, "answer")
    if "input_output" in row:
        return _from_json(row["input_output"], "input_output")
    if "test_list" in row:
        return _from_asserts(row)
    if "test" in row:
        return (_from_code(row),)
    raise BadTestsError(
        "no tests: neither input_output (APPS, TACO), test_list (MBPP) nor test (HumanEval) is a column, and "
        f"train_dataset.columns.answer names no tests; the columns are {', '.join(row)}"
    )


def _from_json(value: Any, column: str) -> Sequence[Test]:
    if not value or (isinstance(value, str) and not value.strip()):
        raise BadTestsError(f"{column} is empty: the row has no tests")
    if isinstance(value, str):
        return _from_text(value, column)
    return _from_object(value, column)


@lru_cache(maxsize=16)  # the samples of a group have one row
def _from_text(text: str, column: str) -> Sequence[Test]:
    try:
        return _from_object(json.loads(text), column)
    except json.JSONDecodeError as error:
        raise BadTestsError(f"{column} is not JSON: {error}") from error


def _from_object(found: Any, column: str) -> Sequence[Test]:
    """{inputs, outputs, fn_name?}, or a list of {input, output, fn_name? or metadata.func_name? (LiveCodeBench)}."""
    if isinstance(found, list) and found and all(isinstance(case, Mapping) for case in found):
        keys = {"input", "output"} - set.intersection(*(set(case) for case in found))
        if keys:
            raise BadTestsError(
                f"{column}: a test has no {' and no '.join(sorted(keys))}; its keys are {', '.join(found[0])}"
            )
        found = {
            "inputs": [case["input"] for case in found],
            "outputs": [case["output"] for case in found],
            "fn_name": _one_function(found, column),
        }
    if not isinstance(found, Mapping) or not all(isinstance(found.get(key), list) for key in ("inputs", "outputs")):
        raise BadTestsError(f"{column} has no lists `inputs` and `outputs`, and is no list of {{input, output}}")
    inputs, outputs = found["inputs"], found["outputs"]
    if len(inputs) != len(outputs) or not inputs:
        raise BadTestsError(
            f"{column} has {len(inputs)} inputs and {len(outputs)} outputs; expected as many, at least one"
        )
    if not found.get("fn_name"):
        return tuple(Program(_lines(given), _lines(out)) for given, out in zip(inputs, outputs, strict=True))
    wrapped = all(isinstance(out, list) and len(out) == 1 for out in outputs)
    return tuple(
        Call(found["fn_name"], _arguments(given, column), _expected(out, wrapped))
        for given, out in zip(inputs, outputs, strict=True)
    )


def _one_function(cases: Sequence[Mapping[str, Any]], column: str) -> str | None:
    """The function that all of the tests are for, None for whole programs. Raises BadTestsError."""
    names = {case.get("fn_name") or _func_name(case.get("metadata")) for case in cases}
    if len(names) > 1:
        raise BadTestsError(
            f"{column}: its tests are for {', '.join(sorted(map(str, names)))}; expected one function for all"
        )
    name = names.pop()
    if name is None and any(case.get("testtype") == "functional" for case in cases):
        raise BadTestsError(f"{column}: a test of a function has neither fn_name nor metadata.func_name")
    return name


def _func_name(metadata: Any) -> Any:
    return metadata.get("func_name") if isinstance(metadata, Mapping) else None


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(" ".join(map(str, line)) if isinstance(line, list) else str(line) for line in value)
    return str(value)


def _arguments(given: Any, column: str) -> Sequence[Any]:
    if isinstance(given, str):  # one argument a line, each as JSON
        try:
            return [json.loads(line) for line in given.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise BadTestsError(f"{column}: arguments {given[:80]!r} are not JSON, one a line") from error
    if not isinstance(given, list):
        raise BadTestsError(f"{column}: arguments {given!r:.80} are no list")
    return given


def _expected(out: Any, wrapped: bool) -> Sequence[Any]:
    """A value may stand in one more list than it should: where all of a row's do, either reading is right."""
    if isinstance(out, str):
        try:
            return [out, json.loads(out)]
        except json.JSONDecodeError:
            return [out]
    return [out, out[0]] if wrapped else [out]


def _from_asserts(row: Mapping[str, Any]) -> Sequence[Test]:
    asserts = [str(line) for line in (row["test_list"] if row["test_list"] is not None else [])]
    if not asserts:
        raise BadTestsError("test_list is empty: the row has no tests")
    imports = row.get("test_imports")
    setup = "\n".join([*(imports if imports is not None else []), str(row.get("test_setup_code") or "")])
    return tuple(Code(f"{setup}\n{line}\n", f"test_list[{number}]") for number, line in enumerate(asserts))


def _from_code(row: Mapping[str, Any]) -> Test:
    source, name = row["test"], row.get("entry_point")
    if not isinstance(source, str) or not source.strip():
        raise BadTestsError("test is empty: the row has no tests")
    return Code(f"{source}\ncheck({name})\n" if name else source, "test")
