"""How right and how fast the graders are.

usage: python benchmarks/graders.py [--gsm8k FILE] [--only gsm8k adversarial code] [--processes 2]

gsm8k: every gold solution of FILE (GSM8K's test.jsonl) must score 1, the same with another final number 0.
adversarial: the answers of tests/tasks/graders/adversarial_answers.jsonl, judged by math_correct and by math-verify alone
(parse and verify with their defaults); the table of docs/graders.md.
code: 100 programs with 10 tests each, and the same programs with a fault.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from math_verify import parse, verify

from partita.tasks.dataset import DatasetConfig, load_rows
from partita.tasks.graders.code import code_tests
from partita.tasks.graders.math import math_correct

ANSWERS = Path(__file__).parents[1] / "tests" / "tasks" / "graders" / "adversarial_answers.jsonl"


def gsm8k(file: str) -> None:
    """Gold solutions and the same with a perturbed number."""
    rows = load_rows(DatasetConfig(path=file), seed=1).rows
    started = time.perf_counter()
    right = sum(math_correct(row.row["answer"], row.answer or "") for row in rows)
    other = [f"{row.row['answer'].rpartition('####')[0]}#### {int(float(row.answer or 0)) + 1}" for row in rows]
    wrong = sum(math_correct(text, row.answer or "") for text, row in zip(other, rows, strict=True))
    print(f"gsm8k: {len(rows)} rows; gold solutions {right:.0f} right, perturbed {wrong:.0f} right; ", end="")
    print(f"{time.perf_counter() - started:.1f} s in one thread")


def adversarial() -> None:
    """Wrong verdicts by kind, ours and math-verify's."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    rows = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    count = Counter(row["kind"] for row in rows)
    ours, theirs = Counter[str](), Counter[str]()
    for row in rows:
        ours[row["kind"]] += math_correct(row["response"], row["gold"]) != row["right"]
        theirs[row["kind"]] += _alone(row["response"], row["gold"]) != row["right"]
    print("| kind | answers | wrong verdicts of math_correct | of math-verify alone |\n|---|---|---|---|")
    for kind in count:
        print(f"| {kind} | {count[kind]} | {ours[kind]} | {theirs[kind]} |")
    print(f"| all | {count.total()} | {ours.total()} | {theirs.total()} |")


def _alone(response: str, gold: str) -> bool:
    return verify(parse(f"\\boxed{{{gold}}}"), parse(response))


# Ten small problems: a program with a number to fill in, and what it must print for an input line.
PROGRAMS = {
    "print(sum(map(int, input().split())) + {k})": lambda xs, k: sum(xs) + k,
    "xs = sorted(map(int, input().split()))\nprint(xs[{k} % len(xs)])": lambda xs, k: sorted(xs)[k % len(xs)],
    "print(sum(x % ({k} + 2) for x in map(int, input().split())))": lambda xs, k: sum(x % (k + 2) for x in xs),
    "print(len(set(x + {k} for x in map(int, input().split()))))": lambda xs, k: len({x + k for x in xs}),
    "import math\nprint(math.gcd(*map(int, input().split())) + {k})": lambda xs, k: _gcd(xs) + k,
    "a = 0\nfor x in input().split():\n    a = (a * 31 + int(x) + {k}) % 10007\nprint(a)": lambda xs, k: _hash(xs, k),
    "n = max(map(int, input().split())) + {k}\nprint(sum(all(p % d for d in range(2, p)) for p in range(2, n)))": (
        lambda xs, k: sum(all(p % d for d in range(2, p)) for p in range(2, max(xs) + k))
    ),
    "f = [0, 1]\nfor _ in range(int(input().split()[0]) + {k}): f.append(f[-1] + f[-2])\nprint(f[-1])": (
        lambda xs, k: _fibonacci(xs[0] + k)
    ),
    "xs = input().split()\nprint(' '.join(xs[{k} % len(xs):] + xs[:{k} % len(xs)]))": (
        lambda xs, k: " ".join(map(str, xs[k % len(xs) :] + xs[: k % len(xs)]))
    ),
    "from collections import Counter\nprint(Counter(input().split()).most_common(1)[0][1] + {k})": (
        lambda xs, k: Counter(xs).most_common(1)[0][1] + k
    ),
}


def _gcd(xs: Sequence[int]) -> int:
    a = 0
    for x in xs:
        b = x
        while b:
            a, b = b, a % b
    return a


def _hash(xs: Sequence[int], k: int) -> int:
    a = 0
    for x in xs:
        a = (a * 31 + x + k) % 10007
    return a


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return b


def _problems() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """A right program, a faulty one, and their row: ten of each of PROGRAMS."""
    for program, expected in PROGRAMS.items():
        for k in range(1, 11):
            lists = [[(7 * i * j + 3 * k + i) % 50 + 1 for j in range(1, 5 + i)] for i in range(10)]
            tests = {
                "inputs": [" ".join(map(str, xs)) + "\n" for xs in lists],
                "outputs": [f"{expected(xs, k)}\n" for xs in lists],
            }
            right = program.replace("{k}", str(k))
            yield right, f"{right}\nprint('done')", {"input_output": json.dumps(tests)}


def code(processes: int) -> None:
    """Programs judged, so many at a time."""
    problems = list(_problems())
    with ThreadPoolExecutor(processes) as threads:
        for name, which in (("right", 0), ("faulty", 1)):
            started = time.perf_counter()
            found = list(
                threads.map(
                    lambda p, w=which: code_tests(f"```python\n{p[w]}\n```", p[2], limit_seconds=60.0), problems
                )
            )
            seconds, tests = time.perf_counter() - started, sum(one["tests"] for one in found)
            passed = sum(one["score"] for one in found)
            print(f"code: {len(found)} {name} programs, {tests:.0f} tests: {passed:.0f} judged right, {seconds:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k")
    parser.add_argument("--only", nargs="*", default=["gsm8k", "adversarial", "code"])
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if "gsm8k" in given.only and given.gsm8k:
        gsm8k(given.gsm8k)
    if "adversarial" in given.only:
        adversarial()
    if "code" in given.only:
        code(given.processes)
