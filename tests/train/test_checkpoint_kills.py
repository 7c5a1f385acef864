"""A kill at any point of a save leaves the checkpoint before it or the new one, whole, and the next save cleans up.

The process really dies: it sends itself SIGKILL at a line of the save, or the kernel ends it in the middle of a file.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Saves step 1; then, for each point, a child copies that folder, starts saving step 2 and dies there.
SCRIPT = """
import json, os, resource, shutil, signal, sys, warnings
from pathlib import Path
import torch
from torch import nn
from partita.ops import disk
from partita.train import checkpoint
from partita.train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint, whole_checkpoints

torch.set_num_threads(1)
root, mode, points = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
WATCHED = {checkpoint.__file__, disk.__file__, shutil.__file__}

def model_of(step):
    model = nn.Linear(64, 256)
    for parameter in model.parameters():
        nn.init.constant_(parameter, float(step))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    (model(torch.ones(1, 64)).sum() * step).backward()
    optimizer.step()
    return model, optimizer

def save(folder, step):
    save_checkpoint(folder, step, *model_of(step), {"step": step}, keep_last=1)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def trace_lines(die_at):
    count = 0
    def lines(frame, event, _):
        nonlocal count
        if event == "line":
            count += 1
            if count == die_at:
                die()
        return lines
    sys.settrace(lambda frame, event, arg: lines if frame.f_code.co_filename in WATCHED else None)
    return lambda: count

def die_before(point):
    forced, moved = os.fsync, Path.rename
    seen = []
    def at(name):
        seen.append(name)
        if f"{name}{seen.count(name)}" == point:
            die()
    os.fsync = lambda handle: (at("sync"), forced(handle))[1]
    Path.rename = lambda self, target: (at("rename"), moved(self, target))[1]

def in_the_middle_of_a_file(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def count_lines():
    counted = trace_lines(-1)
    save(root / "start", 2)
    sys.settrace(None)
    (root / "lines").write_text(str(counted()))

def start(name):
    shutil.rmtree(root / "start", ignore_errors=True)
    save(root / "start", 1)
    if name:
        shutil.copytree(root / "start", root / name)
        return root / name

def used(folder):
    # what a resumed run would go on from: its step, and whether weights, moments and state are those of that step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        newest = latest_checkpoint(folder)
    if newest is None:
        return 0, False
    model, optimizer = model_of(7)
    state = load_checkpoint(newest, model, optimizer)
    want, moments = model_of(state["step"])
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), want.parameters()))
    for p, q in zip(model.parameters(), want.parameters()):
        same &= all(torch.equal(optimizer.state[p][k], moments.state[q][k]) for k in moments.state[q])
    return state["step"], same and newest.name == f"step_{state['step']:06d}"

if mode == "lines":
    start(None)
    assert child(count_lines) == 0
    points = range(1, int((root / "lines").read_text()) + 1)
found = []
for point in points:
    folder = start(f"at_{point}")
    def killed_save():
        {"lines": lambda: trace_lines(int(point)), "steps": lambda: die_before(point),
         "size": lambda: in_the_middle_of_a_file(int(point))}[mode]()
        save(folder, 2)
    code = child(killed_save)
    step, same = used(folder)
    left = sorted(p.name for p in folder.iterdir())
    save(folder, 3)
    found.append({"point": str(point), "code": code, "step": step, "same": same, "left": left,
                  "after": sorted(p.name for p in folder.iterdir())})
    shutil.rmtree(folder)
print(json.dumps(found))
"""


def kills(root: Path, mode: str, *points: str) -> list[dict]:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), mode, *points], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def check(found: list[dict], code: int) -> None:
    for kill in found:
        assert kill["code"] == code, kill
        assert kill["step"] in (1, 2) and kill["same"], kill
        assert kill["after"] == ["step_000003"], kill


# the save syncs weights, moments, state, manifest and folder, renames the folder, syncs, and renames the old one away
@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "step"),
    [(("sync1", "sync2", "sync3", "sync4", "rename1"), 1), (("sync6", "rename2"), 2)],
    ids=["before the rename", "after it"],
)
def test_a_kill_between_the_steps_of_a_save(tmp_path: Path, points: tuple[str, ...], step: int) -> None:
    found = kills(tmp_path, "steps", *points)
    check(found, code=-9)
    assert [kill["step"] for kill in found] == [step] * len(points)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_file(tmp_path: Path) -> None:
    """The kernel ends the process when a file would grow beyond so many bytes: in the weights, or in the moments."""
    weights, moments = 4 * (64 * 256 + 256), 8 * (64 * 256 + 256)
    found = kills(tmp_path, "size", "10", str(weights // 2), str(weights - 1), str((weights + moments) // 2))
    check(found, code=-25)
    assert [kill["step"] for kill in found] == [1] * 4
    assert any(name.startswith(".writing_") for kill in found for name in kill["left"])


@pytest.mark.slow
def test_a_kill_at_every_line_of_a_save_and_of_the_clean_up_after_it(tmp_path: Path) -> None:
    found = kills(tmp_path, "lines")
    check(found, code=-9)
    assert len(found) > 100
    steps = [kill["step"] for kill in found]
    assert steps == sorted(steps)  # once the new one is in place nothing goes back to the old one
    assert set(steps) == {1, 2}
    half_removed = [kill for kill in found if kill["left"] == [".writing_step_000001", "step_000002"]]
    assert len(half_removed) > 10  # killed while the old one was being removed
