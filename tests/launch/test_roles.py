"""Who gets which machine and what of it; the plan on disk; and that a launcher is one file."""

import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch_of

import partita.launch
from partita.config import ConfigError
from partita.launch.config import FRAME, AllocationConfig, ClusterConfig, ResourcesConfig, launcher_names
from partita.launch.roles import Machine, placed, read_launch, role_command, starter


def nodes(learners: int, servers: int, machines: int) -> tuple[list[int], list[int]]:
    allocation = AllocationConfig(learners=learners, servers=servers)
    found = placed(allocation, ClusterConfig(nodes=machines), Machine(64, 0))
    return [r.node for r in found if r.kind == "learner"], [r.node for r in found if r.kind == "server"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 0, 1), ([0], [])),
        ((2, 1, 1), ([0, 0], [0])),
        ((1, 1, 2), ([0], [1])),
        ((4, 4, 2), ([0, 0, 1, 1], [1, 1, 0, 0])),
        ((2, 6, 4), ([0, 2], [3, 3, 2, 1, 1, 0])),
        ((3, 0, 3), ([0, 1, 2], [])),
    ],
)
def test_roles_are_dealt_over_machines(asked: tuple[int, int, int], expected: tuple[list[int], list[int]]) -> None:
    assert nodes(*asked) == expected


def test_what_is_not_given_is_a_share_of_the_machine() -> None:
    allocation = AllocationConfig(learners=2, servers=1, server=ResourcesConfig(cpus=3, memory=1.5))
    first, second, server = placed(allocation, ClusterConfig(), Machine(13, 8), tensor_parallel=4)
    assert (first.cpus, first.gpus, first.memory) == (second.cpus, second.gpus, second.memory) == (4, 1, None)
    assert (server.cpus, server.gpus, server.memory) == (3, 4, 1.5)
    (alone,) = placed(AllocationConfig(), ClusterConfig(), Machine(8, 0))
    assert (alone.name, alone.cpus, alone.gpus) == ("learner-0", 8, 0)


def test_what_does_not_fit_is_refused_with_names_and_numbers() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.nodes: 3 machines, but allocation\.learners=1 and .*servers=1"):
        nodes(1, 1, 3)
    allocation = AllocationConfig(learners=3, servers=1)
    with pytest.raises(ConfigError, match=r"5 GPUs .*learner-0 1, learner-1 1, learner-2 1, server-0 2.* has 4"):
        placed(allocation, ClusterConfig(), Machine(8, 4), tensor_parallel=2)
    none = AllocationConfig(learners=3, servers=1, learner=ResourcesConfig(gpus=0), server=ResourcesConfig(gpus=1))
    assert [role.gpus for role in placed(none, ClusterConfig(), Machine(8, 4))] == [0, 0, 0, 1]


def test_a_plan_is_read_as_it_was_written_and_only_by_its_owner(tmp_path: Path) -> None:
    made = launch_of(tmp_path, {"learner-0": "print(1)", "server-0": "print(2)"}, setup=("set -e",))
    assert read_launch(made.files) == made
    assert (made.files / "plan.json").stat().st_mode & 0o777 == 0o600
    words = role_command(made, made.servers[0])
    assert words[1:] == ["-m", "partita.launch.role", "--files", str(tmp_path / "launch"), "--name", "server-0"]


def test_every_module_is_a_launcher_or_part_of_the_frame() -> None:
    folder = Path(partita.launch.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert modules == FRAME | set(launcher_names())
    assert {"local", "ray", "slurm"} <= set(launcher_names())
    local = starter("local")
    assert callable(local.machine) and callable(local.shown) and callable(local.run)


def test_a_launcher_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text("def machine(cluster): return 'here'\n")
    program = f"""
import partita.launch
partita.launch.__path__.append({str(tmp_path)!r})
from partita.config.schema import keys_of
from partita.launch.config import SchedulerConfig
from partita.launch.roles import starter
print(starter("toy").machine(None), keys_of(SchedulerConfig)["type"].choices)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("here ") and "'toy'" in done.stdout
