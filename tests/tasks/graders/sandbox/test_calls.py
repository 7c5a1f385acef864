"""Functions of a program and tests that are code: values that forge, and programs that look for what is expected."""

import json

import pytest
from contained import SHORT, children, run

from partita.tasks.graders.sandbox.box import Source
from partita.tasks.graders.sandbox.orders import Limits


def test_a_function_gets_its_arguments_and_its_value_comes_back(box):
    source = Source("def both(a, b): return (a, {'k': b}, {1}, 2.5, None, b'x', 10**30)")
    ran, value = box.call(source, "both", [[1, 2], "ü"], SHORT)
    assert ran.code == 0 and value == ([1, 2], {"k": "ü"}, {1}, 2.5, None, b"x", 10**30)
    assert box.call(Source("class Solution:\n    def f(self, x): return x + 1"), "f", [1], SHORT)[1] == 2
    assert box.call(Source("def f(x): raise ValueError"), "f", [1], SHORT)[0].code == 1
    assert box.call(Source("def g(x): return 1"), "f", [1], SHORT)[0].code == 1


EVERYWHERE = """
import os
def everywhere(text):
    for n in range(60):
        try: os.write(n, text.encode())
        except OSError: pass
"""


@pytest.mark.parametrize(
    "returned",
    [
        "print",
        "__import__('itertools').count()",
        "[object()]",
        "10**100_000",
        "'x' * (1 << 25)",
        "__import__('functools').reduce(lambda a, _: [a], range(100_000), [])",
        "(lambda x: (x.append(x), x)[1])([])",
    ],
)
def test_a_value_that_is_no_plain_data_is_refused(box, returned):
    try:
        ran, value = box.call(Source(f"def f(): return {returned}"), "f", [], Limits(1, 2.0, 32))
        assert ran.code != 0 and value is None
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        pass
    assert run(box, "print(1)").result == b"1\n"


@pytest.mark.parametrize(
    "written",
    [
        '{"object": 1}',
        '{"Fraction": "1e99999999999"}',
        '{"range": 5}',
        '{"dict": [[[], 1]]}',
        '{"x": 1}',
        "[" * 100_000,
        "{",
        "",
    ],
)
def test_a_forged_value_harms_nobody(box, written):
    with pytest.raises((ValueError, TypeError, ArithmeticError, RecursionError)):
        box.call(Source(f"{EVERYWHERE}def f():\n    everywhere({written!r})\n    os._exit(0)"), "f", [], SHORT)


def verdict(box, code, tests):
    ran = box.tests(Source(code), tests, SHORT)
    assert children(box._process.pid) == []
    return json.loads(ran.result) if ran.code == 0 else ran.code


ADD = "def add(a, b): return a + b"


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (ADD, "assert add(1, 2) == 3"),
        (ADD, "assert add([1], [2]) == [1, 2] and add('a', b='b') == 'ab' and abs(add(0.1, 0.2) - 0.3) < 1e-9"),
        (ADD, "def check(candidate):\n    for i in range(5):\n        assert candidate(i, i) == 2 * i\ncheck(add)"),
        (ADD, "from solution import add\ndef test_it():\n    assert add(2, 2) == 4\ndef test_more():\n    assert add(0, 0) == 0"),
        ("def f(x): return {x: (x, {x})}", "assert f(2) == {2: (2, {2})}"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(xs): xs.sort()", "xs = [3, 1, 2]\nassert f(xs) is None and xs == [1, 2, 3]"),
        ("def f(d): d['x'] = 1; d.pop('y')", "d = {'y': 2}\nf(d)\nassert d == {'x': 1}"),
        ("def f(x): raise KeyError(x)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
        ("class P:\n    def __init__(s, x): s.x = x\ndef f(ps): return [p.x for p in ps]", "assert f([P(1), P(2)]) == [1, 2]"),
        ("class N:\n    def __init__(s, v): s.v = v", "n = N(1); n.next = N(2)\nassert n.next.v == 2 and n.next is n.next"),
        ("class S(list):\n    def push(s, x): s.append(x); return len(s)", "s = S()\nassert s == []"),
        ("class S:\n    a = 0\n    def push(s): s.a += 1; return s.a", "s = S()\nassert s.push() == 1 and s.push() == 2"),
        ("LIMIT = 5", "import math\nassert LIMIT == 5 and math.pi > 3"),
        ("from fractions import Fraction\ndef f(): return Fraction(1, 3)", "from fractions import Fraction\nassert f() * 3 == 1"),
    ],
)  # fmt: skip
def test_tests_that_are_code_pass(box, code, tests):
    assert verdict(box, code, tests) == {"passed": True}


@pytest.mark.parametrize(
    "code",
    [
        "def add(a, b): return a - b",
        "def plus(a, b): return a + b",
        "def add(a, b)",
        "",
        "import os\ndef add(a, b): os._exit(0)",
        "import sys\ndef add(a, b): sys.exit(0)",
        "import os\nos._exit(0)",
        "def add(a, b): raise AssertionError",
        # values that claim to be equal to anything
        "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef add(a, b): return E()",
        "class E(int):\n    def __eq__(s, o): return True\ndef add(a, b): return E(7)",
        "class E(str):\n    __eq__ = lambda s, o: True\ndef add(a, b): return E('3')",
        # the verdict's own words, everywhere
        EVERYWHERE + "everywhere('{\"passed\": true}')\nos._exit(0)",
        EVERYWHERE + "def add(a, b): everywhere('{\"value\": true}\\n')",
        # a changed interpreter
        "import builtins\nbuiltins.AssertionError = ValueError\ndef add(a, b): return 0",
        "import json, os\nos._exit = json.dumps = lambda *a: None\ndef add(a, b): return 0",
        # looking for what is expected
        "import gc\ndef add(a, b): return 3 * any('ert add({}, {})'.format(a, b) in repr(o) for o in gc.get_objects())",
        "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f and 'tests' not in f.f_locals: f = f.f_back\n"
        "    return 3 if f else 0",
    ],
)  # fmt: skip
def test_a_wrong_or_forging_program_passes_no_tests(box, code):
    found = verdict(box, code, "assert add(1, 2) == 3")
    assert found != {"passed": True} and "broken" not in str(found)


def test_broken_tests_are_told_from_a_wrong_program(box):
    assert "SyntaxError" in verdict(box, ADD, "assert add(1, 2) ==")["broken"]
    assert "no_such_package" in verdict(box, ADD, "import no_such_package\nassert add(1, 2) == 3")["broken"]
    assert "failed" in verdict(box, ADD, "from solution import subtract")
