"""Programs that attack: each must come to nothing, leave nothing behind, and not disturb the next one."""

import json
import os
import socket
import time
from pathlib import Path

import pytest

from partita.tasks.graders.sandbox.box import Sandbox, SandboxError, Source, borrow, what_is_limited
from partita.tasks.graders.sandbox.orders import LAYERS, Limits

SHORT = Limits(cpu_seconds=1, wall_seconds=2.0, memory_mb=128, output_mb=1, work_mb=4)
ALL, WITHOUT_ROOT = LAYERS, ("landlock", "seccomp")


@pytest.fixture(scope="module", params=[ALL, ("namespaces", "seccomp"), WITHOUT_ROOT], ids="+".join)
def box(request):
    sandbox = Sandbox(request.param)
    yield sandbox
    sandbox.close()


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def run(box, code, stdin=b"", limits=SHORT):
    """Run it; then nothing may be left of it, and the next program must work."""
    ran = box.program(Source(code), stdin, limits)
    assert children(box._process.pid) == []
    assert box.program(Source("print(input())"), b"still here", SHORT).result == b"still here\n"
    return ran


def test_a_program_reads_and_prints(box):
    ran = run(box, "n = int(input())\nprint(sum(map(int, input().split())))", b"3\n1 2 3\n")
    assert (ran.code, ran.result, ran.timed_out) == (0, b"6\n", False)


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [
        ("exit()", 0),
        ("quit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("raise SystemExit", 0),
        ("import os; os._exit(0)", 0),
        ("1 / 0", 1),
        ("def", 1),
        ("import atexit; atexit.register(print, 'bye')", 0),
        ("import threading; threading.Thread(target=print, args=('bye',)).start()", 0),
        ("import sys; sys.stdout.close()", 0),
    ],
)
def test_it_ends_as_it_would_by_itself(box, code, ends_with):
    ran = run(box, code)
    assert ran.code == ends_with
    assert ran.result == (b"bye\n" if "bye" in code else b"")


def test_what_normal_programs_use_works(box):
    code = """
import asyncio, collections, ctypes, dataclasses, datetime, decimal, enum, hashlib, heapq, io, itertools, json, mmap, os
import pickle, random, re, select, signal, sqlite3, statistics, string, sys, tempfile, threading, time, typing, zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

@dataclass
class Point:
    x: int

assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
assert list(ThreadPoolExecutor(4).map(abs, range(-3, 0))) == [3, 2, 1]

async def main():
    await asyncio.sleep(0.001)
    return await asyncio.get_running_loop().run_in_executor(None, lambda: 5)

assert asyncio.run(main()) == 5
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001)
time.sleep(0.01)
sys.setrecursionlimit(100_000)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
assert depth(20_000) == 20_000
threading.stack_size(16 << 20)
out = []
deep = threading.Thread(target=lambda: out.append(depth(20_000)))
deep.start(); deep.join()
assert out == [20_000]
r, w = os.pipe(); os.write(w, b"x"); assert select.select([r], [], [], 0)[0] == [r]
assert sqlite3.connect(":memory:").execute("select 1 + 1").fetchone() == (2,)
assert sys.stdin.read() == "über\\n" and random.random() < 1 and os.cpu_count() >= 1
sys.stdout.buffer.write("ünder\\n".encode())
print(set("abcdef"))
"""
    first, second = (run(box, code, "über\n".encode(), Limits()) for _ in range(2))
    assert first.code == 0 and first.result.startswith("ünder\n".encode())
    assert first.result == second.result  # the order of sets, too


def test_its_folder_is_its_own_and_gone_afterwards():
    with borrow() as box:
        write = "open('note', 'w').write('x'); import os; print(os.listdir('.'), os.getcwd())"
        for _ in range(2):
            assert run(box, write).result == b"['note'] /work\n"


def test_without_an_own_root_a_program_can_write_nowhere():
    box = Sandbox(WITHOUT_ROOT)
    assert run(box, "open('note', 'w')").code == 1
    box.close()


QUICK = {
    "fork": "import os; os.fork(); print('done')",
    "spawn": "import subprocess; subprocess.run(['/bin/sh', '-c', 'echo done'])",
    "exec": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo done'])",
    "multiprocessing": "import multiprocessing as m; m.Process(target=print, args=('done',)).start()",
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    import time; time.sleep(60)\nprint('done')",
    "kill the keeper": "import os; os.kill(os.getppid(), 9); print('done')",
    "kill the group": "import os; os.killpg(os.getpgid(0), 9); print('done')",
    "kill everyone": "import os; os.kill(-1, 9); print('done')",
    "kill through a pipe": (
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid())\nfcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, 4, os.O_ASYNC)\nos.write(w, b'x')\nprint('done')"
    ),
    "lower the keeper's limits": "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CPU, (0, 0)); print('done')",
    "trace": "import ctypes, os; c = ctypes.CDLL(None); assert c.ptrace(16, os.getppid(), 0, 0) == 0; print('done')",
    "other memory": (
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(16)\n"
        "assert c.process_vm_readv(os.getppid(), b, 0, b, 0, 0) == 0; print('done')"
    ),
    "new namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0; print('done')",
    "mount": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None) == 0; print('done')",
    "chroot": "import os; os.chroot('/'); print('done')",
    "its parent's environment": "import os; print(open(f'/proc/{os.getppid()}/environ').read(), 'done')",
    "its own memory map": "print(open('/proc/self/maps').read(), 'done')",
    "passwords": "print(open('/etc/passwd').read(), 'done')",
    "internet": "import socket; socket.create_connection(('127.0.0.1', 80)); print('done')",
    "local socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/systemd/private'); print('done')",
    "a link out": "import os; os.symlink('/etc/passwd', 'x'); print(open('x').read(), 'done')",
    "too much memory": "x = bytearray(1 << 30); print('done')",
    "memory bit by bit": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "threads without end": "import threading as t, time\nwhile True: t.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "a huge file": "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()",
    "many files": "for i in range(100): open(str(i), 'wb').write(bytes(1 << 19))\nprint('done')",
    "files without end": "for i in range(10_000): open(str(i), 'w').close()\nprint('done')",
    "all descriptors": "import os\nx = [os.dup(0) for _ in range(200)]\nprint('done')",
    "recursion": "def f(): return f()\nf()",
    "deep recursion": "import sys; sys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(s, n): return s.x\nA().x",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "its own death": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a huge number": "print(10 ** 10 ** 6, 'done')",
}


