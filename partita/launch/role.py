"""One role's process, `python -m partita.launch.role --files RUN/launch --name learner-1`: all that launchers ever start.

It says where the role can be reached, starts its command with the environment of its place, keeps its output, and ends
everything that the command has started when that ends, or when it is told to, or when whoever started it is gone.
Left out: starting a role again; `watch` decides that.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from partita.launch import processes
from partita.launch.ended import Status, last_lines, read_json, write_json, write_status
from partita.launch.roles import (
    ENDPOINTS,
    FILES,
    FOLDER,
    HOST,
    ID,
    MARK,
    PORT,
    RENDEZVOUS,
    ROLE,
    STATUS,
    Launch,
    Role,
    read_launch,
)

LOOPBACK = "127.0.0.1"
TICK = 0.05


class Stopped(Exception):
    """This role was told to end before its command was started."""


class Told:
    """Signals that this process got: SIGTERM and SIGINT ask it to end, SIGUSR1 is the command's."""

    def __init__(self) -> None:
        self.end = self.passed = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hear)
        signal.signal(signal.SIGUSR1, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.passed = True
        else:
            self.end = True

    def wait(self) -> None:
        """A moment. Raises Stopped where this role is to end."""
        if self.end:
            raise Stopped
        time.sleep(TICK)


def main(given: Sequence[str] | None = None) -> int:
    """Run the role to its end; the exit code of its command, or 128 and the signal that ended it."""
    parser = argparse.ArgumentParser(prog="python -m partita.launch.role", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=Path, required=True, help="the launch folder of the run")
    parser.add_argument("--name", required=True, help="as in learner-0")
    asked = parser.parse_args(given)
    told, launch = Told(), read_launch(asked.files)
    os.chdir(launch.cwd)  # paths of the launch are as they were given there
    role = launch.role(asked.name)
    processes.adopt_orphans()
    try:
        with _only_one(launch, role, told):
            code = _run(launch, role, told)
    except Stopped:
        return 128 + signal.SIGTERM
    return code if code >= 0 else 128 - code


@contextmanager
def _only_one(launch: Launch, role: Role, told: Told) -> Iterator[None]:
    """Wait until a process of this role from an earlier launch has ended: two must not write the same files."""
    lock = launch.files / STATUS / f"{role.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        while not processes.locked(file):
            told.wait()
        yield


def _run(launch: Launch, role: Role, told: Told) -> int:
    log = launch.log(role)
    log.parent.mkdir(parents=True, exist_ok=True)
    host = LOOPBACK if launch.cluster.nodes == 1 else processes.own_address()
    port = processes.free_port(host)
    env = environment(launch, role) | _rendezvous(launch, role, host, port, told)
    command = [word.replace(HOST, host).replace(PORT, str(port)) for word in role.command]
    if launch.cluster.setup:
        command = ["bash", "-c", "\n".join([*launch.cluster.setup, 'exec "$@"']), "bash", *command]
    with log.open("ab") as out:
        began = out.tell()
        try:
            child = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, preexec_fn=processes.dying_with_parent(signal.SIGKILL),
            )  # fmt: skip
        except OSError as error:
            out.write(f"error: {command[0]} cannot be started: {error.strerror}\n".encode())
            out.flush()
            return _ended(launch, role, 127, began)
    if role.kind == "server":
        _announce(launch, role, host, port, child.pid)
    code = _wait(child, launch.scheduler.grace_seconds, told)
    return _ended(launch, role, code, began)


def _ended(launch: Launch, role: Role, code: int, began: int) -> int:
    status = Status(launch.id, code, time.time(), last_lines(launch.log(role), began))
    processes.end_all(lambda: processes.descendants(os.getpid()), 2.0)
    write_status(launch.status(role), status)
    return code


def environment(launch: Launch, role: Role) -> dict[str, str]:
    """What a role's command finds in its environment, its rendezvous aside."""
    own = {
        ID: launch.id, MARK: f"{launch.id}:{role.name}", ROLE: role.name, FOLDER: str(launch.folder), FILES: str(launch.files),
        "OMP_NUM_THREADS": str(role.cpus), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if role.kind == "learner":
        own |= {"RANK": str(role.index), "WORLD_SIZE": str(len(launch.learners)), "LOCAL_RANK": "0"}
    if role.gpus == 0:
        own["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **own, **launch.cluster.env, **role.env}


def _rendezvous(launch: Launch, role: Role, host: str, port: int, told: Told) -> dict[str, str]:
    """Where the learners meet: the first one says it, the others wait for that, of this launch."""
    if role.kind != "learner" or len(launch.learners) == 1:
        return {}
    file = launch.files / RENDEZVOUS
    if role.index == 0:
        write_json(file, {"launch": launch.id, "host": host, "port": port})
    while (found := read_json(file)).get("launch") != launch.id:
        told.wait()
    return {"MASTER_ADDR": found["host"], "MASTER_PORT": str(found["port"])}


def _announce(launch: Launch, role: Role, host: str, port: int, pid: int) -> None:
    """Say where a server listens (soon). start: how often it has been started in this launch."""
    file = launch.files / ENDPOINTS / f"{role.name}.json"
    before = read_json(file)
    start = int(before["start"]) + 1 if before.get("launch") == launch.id else 1
    write_json(file, {"launch": launch.id, "url": f"http://{host}:{port}", "start": start, "pid": pid, "host": host})


def _wait(child: subprocess.Popen[bytes], grace: float, told: Told) -> int:
    """The command's exit code; it is ended where this role is to end."""
    until = float("inf")
    while (code := child.poll()) is None:
        if told.passed:
            told.passed = False
            child.send_signal(signal.SIGUSR1)
        if told.end and until == float("inf"):
            until = time.monotonic() + grace
            _signal_group(child.pid, signal.SIGTERM)
        if time.monotonic() >= until:
            _signal_group(child.pid, signal.SIGKILL)
        time.sleep(TICK)
    return code


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
