"""What ends a launch, what is said of it, and that nothing is left: real processes with toy commands."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching import FOREVER, launch_of, left, pids, start, until, watched

from partita.launch.watch import Tail

LOST = "import time\ntime.sleep(0.3)\nprint('RuntimeError: Connection closed by peer')\nraise SystemExit(1)"
# a grandchild in a session of its own, which nobody waits for and which asks not to be ended
DAEMON = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
                 start_new_session=True)
print("here", flush=True)
time.sleep(600)
"""


def test_a_run_that_is_done_is_zero_and_shows_what_the_first_learner_said(tmp_path: Path) -> None:
    say = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['OMP_NUM_THREADS'])"
    launch = launch_of(tmp_path, {"learner-0": say, "learner-1": say, "server-0": DAEMON})
    code, out, err = watched(launch)
    assert (code, err) == (0, "")
    assert out == "rank 0 of 2 1\n"
    assert launch.log(launch.role("learner-1")).read_text() == "rank 1 of 2 1\n"


def test_a_character_that_is_written_in_two_parts_is_shown_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tail, (first, *rest) = Tail(tmp_path / "log"), "→ done".encode()
    for part in (bytes([first]), bytes(rest)):
        with tail.log.open("ab") as log:
            log.write(part)
        tail.show()
    assert capsys.readouterr().out == "→ done"


@pytest.mark.parametrize(
    ("programs", "code", "said"),
    [
        ({"learner-0": "print('one')\nprint('two')\nraise SystemExit(1)"}, 1, "learner-0 ended with exit code 1"),
        ({"learner-0": "raise SystemExit(2)"}, 2, "it printed nothing"),
        ({"learner-0": LOST, "learner-1": "import os; os.kill(os.getpid(), 9)"}, 1, "learner-1 ended by SIGKILL"),
        ({"learner-0": LOST, "learner-1": "import time; time.sleep(1); 1 / 0"}, 1, "ZeroDivisionError"),
    ],
)
def test_a_learner_that_fails_ends_the_run_with_its_last_lines(
    tmp_path: Path, programs: dict[str, str], code: int, said: str
) -> None:
    found, _, err = watched(launch_of(tmp_path, programs))
    assert found == code
    assert said in err
    if "two" in programs["learner-0"]:
        assert err.endswith("  | one\n  | two\n")


def test_a_server_is_started_again_so_many_times(tmp_path: Path) -> None:
    serve = "import sys; print('http', *sys.argv); 1 / 0"
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "server-0": serve}, restarts=2)
    code, out, err = watched(launch)
    assert code == 1
    assert [line for line in out.splitlines() if "again" in line] == [
        f"server-0 ended with exit code 1; it is started again ({i} of 2). Its log: {launch.log(launch.servers[0])}"
        for i in (1, 2)
    ]
    assert "server-0 ended with exit code 1 after 2 restarts (allocation.server_restarts)" in err
    assert "ZeroDivisionError" in err
    endpoint = json.loads((launch.files / "endpoints" / "server-0.json").read_text())
    assert endpoint["start"] == 3 and endpoint["launch"] == launch.id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_launcher_takes_everything_with_it(tmp_path: Path, number: int) -> None:
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "learner-1": DAEMON}, grace=0.5)
    watching = start(launch)
    until(lambda: len(left(launch)) >= 5)
    watching.send_signal(number)
    watching.communicate(timeout=30)
    assert watching.returncode in (-number, 128 + number, 1)
    until(lambda: left(launch) == [], 10)


def test_nothing_is_left_of_roles_that_are_killed(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "learner-1": FOREVER, "server-0": DAEMON}, grace=0.5)
    watching = start(launch)
    until(lambda: len(left(launch)) >= 7)
    server, _ = pids(launch, "server-0")
    os.kill(server, signal.SIGKILL)  # its process, not its command: that and what it started are left over
    until(lambda: (launch.files / "endpoints" / "server-0.json").read_text().count('"start": 2') == 1)
    until(lambda: len(left(launch)) >= 7)
    _, learner = pids(launch, "learner-1")
    os.kill(learner, signal.SIGKILL)
    out, err = watching.communicate(timeout=30)
    assert watching.returncode == 1
    assert "server-0 ended by SIGKILL (signal 9); it is started again (1 of 1)" in out
    assert err.startswith("learner-1 ended by SIGKILL (signal 9); its last lines")
    assert left(launch) == []


def test_told_to_end_early_the_first_learner_hears_it(tmp_path: Path) -> None:
    obey = "import signal, sys, time\nsignal.signal(10, lambda *_: sys.exit(75))\nprint('here', flush=True)\ntime.sleep(600)"
    launch = launch_of(tmp_path, {"learner-0": obey, "learner-1": FOREVER}, grace=0.5)
    watching = start(launch)
    until(lambda: launch.log(launch.learners[0]).exists() and "here" in launch.log(launch.learners[0]).read_text())
    watching.send_signal(signal.SIGUSR1)
    out, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (75, "")
    assert "told to end: the step is finished" in out
    assert left(launch) == []