@pytest.mark.parametrize("attack", QUICK)
def test_an_attack_comes_to_nothing(box, attack):
    started = time.monotonic()
    ran = run(box, QUICK[attack])
    assert ran.code != 0 and b"done" not in ran.result
    assert time.monotonic() - started < 8


SLOW = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "endless loop": "while True: pass",
    "endless loop that ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass"
    ),
    "endless sleep": "import time; time.sleep(1000)",
    "a thread that stays": "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "caught at every turn": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "at its end": "import atexit, time; atexit.register(time.sleep, 1000)",
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", SLOW)
def test_an_endless_attack_is_ended(box, attack):
    started = time.monotonic()
    assert run(box, SLOW[attack]).timed_out
    assert time.monotonic() - started < 8


def test_an_endless_wait_is_ended():
    with borrow() as box:
        started = time.monotonic()
        assert run(box, "import time; time.sleep(1000)", limits=Limits(1, 0.2)).timed_out
        assert time.monotonic() - started < 3


def test_a_huge_output_is_cut(box):
    ran = run(box, "while True: print('x' * 10_000)")
    assert ran.code != 0 and len(ran.result) <= 1 << 20


def test_your_files_are_neither_seen_nor_touched(box, tmp_path):
    at_home = Path.home() / f".partita-test-{os.getpid()}"
    places = [at_home, tmp_path / "secret"]
    for place in places:
        place.write_text("a secret")
        place.chmod(0o600)
    try:
        for place in places:
            for what in (
                "print(open(p).read())",
                "os.remove(p)",
                "open(p, 'w')",
                "os.chmod(p, 0o777)",
                "os.rename(p, p + 'x')",
            ):
                ran = run(box, f"import os; p = {str(place)!r}; {what}")
                assert ran.code == 1 and ran.result == b""
        run(box, f"import shutil; [shutil.rmtree(p, True) for p in ({str(tmp_path)!r}, '/', {str(Path.home())!r})]")
        assert [place.read_text() for place in places] == ["a secret"] * 2
        assert at_home.stat().st_mode & 0o777 == 0o600
    finally:
        at_home.unlink()


def test_no_word_reaches_a_listening_socket(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        code = f"import socket; s = socket.socket(); s.connect(('127.0.0.1', {server.getsockname()[1]})); s.send(b'secret')"
        assert run(box, code).code == 1
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_is_inherited(box, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "a secret")
    code = """
import os
print(dict(os.environ))
held = []
for n in range(3, 200):
    try: os.fstat(n); held.append(n)
    except OSError: pass
print(held)
"""
    assert run(box, code).result == b"{}\n[]\n"


def test_one_program_leaves_nothing_for_the_next(box):
    run(
        box,
        "import builtins, json, sys; builtins.print = json.dumps = None; sys.modules['left'] = sys; open('left', 'w')",
    )
    ran = run(box, "import json, os\nprint(json.dumps(os.path.exists('left')))\nimport left")
    assert (ran.code, ran.result) == (1, b"false\n")


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


@pytest.mark.parametrize(("layers", "missing"), [(("namespaces", "landlock"), "seccomp"), (("seccomp",), "landlock")])
def test_too_few_layers_are_an_error_that_says_what_to_do(layers, missing):
    with pytest.raises(SandboxError, match=rf"cannot be contained on this machine \(.*{missing}: left out.*\).*lsm="):
        Sandbox(layers)


def test_a_keeper_that_died_is_an_error_and_the_next_one_works():
    with pytest.raises(SandboxError, match=r"gone|ended"), borrow() as box:
        os.kill(box._process.pid, 9)
        box._process.wait()
        box.program(Source("print(1)"), b"", SHORT)
    with borrow() as box:
        assert box.program(Source("print(1)"), b"", SHORT).result == b"1\n"


def test_what_is_limited_names_every_layer_and_what_was_tried():
    told = what_is_limited()
    assert set(told) == {*LAYERS, "refused"}
    assert "read a file of yours" in told["refused"] and "start a process" in told["refused"]
