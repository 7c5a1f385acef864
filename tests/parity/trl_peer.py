"""TRL's own trainers on padded rows: built as a user builds them, fed with rows instead of generations.

Shapes: B rows, W padded width.
A policy is a table of log-probs in place of a network: what a trainer makes of log-probs is compared, not how a network
makes them. Rows come in through `rollout_func`, or in place of `_generate` where a trainer has no such hook.
Left out: several processes, and generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from parity.outcome import Outcome, differentiate
from parity.ragged import Ragged
from tiny_model import byte_tokenizer
from torch import Tensor, nn
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

Setting = Mapping[str, Any]
LETTER = 66  # any token; a prompt is one token that says which row it is


class Table(nn.Module):
    """A policy that has these log-probs and entropies, whatever tokens it is asked about."""

    def __init__(self, logprobs_BW: Tensor, entropy_BW: Tensor | None = None) -> None:
        super().__init__()
        self.is_gradient_checkpointing = False
        self.logprobs_BW = logprobs_BW
        self.entropy_BW = torch.zeros_like(logprobs_BW) if entropy_BW is None else entropy_BW

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        """The rows that the prompts name, as wide as what follows the prompt."""
        asked = (input_ids[:, 0], slice(0, input_ids.shape[1] - 1))
        nothing_BW = torch.zeros_like(self.logprobs_BW[asked])
        return SimpleNamespace(
            log_probs=self.logprobs_BW[asked], entropy=self.entropy_BW[asked], mean_logits=nothing_BW,
            is_top1=nothing_BW.bool(),
        )  # fmt: skip


def common(folder: Path) -> dict[str, Any]:
    """What every trainer is told."""
    return {"output_dir": str(folder / "out"), "use_cpu": True, "report_to": [], "bf16": False, "disable_tqdm": True}


def completions(ragged: Ragged) -> list[list[int]]:
    """Token ids that end with the end of sequence unless the row was cut; as long as the row's last trained token."""
    last_B = ragged.mask_BW.shape[1] - ragged.mask_BW.flip(-1).int().argmax(-1)
    last_B[~ragged.mask_BW.any(-1)] = 1
    end = byte_tokenizer().eos_token_id
    return [
        [LETTER] * (int(last) - 1) + [LETTER if cut else end]
        for last, cut in zip(last_B, ragged.truncated_B, strict=True)
    ]


def rewards(ragged: Ragged, parts: bool) -> list[Callable[..., list[float | None]]]:
    """The reward, or its parts, as functions that know the answer; None for a row without one."""
    columns = ragged.parts_BR.T if parts else ragged.reward_B[None]
    values = [[None if number != number else number for number in column] for column in columns.tolist()]
    return [lambda completions, found=found, **_: found for found in values]


def grpo_trainer(ragged: Ragged, setting: Setting, folder: Path) -> GRPOTrainer:
    """A GRPO trainer whose next generations are the rows, scored by the old policy.

    The sampler's log-probs are known where it is corrected for, or where the setting has a `sampler`.
    """
    ids, sampled = completions(ragged), None
    corrects = "vllm_importance_sampling_mode" in setting
    if corrects or setting.get("sampler"):
        sampled = [ragged.behaviour_BW[row, : len(found)].tolist() for row, found in enumerate(ids)]

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return {
            "prompt_ids": [[row] for row in range(ragged.rows)],
            "completion_ids": ids,
            "logprobs": sampled,
            "env_mask": [ragged.mask_BW[row, : len(found)].int().tolist() for row, found in enumerate(ids)],
        }

    arguments = {
        "per_device_train_batch_size": ragged.rows, "num_generations": ragged.group_size, "num_iterations": 2,
        "max_completion_length": ragged.mask_BW.shape[1],
    }  # fmt: skip
    arguments |= {key: value for key, value in setting.items() if key in GRPOConfig.__dataclass_fields__}
    trainer = GRPOTrainer(
        str(folder), reward_funcs=rewards(ragged, len(setting.get("reward_weights", ())) > 1), rollout_func=rollout,
        args=GRPOConfig(**common(folder), **arguments), train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=byte_tokenizer(),
    )  # fmt: skip
    trainer.model, trainer.ref_model = Table(ragged.old_BW), Table(ragged.ref_BW)
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    if corrects:  # the correction without a server: the rows are already sampled
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    return trainer


def scored(ragged: Ragged, setting: Setting, folder: Path) -> tuple[GRPOTrainer, dict[str, Any]]:
    """The trainer, and its batch after rewards, advantages and corrections."""
    trainer = grpo_trainer(ragged, setting, folder)
    return trainer, trainer._generate_and_score_completions([{"prompt": "a"}] * ragged.rows)


