"""True gradients are those of the model itself, worked out with transformers and autograd alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replaying import tensors_of
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from partita.replay import exact as module
from partita.replay.replay import Request, replay
from partita.report.sinks import read_samples
from partita.runfolder import RunFolderError, run_config_of

S, LIMIT = 12, 8


def model_before(folder: Path, step: int) -> torch.nn.Module:
    config = run_config_of(folder, []).value
    lm = AutoModelForCausalLM.from_pretrained(config.actor.path, dtype=torch.float32)
    lm.get_input_embeddings().padding_idx = None  # it keeps the pad's embedding without gradient, here that of the end
    if step > 1:
        saved = load_file(folder / f"checkpoints/step_{step - 1:06d}/model.safetensors")
        lm.load_state_dict({name.removeprefix("lm."): value for name, value in saved.items()}, strict=False)
    return lm


def told(lm: torch.nn.Module, row: dict) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of a row's trained tokens, by the model's own forward."""
    ids = torch.tensor(row["ids"])
    log_NV = lm(ids[None]).logits[0].log_softmax(-1)
    at = [i - 1 for i, trained in enumerate(row["trained"]) if trained]
    return log_NV[at].gather(1, ids[[i + 1 for i in at], None])[:, 0], -(log_NV[at].exp() * log_NV[at]).sum(-1)


def flat(lm: torch.nn.Module, loss: Tensor) -> Tensor:
    lm.zero_grad()
    loss.backward(retain_graph=True)
    return torch.cat([p.grad.flatten() for p in lm.parameters()]).double()


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3])
def test_norms_and_cosines_are_those_of_autograd_by_hand(trained: Path, step: int) -> None:
    found = replay(trained, Request(step, ("drgrpo",), exact=True)).exact
    assert found is not None
    samples = read_samples(trained / f"samples/step_{step:06d}.jsonl")
    saved = tensors_of(trained / f"batches/step_{step:06d}.safetensors")
    ref = saved["batch/ref_T"].split(saved["length_S"].tolist())
    lm = model_before(trained, step)
    grpo = drgrpo = torch.zeros(())
    for sample, ref_t in zip(samples, ref, strict=True):
        logp_t, entropy_t = told(lm, sample["rows"][0])
        group = torch.tensor([one["reward"] for one in samples if one["group"] == sample["group"]], dtype=torch.float64)
        centred = sample["reward"] - float(group.mean())
        ratio_t, k3_t = (logp_t - logp_t.detach()).exp(), (ref_t - logp_t).exp() - (ref_t - logp_t) - 1
        each_t = -centred / (float(group.std()) + 1e-6) * ratio_t + 0.04 * k3_t - 0.05 * entropy_t
        grpo = grpo + each_t.mean() / S
        drgrpo = drgrpo - (centred * ratio_t).sum() / (S * LIMIT)
    mine, other = flat(lm, grpo), flat(lm, drgrpo)
    first, second = found.gradients.values()
    assert first.norm == pytest.approx(float(mine.norm()), rel=2e-5)
    assert second.norm == pytest.approx(float(other.norm()), rel=2e-5)
    assert second.cosine == pytest.approx(float(mine @ other / mine.norm() / other.norm()), abs=1e-5)
    assert first.cosine == pytest.approx(1.0)
    assert abs(second.cosine or 1.0) < 0.999
    assert found.number == 1 and found.apart == 0.0
    line = json.loads((trained / "metrics.jsonl").read_text().splitlines()[step - 1])
    assert first.norm == pytest.approx(line["grad_norm"], rel=1e-5)  # what training measured
    assert ("starting policy" in found.weights) == (step == 1)


def test_the_weights_of_another_step_are_noticed(tmp_path: Path, trained: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "checkpoints/step_000002")
    shutil.copytree(run / "checkpoints/step_000003", run / "checkpoints/step_000002")
    found = replay(run, Request(3, ("drgrpo",), exact=True)).exact
    assert found is not None and found.apart > 1e-7


def refused(run: Path, step: int, *parts: str) -> None:
    with pytest.raises(RunFolderError) as error:
        replay(run, Request(step, ("drgrpo",), exact=True))
    for part in parts:
        assert part in str(error.value)


def test_without_its_weights_or_samples_there_is_no_gradient(tmp_path: Path, trained: Path) -> None:
    refused(
        trained, 2, "--exact needs the weights from before step 2", "checkpoints/step_000001, which is not there",
        "there are: step_000002, step_000003", "checkpoint.keep_last",
    )  # fmt: skip
    run = shutil.copytree(trained, tmp_path / "run")
    samples = run / "samples/step_000003.jsonl"
    samples.write_bytes((run / "samples/step_000002.jsonl").read_bytes())
    refused(run, 3, f"{samples} holds other samples than step 3 was trained with")
    samples.unlink()
    refused(run, 3, "--exact needs the prompts of step 3", "report.save_samples_every")


def test_a_large_model_is_refused_before_its_gradients_are_taken(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10_000)
    refused(trained, 3, "--exact is for small models", "at most 0 M are taken")


def test_a_gradient_through_the_reference_is_left_out_with_its_reason(trained: Path) -> None:
    found = replay(trained, Request(3, exact=True, changes=("actor.kl_loss_estimator=full",)))
    assert found.exact is not None
    assert "the reference's whole distribution" in list(found.exact.gradients.values())[1].missing


def test_a_step_that_learned_nothing_has_no_gradient(trained: Path) -> None:
    run = replay(trained, Request(3))
    dead = tuple(replace(taken, current=None, outcome="dead") for taken in run.saved.record.steps)
    saved = replace(run.saved, record=replace(run.saved.record, steps=dead))
    with pytest.raises(RunFolderError, match="step 3 learned nothing"):
        module.exact(trained, run.again.config, saved, run.told)
