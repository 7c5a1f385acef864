"""A role's process at the end of a pipe, `python -m partita.launch.keeper COMMAND...`: for launchers that are not its parent.

Each byte of the input is a signal's number, which is sent to the process; the end of the input is SIGTERM. So it hears of
signals one by one where Slurm would send them to all processes of the role at once, and it has time to end what it started
where Ray kills its worker's children, this process among them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from partita.launch.processes import dying_with_parent

LEFT_TO_THE_ROLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
TICK = 0.05


def main(command: Sequence[str]) -> int:
    """Run the command to its end; its exit code, or 128 and the signal that ended it."""
    for number in LEFT_TO_THE_ROLE:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the command would inherit
    child = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=dying_with_parent(signal.SIGTERM)
    )
    source = [sys.stdin.fileno()]
    while (code := child.poll()) is None:
        if select.select(source, [], [], TICK)[0]:
            said = os.read(source[0], 64)
            source = source if said else []
            for number in said or bytes([signal.SIGTERM]):
                with suppress(ProcessLookupError):
                    child.send_signal(number)
    return code if code >= 0 else 128 - code


def signal_or_code(code: int) -> int:
    """What `main` has returned, as `subprocess` has it: negative for a signal."""
    return 128 - code if code > 128 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