def advantages(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """GRPO's advantages, on every trained token."""
    found_B = scored(ragged, setting, folder)[1]["advantages"]
    return Outcome(found_B[:, None] * ragged.mask_BW)


def behaviour_weights(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """The factor of each token against the sampler."""
    found_BW = scored(ragged, setting, folder)[1]["importance_sampling_ratio"]
    if found_BW.shape[1] == 1:  # one factor for the whole row
        return Outcome(found_BW * ragged.mask_BW)
    padded_BW = torch.zeros(ragged.mask_BW.shape)
    padded_BW[:, : found_BW.shape[1]] = found_BW
    return Outcome(padded_BW * ragged.mask_BW)


def policy_loss(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """GRPO's loss for the batch's own advantages."""
    trainer, batch = scored(ragged, setting, folder)
    width = batch["completion_ids"].shape[1]
    return trainer_loss(trainer, ragged, [batch | {"advantages": ragged.advantages_BW[:, :width]}])


def step(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """From rewards to GRPO's loss of the optimizer step that holds row 0, by the trainer's own split into micro-batches."""
    trainer = grpo_trainer(ragged, setting, folder)
    slices: list[dict[str, Any]] = []
    for _ in range(trainer.args.steps_per_generation):
        slices.append(trainer._prepare_inputs([{"prompt": "a"}] * ragged.rows))
        trainer._step += 1
    window = trainer.args.gradient_accumulation_steps
    windows = [slices[start : start + window] for start in range(0, len(slices), window)]
    held = next(found for found in windows if any((part["prompt_ids"] == 0).any() for part in found))
    return trainer_loss(trainer, ragged, held)


def trainer_loss(trainer: GRPOTrainer | RLOOTrainer, ragged: Ragged, parts: list[dict[str, Any]]) -> Outcome:
    """The sum of the trainer's losses over micro-batches; the values stand in for entropies."""

    def loss(logprobs_BW: Tensor) -> Tensor:
        policy = Table(logprobs_BW, ragged.values_BW.abs())
        return torch.stack([trainer._compute_loss(policy, part) for part in parts]).sum()

    return differentiate(loss, ragged.logprobs_BW)


def entropy_bonus(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """What the entropy adds to GRPO's loss where no row has an advantage; gradient to the entropy."""
    trainer, batch = scored(ragged, setting, folder)
    batch["advantages"] = torch.zeros(ragged.rows)
    return differentiate(
        lambda entropy_BW: trainer._compute_loss(Table(ragged.old_BW, entropy_BW), batch), ragged.values_BW.abs()
    )


def entropy_coefficient(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """The coefficient that acts in each of a few steps, found from the gradient."""
    trainer, batch = scored(ragged, setting, folder)
    batch["advantages"] = torch.zeros(ragged.rows)
    used: list[float] = []
    for entropy in setting["observed"]:
        found = differentiate(
            lambda entropy_BW: trainer._compute_loss(Table(ragged.old_BW, entropy_BW), batch),
            torch.full(ragged.mask_BW.shape, entropy),
        )
        used.append(-float(found.gradient.sum()))
    return Outcome(torch.tensor(used))


def rloo(ragged: Ragged, setting: Setting, folder: Path) -> tuple[RLOOTrainer, dict[str, Any]]:
    """An RLOO trainer and its batch after rewards and advantages."""
    ids = completions(ragged)
    arguments = {"per_device_train_batch_size": ragged.rows, "num_generations": ragged.group_size, "num_iterations": 2}
    arguments |= {key: value for key, value in setting.items() if key in RLOOConfig.__dataclass_fields__}
    trainer = RLOOTrainer(
        str(folder), reward_funcs=rewards(ragged, parts=False), args=RLOOConfig(**common(folder), **arguments),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}), processing_class=byte_tokenizer(),
    )  # fmt: skip
    trainer._generate = lambda prompts: ([[row] for row in range(ragged.rows)], ids, ["" for _ in ids])
    trainer.model, trainer.ref_model = Table(ragged.old_BW), Table(ragged.ref_BW)
    return trainer, trainer._generate_and_score_completions([{"prompt": "a"}] * ragged.rows)


def rloo_advantages(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """RLOO's advantages, on every trained token."""
    return Outcome(rloo(ragged, setting, folder)[1]["advantages"][:, None] * ragged.mask_BW)


def rloo_loss(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """RLOO's loss for the batch's own advantages."""
    trainer, batch = rloo(ragged, setting, folder)
    return trainer_loss(trainer, ragged, [batch | {"advantages": ragged.advantages_BW[:, 0]}])


def dpo_loss(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """DPO's loss of pairs: the first half of the rows against the second."""
    arguments = {key: value for key, value in setting.items() if key in DPOConfig.__dataclass_fields__}
    pair = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}
    trainer = DPOTrainer(
        str(folder), args=DPOConfig(**common(folder), **arguments), train_dataset=Dataset.from_dict(pair),
        processing_class=byte_tokenizer(),
    )  # fmt: skip
    trainer.ref_model = Table(ragged.ref_BW * ragged.mask_BW)
    prompt_B1 = torch.arange(ragged.rows)[:, None]
    inputs = {
        "input_ids": torch.cat([prompt_B1, torch.full(ragged.mask_BW.shape, LETTER)], dim=1),
        "attention_mask": torch.ones(ragged.rows, ragged.mask_BW.shape[1] + 1, dtype=torch.long),
        "completion_mask": torch.cat([torch.zeros_like(prompt_B1), ragged.mask_BW.long()], dim=1),
    }
    return differentiate(
        lambda logprobs_BW: trainer._compute_loss(Table(logprobs_BW * ragged.mask_BW), inputs, False),
        ragged.logprobs_BW,
    )


def overlong(ragged: Ragged, setting: Setting, folder: Path) -> Outcome:
    """The penalty of each row by its length."""
    penalty = get_soft_overlong_punishment(setting["max_completion_len"], setting["soft_punish_cache"])
    return Outcome(torch.tensor(penalty(completions(ragged))))


CALLS: dict[str, Callable[[Ragged, Setting, Path], Outcome]] = {
    "advantages": advantages,
    "rollout_correction": behaviour_weights,
    "policy_loss": policy_loss,
    "step": step,
    "entropy_bonus": entropy_bonus,
    "entropy_coefficient": entropy_coefficient,
    "rloo_advantages": rloo_advantages,
    "rloo_loss": rloo_loss,
    "dpo_loss": dpo_loss,
    "overlong": overlong,
}
