"""Judges programs by their tests: every test runs in a contained process of its own.

The program is the last fenced block marked as Python, else the last unmarked one; only what follows `</think>` counts.
What is expected never enters the process of the program, see `sandbox.program`. A program that is wrong, hangs, crashes
or attacks is judged wrong; only tests or a sandbox that do not work are an error.

Left out: other languages, packages from outside the standard library.
"""

from __future__ import annotations

import json
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partita.tasks.functions import ending
from partita.tasks.graders.code_compare import same_output, same_value
from partita.tasks.graders.code_rows import BadTestsError, Call, Code, Program, Test, read_tests
from partita.tasks.graders.final import after_thinking, fenced_blocks
from partita.tasks.graders.sandbox.box import Ran, Sandbox, Source, borrow
from partita.tasks.graders.sandbox.orders import Limits

LIMIT_SECONDS = 10.0
_MARKS = ("python", "python3", "py")
# Signatures that come with a problem use these names without an import.
_TYPES = "from typing import *\n"

_SHOWN = 100  # characters of a value in a note
Verdict = Literal["passed", "failed", "late"]
Graded = dict[str, float | str]


class UnfinishedError(RuntimeError):
    """There was no time for all tests although none of them failed, so nothing is known about the program."""


@dataclass(frozen=True)
class _Judged:
    """What came out of a test; why: what went wrong in one that was not passed."""

    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class _Options:
    limits: Limits
    tolerance: float
    prelude: str


def code_tests(
    response: str,
    row: Mapping[str, Any],
    answer: str | None = None,
    fraction: bool = False,
    test_seconds: float = 4.0,
    memory_mb: int = 512,
    tolerance: float = 1e-6,
    max_tests: int | None = None,
    prelude: str = "",
    limit_seconds: float = LIMIT_SECONDS,
) -> Graded:
    """1.0 when the response's program passes all tests of its row, else 0.0; with `fraction`, the share that it passes.

    The tests are found as `code_rows` says. test_seconds: processor time for one test; three times as much by the clock.
    memory_mb: for one test. tolerance: of numbers with a decimal point, see `code_compare`. max_tests: the first ones
    only. prelude: code run before the program, as imports that a data set takes for granted. limit_seconds: no test is
    started later than this after the first; where it is a reward, reward.timeout_seconds.
    Parts: passed (the share), tests, late (tests that ran out of time), program (0.0 where the response has none). Note:
    failure, the first test that was not passed and what happened in it.
    Raises BadTestsError for a row without usable tests, SandboxError where programs cannot be contained, UnfinishedError.
    """
    options = _Options(Limits(math.ceil(test_seconds), 3 * test_seconds, memory_mb), tolerance, prelude)
    return _judge(response, read_tests(row, answer)[:max_tests], fraction, options, limit_seconds)


def find_program(response: str) -> str | None:
    """The program in a response, None without one."""
    text = after_thinking(response)
    blocks = [] if text is None else fenced_blocks(text)
    python = [code for mark, code in blocks if mark.lower() in _MARKS]
    chosen = python or [code for mark, code in blocks if not mark]
    return textwrap.dedent(chosen[-1]) if chosen and chosen[-1].strip() else None


def _judge(response: str, tests: Sequence[Test], fraction: bool, options: _Options, seconds: float) -> Graded:
    code = find_program(response)
    if code is None:
        why = "no closed block marked as python, and none without a mark"
        return {"score": 0.0, "passed": 0.0, "tests": len(tests), "late": 0.0, "program": 0.0, "failure": why}
    with borrow() as sandbox:
        ran = _run_all(sandbox, code, tests, fraction, options, seconds)
    verdicts = [one.verdict for one in ran]
    passed = verdicts.count("passed") / len(tests)
    score = passed if fraction else float(passed == 1.0)
    found: Graded = {
        "score": score,
        "passed": passed,
        "tests": len(tests),
        "late": verdicts.count("late"),
        "program": 1.0,
    }
    failures = [f"test {number} of {len(tests)}: {one.why}" for number, one in enumerate(ran, 1) if one.why]
    return found | {"failure": failures[0]} if failures else found


def _run_all(
    sandbox: Sandbox, code: str, tests: Sequence[Test], fraction: bool, options: _Options, seconds: float
) -> list[_Judged]:
    """What is known of the tests, up to where the rest cannot change the score, or may not be started any more."""
    judged: list[_Judged] = []
    deadline = time.monotonic() + seconds
    for test in tests:
        verdicts = [one.verdict for one in judged]
        if verdicts and time.monotonic() > deadline:
            # A program that was late before explains the lack of time; so does one that is judged wrong already.
            if "late" in verdicts or (not fraction and "failed" in verdicts):
                break
            raise UnfinishedError(
                f"only {len(verdicts)} of {len(tests)} tests were run within {seconds:g} seconds (reward.timeout_seconds), "
                "none of them too slow by itself; raise it or set max_tests"
            )
        judged.append(_run(sandbox, code, test, options))
        if judged[-1].verdict == "late" and not fraction:
            break  # wrong already, and the next would take as long
    return judged


def _run(sandbox: Sandbox, code: str, test: Test, options: _Options) -> _Judged:
    if isinstance(test, Program):
        return _run_program(sandbox, Source(code, options.prelude), test, options)
    source = Source(code, _TYPES + options.prelude)
    return (
        _run_call(sandbox, source, test, options)
        if isinstance(test, Call)
        else _run_code(sandbox, source, test, options)
    )


def _run_program(sandbox: Sandbox, source: Source, test: Program, options: _Options) -> _Judged:
    ran = sandbox.program(source, test.stdin.encode(errors="surrogateescape"), options.limits)
    printed = ran.result.decode(errors="replace")
    if ran.code == 0 and same_output(test.expected, printed, options.tolerance):
        return _Judged("passed")
    return _not_passed(ran, f"printed {_short(printed)}, expected {_short(test.expected)}")


def _run_call(sandbox: Sandbox, source: Source, test: Call, options: _Options) -> _Judged:
    try:
        ran, value = sandbox.call(source, test.name, test.arguments, options.limits)
        if ran.code == 0 and any(same_value(expected, value, options.tolerance) for expected in test.expected):
            return _Judged("passed")
        return _not_passed(ran, f"{test.name} returned {_short(value)}, expected {_short(test.expected[0])}")
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        return _Judged("failed", f"{test.name} returned no plain data: {_short(str(error))}")


def _run_code(sandbox: Sandbox, source: Source, test: Code, options: _Options) -> _Judged:
    ran = sandbox.tests(source, test.source, options.limits)
    verdict = json.loads(ran.result) if ran.code == 0 else {}
    if "broken" in verdict:
        raise BadTestsError(f"{test.about} cannot be run: {verdict['broken']}")
    return _Judged("passed") if verdict.get("passed") else _not_passed(ran, _short(str(verdict.get("failed", ""))))


def _not_passed(ran: Ran, wrong: str) -> _Judged:
    """wrong: what to say of a process that came to a good end."""
    if ran.code is None or ran.timed_out:
        return _Judged("late", "ran out of time")
    return _Judged("failed", f"ended with {ending(ran.code)}" if ran.code else wrong)


def _short(value: Any) -> str:
    """The start of a value, of which a program may have made a huge one."""
    text = repr(value[:_SHOWN] if isinstance(value, str | list) else value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
