"""Reward functions that return, raise and do everything but what they should, in every style, and nasty answers to our graders.

A call must come to a finite number, to "not applicable" where the style has that, or to a reward_error whose first line names the
function and the cause: for `fuzz.py`. The functions evaluate the response, which is the expression that a case made.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fuzz_common import Try, Wrong
from fuzz_values import NUMBERS, WORDS, nested, strange

from partita.records import Prompt
from partita.report.sinks import strict_json
from partita.report.text import clean, shorten
from partita.tasks.reward import FunctionOptions, RewardConfig, RewardRuntime, RewardSetupError, Scored

FUNCTIONS = """
import asyncio, collections, ctypes, decimal, fractions, os, signal, sys, time, types
import numpy as np
import torch

class Loud(Exception):
    def __str__(self): raise RuntimeError("no words")
    __repr__ = __str__
class Shy:
    def __repr__(self): raise RuntimeError("no repr")
    __str__ = __repr__
class Odd(float):
    def __float__(self): raise KeyError("odd")
class Text(float):
    def __float__(self): return "7"
class Half(dict):
    def __contains__(self, name): return True
class Endless(dict):
    def items(self): return iter(lambda: ("a", 1.0), None)
class Locked:
    def __reduce__(self): raise TypeError("locked")
class Shape:
    shape = (1,)
    def __getitem__(self, at): return self
class Waits:
    def __await__(self): yield
def stop(error): raise error
def deep(n=0): return deep(n + 1)
async def later(): return 1.0
def items(*values): yield from values

def own(response, **kwargs):
    return eval(response)
def verl(solution_str, ground_truth=None, extra_info=None):
    return eval(solution_str)
def areal(prompt, completions, prompt_ids, completion_ids, **data):
    return eval(completions)
def trl(completions, log_metric, log_extra, **columns):
    return eval(completions[0])
def openrlhf(queries, prompts, labels):
    return eval(queries[0].removeprefix("<p>"))
async def awaited(response):
    return eval(response)
