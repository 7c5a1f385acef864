"""Programs that behave, what their sandbox leaves of them, and a sandbox that cannot be."""

import os

import pytest
from contained import SHORT, WITHOUT_ROOT, run

from partita.tasks.graders.sandbox.box import Sandbox, SandboxError, Source, borrow, what_is_limited
from partita.tasks.graders.sandbox.orders import LAYERS, Limits


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
