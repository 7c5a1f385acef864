"""Launches of small Python programs instead of learners and servers, in a process of their own that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from partita.launch import processes
from partita.launch.config import ClusterConfig, SchedulerConfig
from partita.launch.roles import ID, Launch, Role

FOREVER = "import time\nprint('here', flush=True)\ntime.sleep(600)"
WATCH = """
import sys
from pathlib import Path
from partita.launch.ended import LaunchError, LaunchRefused
from partita.launch.roles import read_launch, starter
launch, say = read_launch(Path(sys.argv[1])), lambda line: print(line, flush=True)
found = starter(launch.scheduler.type)
try:
    code = found.going_on(launch, say)
    sys.exit(found.run(launch, say) if code is None else code)
except (LaunchError, LaunchRefused) as error:
    print(error, file=sys.stderr)
    sys.exit(2 if isinstance(error, LaunchRefused) else 1)
"""


def launch_of(
    folder: Path,
    programs: Mapping[str, str],
    restarts: int = 1,
    grace: float = 2.0,
    setup: tuple[str, ...] = (),
    scheduler: str = "local",
) -> Launch:
    """A launch whose roles, by name, run these programs."""
    roles = list[Role]()
    for name, text in programs.items():
        kind, _, index = name.rpartition("-")
        assert kind in ("learner", "server")
        roles.append(Role(kind, int(index), 0, 1, 0, None, (sys.executable, "-c", text)))
    made = Launch(
        f"test-{os.getpid()}-{time.monotonic_ns()}", folder, "train", SchedulerConfig(scheduler, grace_seconds=grace),
        ClusterConfig(setup=setup), tuple(roles), restarts, str(folder), "partita train --resume it",
    )  # fmt: skip
    made.save()
    return made


def start(launch: Launch) -> "subprocess.Popen[str]":
    """Watch a launch in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", WATCH, str(launch.files)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def watched(launch: Launch) -> tuple[int, str, str]:
    """Watch a launch to its end: exit code, what was printed, and the error."""
    process = start(launch)
    out, err = process.communicate(timeout=60)
    assert left(launch) == []
    return process.returncode, out, err


def left(launch: Launch) -> list[int]:
    """Processes of a launch that still run."""
    return processes.marked(ID, launch.id)


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that happens soon."""
    late = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < late, "it did not happen"
        time.sleep(0.05)


def pids(launch: Launch, name: str) -> tuple[int, int]:
    """The processes of a role: the one that `partita.launch.role` is, and its command."""
    found = [pid for pid in left(launch) if _is(pid, f"PARTITA_MARK={launch.id}:{name}")]
    (child,) = [pid for pid in found if _parent(pid) not in found]
    return _parent(child), child


def _is(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