"""
STYLES = ("own", "verl", "areal", "trl", "openrlhf", "awaited")
GRADERS = (
    "math_correct", "last_number_correct", "think_answer_format", "dapo_answer", "exact_match", "fuzzy_match", "multiple_choice",
    "by_data_source",
)  # fmt: skip
GOOD = {
    "1.5": 1.5, "True": 1.0, "0": 0.0, "np.float32(0.5)": 0.5, "np.bool_(True)": 1.0, "torch.tensor(2)": 2.0,
    "np.array([0.25])": 0.25, "torch.tensor([3.0])": 3.0, "torch.zeros(1, 1)": 0.0, "decimal.Decimal('0.5')": 0.5,
    "fractions.Fraction(1, 4)": 0.25, "np.int64(-1)": -1.0,
}  # fmt: skip
"""Values that are one finite number."""
BAD = (
    "None", "'0.5'", "b'1'", "''", "np.str_('1')", "float('nan')", "np.float64('inf')", "10**400", "1j", "[]", "[1.0, 2.0]",
    "()", "{}", "{1: 2}", "object()", "Shy()", "Odd(1)", "Text(1)", "Half()", "Shape()", "items(1.0)", "items()", "range(3)",
    "np.array([1.0, 2.0])", "np.zeros((0,))", "np.array('x')", "np.datetime64('2020')", "torch.zeros(2)", "print", "type",
    "Loud()", "Locked()", "types", "NotImplemented", "Ellipsis", "later()", "Waits()", "lambda: 1", "float", "complex('nan')",
    "decimal.Decimal('NaN')", "decimal.Decimal('sNaN')", "'x' * 10**6", "{'acc': 1}", "{'score': None}", "{'score': 'x'}",
    "{'score': float('nan')}", "{'score': [1]}", "{'score': {}}", "{'score': Shy()}", "collections.OrderedDict()",
    "types.SimpleNamespace(score=1)", "set()", "{1.0}",
)  # fmt: skip
"""Values that are none, in the styles of one response."""
ENDS = (
    "stop(ValueError('no'))", "stop(ValueError())", "stop(Loud())", "stop(KeyError(Shy()))", "stop(SystemExit(0))",
    "sys.exit()", "sys.exit('bye')", "stop(KeyboardInterrupt())", "stop(GeneratorExit())", "stop(StopIteration(1))",
    "stop(BaseException('x'))", "stop(MemoryError())", "stop(asyncio.CancelledError())", "stop(TimeoutError('mine'))",
    "stop(ConnectionError())", "stop(UnicodeError('\\ud800'))", "stop(BaseExceptionGroup('g', [KeyboardInterrupt()]))",
    "stop(ExceptionGroup('g', [ValueError(1)]))", "deep()", "1 / 0", "stop", "nope", "stop(Exception('x' * 10**6))",
    "stop(Exception('a\\nb'))", "eval('(' * 300)", "stop(Warning('w'))", "stop(AssertionError())", "open('/nonexistent/x')",
    "int('9' * 5000)", "stop(5)",
)  # fmt: skip
DEATHS = (
    "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)", "os.abort()", "ctypes.string_at(0)",
    "sys.setrecursionlimit(10**9) or deep()", "os.closerange(3, 60)", "[0] * 10**10", "time.sleep(60)",
    "[x for x in iter(int, 1)]", "os.fork() and 1.0", "Endless(score=1)",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN) and time.sleep(60)",
)  # fmt: skip
"""What a worker does not survive; only where there is a worker."""
PARTS = (
    "'acc': 1.0", "'acc': True", "'acc': float('nan')", "'acc': 'text'", "'pred': '\\ud800'", "'pred': 'x' * 10**6",
    "'mean': 1.0", "3: 0.5", "None: 1", "Shy(): 1", "'a': Shy()", "'a': np.float32(1)", "'a': [1, 2]", "'a': None", "'': 2.0",
    "'a/b/max': 1", "'steps': [[0, 1.0]]", "'steps': 'x'", "'steps': [[10**30, 1]]", "'steps': [[-1, 1]]", "'steps': [[0]]",
    "'steps': [[0, None]]", "'steps': [[0.0, 1]]", "'a': 10**400", "'a': b'1'", "'a': torch.zeros(2)",
)  # fmt: skip


def expression(style: str, rng: random.Random) -> tuple[str, float | str | None]:
    """What the function is to evaluate, and what must come out: a number, "error", or None where either is right."""
    chance = rng.random()
    if chance < 0.2:
        end = rng.choice(ENDS)
        ours = (
            style == "awaited" and "KeyboardInterrupt()" in end and "Group" not in end
        )  # as if a key was pressed: it ends the run
        return ("1 / 0" if ours else end), "error"
    if chance < 0.23 and style != "awaited":
        return rng.choice(DEATHS), None
    if chance < 0.5:
        good = rng.choice(list(GOOD))
        lists = style in ("trl", "openrlhf")
        return (rng.choice((f"[{good}]", f"({good},)", f"items({good})")), GOOD[good]) if lists else (good, GOOD[good])
    bad = rng.choice(BAD)
    if chance < 0.7:
        return bad, None if style in ("trl", "openrlhf") else "error"
    if style in ("trl", "openrlhf"):
        said = rng.choice(
            (
                "log_metric('a', 1.0)",
                f"log_metric('a', {bad})",
                f"log_extra('a', [{bad}])",
                f"log_extra('a', {bad})",
                "log_metric('mean', 1)",
            )
        )
        return rng.choice(
            (
                f"[{bad}]",
                f"{{'rewards': [{bad}], 'extra_logs': {bad}}}",
                f"[{said} or 1.0]",
                f"{{'rewards': [1.0], 'scores': {bad}}}",
            )
        ), None
    parts = ", ".join(rng.sample(PARTS, rng.randint(0, 3)))
    kind = rng.choice(("", "collections.OrderedDict", "types.MappingProxyType", "Half"))
    return f"{kind}({{'score': {rng.choice((*GOOD, bad))}, {parts}}})", None


@contextmanager
def opened(folder: Path) -> Iterator[Try]:
    """Scores answers by functions of each style, which share a worker pool each, and by the built-in graders."""
    file = folder / "strange.py"
    file.write_text(FUNCTIONS)
    with ExitStack() as stack:
        runtimes = {name: _runtime([f"{file}:{name}"], stack) for name in STYLES}
        graders = {name: _runtime([name], stack) for name in GRADERS}
        for runtime in runtimes.values():
            runtime.check()  # waits until torch is imported there, which is no case's time

        def one(rng: random.Random, folder: Path) -> str:
            if rng.random() < 0.1:
                return _set_up(file, rng)
            if rng.random() < 0.25:
                name = rng.choice(GRADERS)
                prompt, text = _question(rng)
                return _check(name, asyncio.run(graders[name].score(prompt, text, (1, 2), "stop")), None)
            name = rng.choice(STYLES)
            text, wanted = expression(name, rng)
            prompt = _prompt({"a": strange(rng)} if rng.random() < 0.1 else {"a": 1}, "1")
            return _check(name, asyncio.run(runtimes[name].score(prompt, text, (1, 2, 3), "stop")), wanted, text)

        yield one


def _runtime(functions: Sequence[str], stack: ExitStack) -> RewardRuntime:
    limits = {"processes": 1, "timeout_seconds": 3.0, "memory_gb": 0.5, "start_seconds": 600.0}
    config = RewardConfig(functions=list(functions), **limits)
    runtime = RewardRuntime(config)
    stack.callback(runtime.close)
    return runtime


def _prompt(row: dict[str, Any], answer: str | None) -> Prompt:
    return Prompt("1-a", (1, 2), "<p>", row, ({"role": "user", "content": "p"},), answer)


def _question(rng: random.Random) -> tuple[Prompt, str]:
    """A gold answer, its row, and a response: words, numbers, and what breaks parsers."""
    pieces = (
        *WORDS,
        *map(str, NUMBERS[:14]),
        "\\frac{" * 40,
        "{" * 500,
        "\\boxed{" * 300,
        "9^{9^{9}}",
        "(" * 400,
        "Answer: 5",
        "</think>\\boxed{5}",
        "<answer>5</answer>",
    )
    text = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 4)))
    row = {
        "data_source": rng.choice(("openai/gsm8k", "math_dapo", "nope", 5)),
        "choices": rng.choice((["x", "y"], "x", None, {})),
    }
    return _prompt(row, rng.choice(("5", "A", "1,080", "\\frac{1}{2}", rng.choice(pieces) or "0"))), text


def _set_up(file: Path, rng: random.Random) -> str:
    """Functions, weights and options that do not fit, or do: refused before anything runs."""
    known = (f"{file}:own", f"{file}:nope", f"{file}:np", "math_correct", "math_corect", "os.path:join", "nope.py:f")
    names = [rng.choice((*known, "a.b", "", ":", "builtins:print")) for _ in range(rng.randint(0, 3))]
    weights = rng.choice((None, None, [1.0], [1.0, 2.0], [], [1e308, 1e308]))
    options = rng.choice(
        (
            {},
            {"own": FunctionOptions(kwargs={"nope": 1}, style=rng.choice(("auto", "trl", "verl", "areal")))},
            {"nope": FunctionOptions()},
        )
    )
    row = rng.choice(({}, {"response": 1}, {"completions": 2}, {"a": nested(50, rng)}))
    try:
        runtime = RewardRuntime(RewardConfig(functions=names, weights=weights, options=options, processes=1))
    except ValueError as error:
        if not isinstance(error, RewardSetupError) and not str(error).startswith("weights"):
            raise
        if len(str(error)) < 12 or ("reward" not in str(error) and "weights" not in str(error)):
            raise Wrong(f"set up {names}: {error}") from error
        return "refused"
    try:
        if any(name not in ("math_correct",) for name in names):
            return "set up"
        found = asyncio.run(runtime.score(_prompt(row, "1"), "1", (1,), "stop"))
        return _check("math_correct", found, None)
    finally:
        runtime.close()


def _check(name: str, found: Scored, wanted: float | str | None, text: str = "") -> str:
    """Raise Wrong for a reward that is none, or an error that says nothing."""
    about = f"{name}: {text[:200]!r} gave {str(found)[:300]}"
    if found.status == "reward_error" and "no result within" in found.error.split("\n", 1)[0]:
        return "over its limit"  # as what sleeps is, and anything on a machine that has other work
    if found.status == "ok":
        if (
            found.reward is None
            or not math.isfinite(found.reward)
            or wanted == "error"
            or (isinstance(wanted, float) and found.reward != wanted)
        ):
            raise Wrong(f"expected {wanted}; {about}")
        if not all(math.isfinite(value) for value in found.parts.values()):
            raise Wrong(f"a part is not finite; {about}")
    elif found.reward is not None or not found.error:
        raise Wrong(f"a reward beside an error, or an error without words; {about}")
    elif isinstance(wanted, float) or (wanted == "error" and found.status != "reward_error"):
        raise Wrong(f"expected {wanted}; {about}")
    first = found.error.split("\n", 1)[0]
    if found.error and (
        not first.startswith(name) or len(first) < len(name) + 6 or len(first) > 600 or len(found.error) > 10_000
    ):
        raise Wrong(f"the error names nothing, or too much: {first[:300]!r}; {about}")
    strict_json({"error": found.error, "notes": found.notes, "parts": found.parts}).encode()
    shorten(clean(found.error), 200).encode()
    return found.status
