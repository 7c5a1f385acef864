"""`scheduler.type=slurm`: a batch job whose one command watches the run inside its allocation, starting roles by `srun`.

<run folder>/launch/  job.sh  job.json  outcome.json  logs/job.log
This process submits the job and follows it: its state, and the first learner's log. When this one is interrupted or told to
end, the job is cancelled; when it is killed, the job goes on, and going on with the run follows it again.
Left out: accounting (`sacct`), job arrays, several runs in one job.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.launch.config import ClusterConfig
from partita.launch.ended import EARLY, LaunchError, LaunchRefused, last_lines, read_json, write_json
from partita.launch.keeper import signal_or_code
from partita.launch.roles import LOGS, RENDEZVOUS, Launch, Machine, Role, Say, read_launch, role_command
from partita.launch.watch import Ask, Tail, Terminated, heard, watch

SCRIPT, JOB, OUTCOME, LOG = "job.sh", "job.json", "outcome.json", f"{LOGS}/job.log"
TICK, ASK = 0.2, 3.0  # seconds between looks at files, and between questions to Slurm
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
    "GONE",
})  # fmt: skip
ENDS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED", "CONFIGURING"})


def machine(cluster: ClusterConfig) -> Machine:
    """The smallest of the partition's. Raises ConfigError where Slurm's commands are missing or its controller is silent."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        told = "slurm needs Slurm's commands (sbatch, srun, squeue, scancel) on the PATH of this machine, and they are not there"
        raise ConfigError([Problem("scheduler.type", told)])
    chosen = () if cluster.partition is None else (f"--partition={cluster.partition}",)
    asked = _slurm("sinfo", "--noheader", "--exact", "--format=%P|%c|%G", *chosen)
    if asked.returncode != 0:
        raise ConfigError([Problem("scheduler.type", f"Slurm does not answer: {_said(asked)}")])
    rows = [line.split("|") for line in asked.stdout.split()]
    if cluster.partition is None:
        rows = [row for row in rows if row[0].endswith("*")] or rows
    if not rows:
        there = ", ".join(sorted(set(_slurm("sinfo", "--noheader", "--format=%R").stdout.split())))
        told = f"{cluster.partition} is no partition of this cluster, or has no machine. There are: {there}"
        raise ConfigError([Problem("cluster.partition", told)])
    return Machine(min(int(cpus.rstrip("+")) for _, cpus, _ in rows), min(_gpus_of(gres) for *_, gres in rows))


def shown(launch: Launch) -> list[str]:
    """The batch script."""
    return [f"batch script ({launch.files / SCRIPT}), for sbatch:", "", *script(launch)]


def run(launch: Launch, say: Say) -> int:
    """Submit the job and follow it."""
    log = Tail(launch.files / LOG)  # from before the job is there, which writes to it at once
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # else a job could wait in the queue that nobody knows of
    try:
        job = _submit(launch)
        write_json(launch.files / JOB, {"job": job})
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    say(f"job {job} is submitted; its own log: {launch.files / LOG}. To end it: Ctrl-C here, or scancel {job}")
    return Following(launch, job, log, say).to_the_end()


def going_on(launch: Launch, say: Say) -> int | None:
    """Follow the job of this run that an earlier process has left in the queue, to its end; None where there is none."""
    job = read_json(launch.files / JOB).get("job")
    if job is None or _state_of(job, launch)[0] in OVER:
        return None
    say(f"job {job} of this run goes on, and is followed; to end it: Ctrl-C here, or scancel {job}")
    return Following(launch, job, Tail(launch.files / LOG), say).to_the_end()


def script(launch: Launch) -> list[str]:
    """The lines of the batch script, sbatch's options first."""
    cluster, python = launch.cluster, shlex.quote(sys.executable)
    return [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(launch)),
        f"cd {shlex.quote(launch.cwd)} || exit 1",
        *cluster.setup,
        f'command -v {python} >/dev/null || {{ echo "error: there is no {python} on $(hostname); all machines must see the '
        'same files, and cluster.setup can load an environment"; exit 127; }',
        f"exec {python} -m partita.launch.slurm --files {shlex.quote(str(launch.files.absolute()))}",
    ]


