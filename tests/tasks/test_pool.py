import importlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partita.tasks.pool import Pool, PoolError

REWARDS = """
import os, re, sys, time

def double(x): return 2 * x
def hang(x):
    while True: pass
def sleep_in_c(x): return 9 ** 9 ** 9
def regex(x): return re.match("(a+)+$", "a" * 60 + "b")
def long_sum(x): return sum(range(10 ** 13))
def leave(x): os._exit(3)
def exit(x): sys.exit("enough")
def swallow(x): return len(b"a" * (4 * 2 ** 30))
def ask(x): return float(input())
def raises(x): raise ValueError(f"no {x}")
def deep(x): return deep(x)
def pid(x): return os.getpid()
def family(x):
    import subprocess
    child = subprocess.Popen(["sleep", "60"])
    open(x, "w").write(str(child.pid))
    time.sleep(60)
def fork(x): return float(os.fork() >= 0)
def hang_twice(x):
    note(x, os.fork())
    while True: pass
def note(x, child):
    if child: open(x, "a").write(f"{child}\\n")
def daemon(x, hang=False):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        note(x, os.getpid())
        time.sleep(60)
    os.wait()
    while not (os.path.exists(x) and os.path.getsize(x)): time.sleep(0.01)
    while hang: pass
    return 1.0
def torch_loaded(x): return "torch" in sys.modules
"""
NAMES = [line.split("(")[0][4:] for line in REWARDS.splitlines() if line.startswith("def ")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    file = tmp_path_factory.mktemp("rewards") / "bad_rewards.py"
    file.write_text(REWARDS)
    pool = Pool([f"{file}:{name}" for name in NAMES], processes=2, memory_gb=1.0)
    yield pool
    pool.close()


def call(pool, name, x=3, seconds=5.0):
    return pool.call(NAMES.index(name), {"x": x}, seconds)


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends within `seconds`: a signal is sent at once, but delivered when the kernel comes to it."""
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_fresh_pool_starts_in_under_a_second_and_loads_no_torch(pool):
    importlib.import_module("torch")  # as in a real run
    started = time.monotonic()
    assert call(pool, "torch_loaded").reward == 0.0
    assert time.monotonic() - started < 1.0


def test_one_worker_serves_call_after_call(pool):
    assert call(pool, "double").reward == 6.0
    assert call(pool, "pid").reward == call(pool, "pid").reward


@pytest.mark.parametrize("name", ["hang", "sleep_in_c", "regex", "long_sum"])
def test_a_call_that_does_not_come_back_is_killed_and_its_worker_replaced(pool, name):
    started = time.monotonic()
    outcome = call(pool, name, seconds=0.3)
    assert time.monotonic() - started < 2.0
    assert outcome.reward is None and outcome.timed_out
    assert outcome.error == "no result within 0.3 seconds (reward.timeout_seconds)"
    assert call(pool, "double", 5).reward == 10.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("leave", "the worker process ended during the call: exit code 3"),
        ("exit", "SystemExit: enough"),
        ("swallow", "memory beyond reward.memory_gb=1"),
        ("ask", "EOFError"),
        ("raises", "ValueError: no 3"),
        ("deep", "RecursionError"),
    ],
)
def test_every_way_to_fail_is_an_error_and_never_a_number(pool, name, words):
    outcome = call(pool, name)
    assert outcome.reward is None and words in outcome.error and not outcome.timed_out
    assert call(pool, "double", 5).reward == 10.0


def test_a_function_may_have_a_memory_limit_of_its_own(tmp_path):
    (tmp_path / "big.py").write_text("def big(x): return len(b'a' * x)\ndef other(x): return len(b'a' * x)\n")
    names = [f"{tmp_path}/big.py:{name}" for name in ("big", "other")]
    pool = Pool(names, processes=1, memory_gb=0.1, own_memory_gb={0: 0.5})
    for _ in range(2):  # the one worker serves both
        assert pool.call(0, {"x": 200 * 2**20}, 10.0).reward == 200 * 2**20
        failed = pool.call(1, {"x": 200 * 2**20}, 10.0)
        assert failed.error.startswith("memory beyond reward.memory_gb=0.1\nMemoryError")
    assert pool.call(0, {"x": 800 * 2**20}, 10.0).error.startswith("memory beyond its own memory_gb=0.5\nMemoryError")
    pool.close()


def test_a_hanging_call_does_not_delay_the_others(pool):
    with ThreadPoolExecutor(2) as threads:
        hanging = threads.submit(call, pool, "hang", 1, 1.0)
        started = time.monotonic()
        assert [call(pool, "double", x).reward for x in range(20)] == [2.0 * x for x in range(20)]
        assert time.monotonic() - started < 0.8
        assert hanging.result().timed_out


def test_waiting_for_a_free_worker_does_not_count_against_the_limit(pool):
    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(lambda _: call(pool, "hang", 1, 0.2), range(4)))
        assert all(outcome.timed_out for outcome in outcomes)
        assert call(pool, "double", 1, 0.2).reward == 2.0


def test_processes_that_a_reward_started_die_with_it(pool, tmp_path):
    file = tmp_path / "pid"
    assert call(pool, "family", str(file), 0.5).timed_out
    assert gone(int(file.read_text()))


def test_a_reward_that_forks_is_answered_once(pool):
    assert [call(pool, "fork").reward for _ in range(5)] == [1.0] * 5
    assert call(pool, "double", 5).reward == 10.0


def test_a_fork_that_hangs_as_well_is_killed(pool, tmp_path):
    file = tmp_path / "pids"
    assert call(pool, "hang_twice", str(file), 0.3).timed_out
    assert all(gone(int(pid)) for pid in file.read_text().split())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that left its session is not found again")
def test_a_process_in_a_session_of_its_own_dies_with_its_worker(pool, tmp_path):
    file = tmp_path / "pid"
    hanging = pool.call(NAMES.index("daemon"), {"x": str(file), "hang": True}, 1.0)
    assert hanging.timed_out
    assert gone(int(file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that left its session is not found again")
def test_what_a_good_call_left_running_ends_with_the_pool(tmp_path):
    (tmp_path / "leaves.py").write_text(REWARDS)
    pool = Pool([f"{tmp_path}/leaves.py:daemon"], processes=1, memory_gb=1.0)
    assert pool.call(0, {"x": str(tmp_path / "pid")}, 5.0).reward == 1.0
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    pool.close()
    assert gone(pid)


def test_arguments_that_cannot_be_sent_are_an_error(pool):
    outcome = call(pool, "double", threading.Lock())
    assert outcome.reward is None and "cannot be sent" in outcome.error


def test_functions_given_as_objects_run_in_a_fork():
    offset = 5
    pool = Pool([lambda x: x + offset, lambda x: os.getpid()], processes=1, memory_gb=None)
    assert pool.call(0, {"x": 3}, 2.0).reward == 8.0
    assert pool.call(1, {"x": 3}, 2.0).reward != os.getpid()
    pool.close()


def test_an_import_that_fails_tells_its_traceback(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import no_such_package\n\ndef right(x): return 1.0\n")
    pool = Pool([f"{file}:right"], processes=1, memory_gb=1.0)
    with pytest.raises(PoolError, match=r"No module named 'no_such_package'"):
        pool.call(0, {"x": 1}, 1.0)
    pool.close()


def test_an_import_that_hangs_is_given_up(tmp_path):
    file = tmp_path / "slow.py"
    file.write_text("import time\ntime.sleep(60)\n\ndef right(x): return 1.0\n")
    pool = Pool([f"{file}:right"], processes=1, memory_gb=1.0, start_seconds=0.2)
    with pytest.raises(PoolError, match=r"start_seconds=0.2"):
        pool.start()
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 4.0


def test_close_ends_everything_and_wakes_whoever_waits(tmp_path):
    file = tmp_path / "hang.py"
    file.write_text("import os, time\n\ndef hang(x):\n    open(x, 'w').write(str(os.getpid()))\n    time.sleep(60)\n")
    pool = Pool([f"{file}:hang"], processes=1, memory_gb=1.0)
    failures = []

    def wait():
        try:
            pool.call(0, {"x": str(tmp_path / "pid")}, 60.0)
        except PoolError as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    pool.close()
    for thread in threads:
        thread.join(5)
    assert len(failures) == 2
    assert gone(int((tmp_path / "pid").read_text()))


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    file = tmp_path / "pid.py"
    file.write_text("import os\n\ndef pid(x): return os.getpid()\n")
    script = (
        "import os, signal\nfrom partita.tasks.pool import Pool\n"
        f"pool = Pool([{str(file) + ':pid'!r}], processes=1, memory_gb=None)\n"
        "print(int(pool.call(0, {'x': 1}, 5.0).reward), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pid = int(done.stdout)
    assert gone(pid)
