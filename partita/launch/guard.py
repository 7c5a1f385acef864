"""A process that outlives the one that started it, and then ends what that has left: `python -m partita.launch.guard NAME VALUE`.

What has the environment variable NAME=VALUE is ended as soon as the input is closed, which also SIGKILL does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from partita.launch.processes import end_all, marked

GRACE = 5.0


@contextmanager
def guarded(name: str, value: str) -> Iterator[None]:
    """What is started in the block and is still there at its end, or at the end of this process, is ended."""
    command = [sys.executable, "-m", "partita.launch.guard", name, value]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
        guard.communicate()


def main(name: str, value: str) -> None:
    """Wait for the end of the input; end the processes."""
    sys.stdin.read()
    end_all(lambda: marked(name, value), GRACE)


if __name__ == "__main__":
    main(*sys.argv[1:])