def _options(launch: Launch) -> list[str]:
    cluster = launch.cluster
    on_node = [[role for role in launch.roles if role.node == node] for node in range(cluster.nodes)]
    memory = max(sum(role.memory or 0 for role in here) for here in on_node)
    gpus = max(sum(role.gpus for role in here) for here in on_node)
    given = {
        "--job-name": shlex.quote(_job_name(launch)),
        "--output": shlex.quote(str(launch.files.absolute() / LOG).replace("%", "%%")),
        "--open-mode": "append",
        "--nodes": str(cluster.nodes),
        "--ntasks-per-node": "1",
        "--cpus-per-task": str(min(machine(cluster).cpus, max(sum(role.cpus for role in here) for here in on_node))),
        "--gpus-per-node": str(gpus) if gpus else None,
        "--mem": f"{round(memory * 1024)}M" if memory else None,
        "--partition": cluster.partition,
        "--account": cluster.account,
        "--time": cluster.time,
        "--signal": f"B:USR1@{cluster.warn_seconds}",
    }
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    return [*options, "--requeue" if cluster.requeue else "--no-requeue", *cluster.options]


def _submit(launch: Launch) -> str:
    """The job's number. Raises LaunchRefused with what Slurm has against it."""
    file = launch.files / SCRIPT
    (launch.files / LOGS).mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*script(launch), ""]), encoding="utf-8")
    (launch.files / OUTCOME).unlink(missing_ok=True)
    asked = _slurm("sbatch", "--parsable", str(file))
    if asked.returncode != 0:
        raise LaunchRefused(
            f"Slurm refuses the job: {_said(asked)}\nIts script is {file}. What it asks for comes from the sections allocation and "
            "cluster (partition, account, time, nodes, options)"
        )
    return asked.stdout.strip().split(";")[0]


@dataclass
class Following:
    """A job in the queue, as its user sees it from outside. shown: the state that was last said."""

    launch: Launch
    job: str
    log: Tail
    say: Say
    shown: str = ""

    def to_the_end(self) -> int:
        """Stay until the job is over: 0, or EARLY. Raises LaunchError and LaunchRefused with what its watcher has said.

        An interrupt or SIGTERM cancels the job; SIGUSR1 tells the run to finish its step and end.
        """
        with heard() as ask:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # what came while the job was submitted cancels it
                while (code := self._code(self._state(ask))) is None:
                    pass
            except (KeyboardInterrupt, Terminated):
                self._cancel()
                raise
            finally:
                self.log.show()
        return code

    def _state(self, ask: Ask) -> str:
        """The job's state after a while, or as soon as its watcher has ended."""
        until = time.monotonic() + ASK
        while time.monotonic() < until and not read_json(self.launch.files / OUTCOME):
            self.log.show()
            time.sleep(TICK)
        if ask.early:
            ask.early = False
            _slurm("scancel", "--batch", "--signal=USR1", self.job)
        state, why = _state_of(self.job, self.launch)
        if (now := f"{state} ({why})" if state in WAITS else state) != self.shown:
            self.shown = now
            self.say(f"job {self.job}: {now}")
        return state

    def _code(self, state: str) -> int | None:
        """How the run ended; None while it goes on, also where the job was queued again."""
        found = read_json(self.launch.files / OUTCOME)
        if found:
            return _as_said(found)
        if state not in OVER:
            return None
        lines = "".join(f"\n  | {line}" for line in last_lines(self.launch.files / LOG)) or " (nothing)"
        told = f"job {self.job} is over: {state}; the last lines of its log ({self.launch.files / LOG}):{lines}"
        raise LaunchError(told)

    def _cancel(self) -> None:
        self.say(f"cancelling job {self.job}")
        _slurm("scancel", self.job)
        until = time.monotonic() + self.launch.scheduler.grace_seconds + 40.0  # Slurm's own KillWait is 30
        while time.monotonic() < until and _state_of(self.job, self.launch)[0] not in OVER:
            time.sleep(TICK)


def _state_of(job: str, launch: Launch) -> tuple[str, str]:
    """A job's state, and why it waits or where it runs: UNKNOWN while Slurm does not answer, GONE where it has forgotten it and
    where the number is another job's by now.
    """
    asked = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%R|%j")
    if asked.returncode != 0:
        return ("GONE" if "Invalid job id" in asked.stderr else "UNKNOWN"), _said(asked)
    state, why, name = [*asked.stdout.strip().split("|", 2), "", ""][:3]
    return (state, why.strip("()")) if name == _job_name(launch) else ("GONE", "")


