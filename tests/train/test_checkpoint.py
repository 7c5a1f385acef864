import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from partita.train.checkpoint import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    whole_checkpoints,
)


def pair(seed: int = 0) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for i in range(steps):
        model(torch.full((1, 4), float(i + 1))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_restores_weights_moments_and_state_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = pair()
    train(model, optimizer, 3)
    save_checkpoint(tmp_path, 3, model, optimizer, {"started": 12}, keep_last=2)
    train(model, optimizer, 2)
    other, other_optimizer = pair(seed=1)
    state = load_checkpoint(tmp_path / "step_000003", other, other_optimizer)
    train(other, other_optimizer, 2)
    assert state == {"started": 12}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    kinds = [[list(of_one) for of_one in its.state.values()] for its in (optimizer, other_optimizer)]
    assert kinds[0] == kinds[1]  # the order in which it is saved again, on which the files of several ranks depend


def test_a_checkpoint_before_the_first_optimizer_step(tmp_path: Path) -> None:
    model, optimizer = pair()
    save_checkpoint(tmp_path, 1, model, optimizer, {}, keep_last=1)
    other, other_optimizer = pair(seed=1)
    load_checkpoint(tmp_path / "step_000001", other, other_optimizer)
    train(model, optimizer, 2)
    train(other, other_optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_other_trained_models_come_back_with_their_moments(tmp_path: Path) -> None:
    policy, critic = pair(), pair(seed=2)
    for one in (policy, critic):
        train(*one, 3)
    save_checkpoint(tmp_path, 3, *policy, {}, keep_last=2, others={"critic": critic})
    folder = tmp_path / "step_000003"
    assert {"critic.safetensors", "critic_optimizer.safetensors"} <= {path.name for path in folder.iterdir()}
    back, other = pair(seed=5), pair(seed=6)
    load_checkpoint(folder, *back, {"critic": other})
    for ours, theirs in ((policy, back), (critic, other)):
        for one in (ours, theirs):
            train(*one, 2)
        assert all(torch.equal(a, b) for a, b in zip(ours[0].parameters(), theirs[0].parameters(), strict=True))
    with pytest.raises(CheckpointError, match=r"no judge\.safetensors: it was saved by a run that kept no judge"):
        load_checkpoint(folder, *back, {"judge": other})


def test_weights_of_another_model_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    policy, critic = pair(), pair(seed=2)
    with torch.no_grad():
        critic[0][0].weight[0, 0] = float("nan")  # type: ignore[index]
    with pytest.raises(CheckpointError, match=r"the weights of critic are not finite .* Lower critic\.optimizer\.lr"):
        save_checkpoint(tmp_path, 3, *policy, {}, keep_last=2, others={"critic": critic})
    assert not list(tmp_path.iterdir())


def test_keeps_the_last_n(tmp_path: Path) -> None:
    model, optimizer = pair()
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, step, model, optimizer, {}, keep_last=2)
    assert [p.name for p in whole_checkpoints(tmp_path)] == ["step_000003", "step_000004"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000003", "step_000004"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("fault", ["missing", "cut"])
def test_an_incomplete_checkpoint_is_named_and_skipped(tmp_path: Path, name: str, fault: str) -> None:
    model, optimizer = pair()
    train(model, optimizer, 1)
    for step in (10, 20):
        save_checkpoint(tmp_path, step, model, optimizer, {"step": step}, keep_last=5)
    path = tmp_path / "step_000020" / name
    data = path.read_bytes()
    path.unlink()
    if fault == "cut":
        path.write_bytes(data[: len(data) // 2])
    with pytest.warns(UserWarning, match="step_000020 is skipped"):
        assert latest_checkpoint(tmp_path) == tmp_path / "step_000010"


def test_saving_a_step_once_more_replaces_it(tmp_path: Path) -> None:
    model, optimizer = pair()
    for value in (1, 2):
        train(model, optimizer, 1)
        save_checkpoint(tmp_path, 5, model, optimizer, {"value": value}, keep_last=3)
    assert load_checkpoint(tmp_path / "step_000005", model, optimizer) == {"value": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["step_000005"]


def test_step_counts_are_made_where_the_weights_are(tmp_path: Path) -> None:
    model, optimizer = pair()
    train(model, optimizer, 3)
    folder = save_checkpoint(tmp_path, 3, model, optimizer, {}, keep_last=1)
    elsewhere = model.to("meta")  # a device that every machine has; the fused optimizer refuses counts on another
    other = torch.optim.AdamW(elsewhere.parameters())
    load_checkpoint(folder, elsewhere, other)
    assert {t.device.type for state in other.state.values() for t in state.values()} == {"meta"}


def test_the_fused_optimizer_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    ended = []
    for stop in (None, 3):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        train(model, optimizer, stop or 5)
        if stop is not None:
            folder = save_checkpoint(tmp_path, stop, model, optimizer, {}, keep_last=1)
            model = nn.Linear(4, 2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
            load_checkpoint(folder, model, optimizer)
            assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}
            for i in range(3, 5):
                model(torch.full((1, 4), float(i + 1))).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        ended.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    model, optimizer = pair()
    folder = save_checkpoint(tmp_path, 1, model, optimizer, {}, keep_last=1)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load_checkpoint(folder, model, optimizer)


def test_a_checkpoint_of_another_model_names_the_tensor(tmp_path: Path) -> None:
    model, optimizer = pair()
    folder = save_checkpoint(tmp_path, 1, model, optimizer, {}, keep_last=1)
    other = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 2))
    with pytest.raises(CheckpointError, match=r"0\.weight has shape \(8, 4\), the model's has \(9, 4\)"):
        load_checkpoint(folder, other, torch.optim.AdamW(other.parameters()))


def test_nonfinite_weights_are_never_written(tmp_path: Path) -> None:
    model, optimizer = pair()
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match="not finite"):
        save_checkpoint(tmp_path, 1, model, optimizer, {}, keep_last=1)
    assert not list(tmp_path.iterdir())


SAVER = """
import sys, torch
from pathlib import Path
from torch import nn
from partita.train.checkpoint import save_checkpoint
model = nn.Linear(int(sys.argv[2]), 256)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, int(sys.argv[2]))).sum().backward(); optimizer.step()
for step in range(1, 1000):
    save_checkpoint(Path(sys.argv[1]), step, model, optimizer, {"step": step}, keep_last=2)
    print(step, flush=True)
"""


def start_saver(root: Path, width: int) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SAVER, str(root), str(width)], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", [3, 9, 17, 26, 38])
def test_killed_while_writing_leaves_a_whole_one(tmp_path: Path, delay_ms: int) -> None:
    process = start_saver(tmp_path, 2048)
    assert process.stdout is not None
    for _ in range(3):
        done = int(process.stdout.readline())
    try:
        process.wait(timeout=delay_ms / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert int(latest.name.split("_")[1]) >= done
    model = nn.Linear(2048, 256)
    state = load_checkpoint(latest, model, torch.optim.AdamW(model.parameters()))
    assert f"step_{state['step']:06d}" == latest.name


@pytest.mark.slow
def test_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        set -e
        mount -t tmpfs -o size=20m tmpfs {tmp_path}
        {sys.executable} - <<'PY'
        import json, torch
        from pathlib import Path
        from torch import nn
        from partita.train.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
        root = Path("{tmp_path}") / "checkpoints"
        model = nn.Linear(2048, 512)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2048)).sum().backward(); optimizer.step()
        save_checkpoint(root, 1, model, optimizer, dict(step=1), keep_last=5)
        try:
            save_checkpoint(root, 2, model, optimizer, dict(step=2), keep_last=5)
        except CheckpointError as error:
            state = load_checkpoint(latest_checkpoint(root), model, optimizer)
            print(json.dumps(dict(error=str(error), state=state, left=sorted(p.name for p in root.iterdir()))))
        PY
    """)
    run = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script], capture_output=True, text=True
    )
    if "mount" in run.stderr or "unshare" in run.stderr:
        pytest.skip(f"no private mounts on this machine: {run.stderr.strip()}")
    report = json.loads(run.stdout)
    assert "space" in report["error"] and "step_000001" in report["error"]
    assert report["state"] == {"step": 1} and report["left"] == ["step_000001"]
