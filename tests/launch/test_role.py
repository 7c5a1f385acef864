"""A role's process alone: its place in the environment, where it is reached, and what it does not take from earlier launches."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from launching import FOREVER, launch_of, left, until

from partita.launch.ended import read_status, write_json
from partita.launch.roles import HOST, PORT, Launch, role_command

PLACE = """
import json, os
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(
    ("RANK", "WORLD", "LOCAL_RANK", "MASTER", "PARTITA", "OMP", "CUDA", "OF_"))}))
"""


def play(launch: Launch, name: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(role_command(launch, launch.role(name)))


def test_a_learner_finds_its_place_and_waits_for_the_rendezvous_of_its_own_launch(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "learner-1": PLACE}, setup=("export OF_SETUP=yes",))
    stale = launch.files / "rendezvous.json"
    write_json(stale, {"launch": "an earlier one", "host": "127.0.0.1", "port": 1})
    second = play(launch, "learner-1")
    until(lambda: (launch.files / "status" / "learner-1.lock").exists())
    assert second.poll() is None and not launch.log(launch.learners[1]).exists()
    first = play(launch, "learner-0")
    assert second.wait(30) == 0
    met = json.loads(stale.read_text())
    whose = {name: value for name, value in os.environ.items() if name.startswith("PARTITA")}
    assert json.loads(launch.log(launch.learners[1]).read_text()) == whose | {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(met["port"]),
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "OF_SETUP": "yes", "PARTITA_ROLE": "learner-1",
        "PARTITA_RUN_FOLDER": str(tmp_path), "PARTITA_LAUNCH": str(launch.files), "PARTITA_LAUNCH_ID": launch.id,
        "PARTITA_MARK": f"{launch.id}:learner-1",
    }  # fmt: skip
    found = read_status(launch.status(launch.learners[1]), launch.id)
    assert found is not None and found.code == 0
    assert read_status(launch.status(launch.learners[1]), "another") is None
    first.terminate()
    assert first.wait(30) == 128 + 15
    assert left(launch) == []


def test_a_server_is_told_its_address_and_says_it(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, {"learner-0": FOREVER, "server-0": "import sys; print(*sys.argv[1:])"})
    server = launch.servers[0]
    command = (*server.command, "--host", HOST, f"--port={PORT}")
    missing = replace(server, index=1, command=("/no/such/program",))
    launch = replace(launch, roles=(*launch.learners, replace(server, command=command, env={"OF_A": "b"}), missing))
    launch.save()
    for start in (1, 2):
        assert play(launch, "server-0").wait(30) == 0
        said = json.loads((launch.files / "endpoints" / "server-0.json").read_text())
        assert (said["launch"], said["start"]) == (launch.id, start)
        last = launch.log(server).read_text().splitlines()[-1]
        assert said["url"] == f"http://127.0.0.1:{last.rpartition('=')[2]}" and last.startswith(
            "--host 127.0.0.1 --port="
        )
    assert play(launch, "server-1").wait(30) == 127
    found = read_status(launch.status(missing), launch.id)
    assert found is not None
    assert found.lines == ("error: /no/such/program cannot be started: No such file or directory",)


def test_two_processes_of_a_role_do_not_run_at_once(tmp_path: Path) -> None:
    earlier = launch_of(tmp_path, {"learner-0": FOREVER})
    first = play(earlier, "learner-0")
    until(lambda: earlier.log(earlier.learners[0]).exists() and "here" in earlier.log(earlier.learners[0]).read_text())
    later = launch_of(tmp_path, {"learner-0": "print('mine')"})
    second = play(later, "learner-0")
    until(lambda: len(left(earlier)) == 1)
    assert second.poll() is None and "mine" not in later.log(later.learners[0]).read_text()
    first.terminate()
    assert second.wait(30) == 0
    assert "mine" in later.log(later.learners[0]).read_text()
    first.wait(30)