def _job_name(launch: Launch) -> str:
    return f"{launch.folder.parent.name}/{launch.folder.name}"


def _as_said(found: dict[str, object]) -> int:
    code, told = found["code"], str(found["told"])
    if code in (0, EARLY):
        return EARLY if code else 0
    raise LaunchRefused(told) if code == 2 else LaunchError(told)


@dataclass
class Srun:
    """Inside the job: starts each role as a step of its own on its machine.

    Steps without GPUs share all cores that the job has there; those with GPUs have their own, and their own cores.
    """

    launch: Launch
    nodes: Sequence[str]
    cpus: str

    def start(self, role: Role) -> subprocess.Popen[bytes]:
        """`srun`, whose input is the keeper's."""
        memory = "0" if role.memory is None else f"{round(role.memory * 1024)}M"
        alone = ("--exact", f"--cpus-per-task={role.cpus}", f"--gpus-per-node={role.gpus}", f"--mem={memory}")
        step = alone if role.gpus else ("--overlap", f"--cpus-per-task={self.cpus}", "--gres=none")
        command = [
            "srun", "--nodes=1", "--ntasks=1", f"--nodelist={self.nodes[role.node]}", f"--job-name={role.name}", *step,
            sys.executable, "-m", "partita.launch.keeper", *role_command(self.launch, role),
        ]  # fmt: skip
        # else a step asks for all GPUs of the job
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_GPUS")}
        with self.launch.log(role).open("ab") as out:  # what goes wrong before the role's process keeps its output
            return subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True, bufsize=0
            )

    def poll(self, handle: subprocess.Popen[bytes]) -> int | None:
        """Its exit code, once it has one."""
        code = handle.poll()
        return None if code is None else signal_or_code(code)

    def signal(self, handle: subprocess.Popen[bytes], number: int) -> None:
        """Have the keeper pass it on: Slurm would send it to all processes of the step."""
        if handle.stdin is not None and handle.poll() is None:
            with suppress(BrokenPipeError):
                handle.stdin.write(bytes([number]))
                if number == signal.SIGKILL:
                    handle.stdin.close()

    def close(self) -> None:
        """What is left of the steps ends with the job."""


def main(given: Sequence[str] | None = None) -> int:
    """In the job: watch the run to its end, write down how it ended, queue the job again where its limit was the reason."""
    parser = argparse.ArgumentParser(prog="python -m partita.launch.slurm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=Path, required=True, help="the launch folder of the run")
    # a new launch each time that the job is started: nothing that an earlier start has left is taken for its own
    launch = replace(read_launch(parser.parse_args(given).files), id=secrets.token_hex(8))
    launch.save()
    (launch.files / RENDEZVOUS).unlink(missing_ok=True)
    job = os.environ["SLURM_JOB_ID"]
    nodes = _slurm("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).stdout.split()
    srun = Srun(launch, nodes, os.environ["SLURM_CPUS_PER_TASK"])
    try:
        code, told = watch(launch, srun, lambda line: print(line, flush=True)), ""
    except (LaunchError, LaunchRefused) as error:
        code, told = (2 if isinstance(error, LaunchRefused) else 1), str(error)
    if code == EARLY and launch.cluster.requeue:
        print(f"job {job} is queued again, and goes on from the checkpoint", flush=True)
        again = _slurm("scontrol", "requeue", job)
        if again.returncode == 0:
            return 0
        print(f"it cannot be: {_said(again)}", flush=True)
    write_json(launch.files / OUTCOME, {"code": code, "told": told})
    return code


def _gpus_of(gres: str) -> int:
    """`gpu:a100:4(S:0-1),other:1` is 4."""
    named = [one.split("(")[0].split(":") for one in gres.split(",") if one.startswith("gpu:")]
    return sum(int(parts[-1]) for parts in named if parts[-1].isdigit())


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _said(asked: subprocess.CompletedProcess[str]) -> str:
    return " ".join((asked.stderr or asked.stdout).split()) or f"{asked.args[0]} ended with {asked.returncode}"


if __name__ == "__main__":
    sys.exit(main())
